"""Addresses of this machine, for what is served to it alone."""

from __future__ import annotations

from ipaddress import ip_address

OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")  # under which programs here ask this machine


def is_loopback(host: str) -> bool:
    """Tell whether an address is reached from this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("lab.example")
    (True, False, False)
    """
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def asked_as(host: str | None) -> str:
    """Return the name in a request's header ``Host``, without its port.

    >>> asked_as("localhost:80"), asked_as("[::1]:80"), asked_as(None)
    ('localhost', '[::1]', '')
    """
    name = host or ""
    return name.rpartition(":")[0] if ":" in name and not name.endswith("]") else name
