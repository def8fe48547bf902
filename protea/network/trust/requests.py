"""Requests of sites: a public key and a name, by which a site asks to be invited.  The private key stays at the site.

A request is a small JSON file, signed by the key that it names, and by the key before it where a site changes its key.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter

from protea.config.complaints import complaint
from protea.core.errors import ConfigError
from protea.core.files import write_private, write_text
from protea.network.trust.keys import make_site_key
from protea.network.trust.signatures import SiteKey, holds, site_public_key

FORMAT = 1
LARGEST = 16 * 2**10  # bytes of a request
KEY, NEXT = "site.key", "site.key.next"  # in a site's directory: its key, and the one that it has asked to change to
NAME = r"\w[\w.-]{0,63}"


@dataclass(frozen=True)
class Request:
    """The content of a request file."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")

    format: int
    site: str  # its name
    key: str  # its public key, PEM
    signature: str  # by that key, in hexadecimal digits
    former: str = ""  # signature by the key before this one; empty in a site's first request

    @property
    def text(self) -> bytes:
        """What is signed."""
        return request_text(self.site, self.key)


_REQUEST = TypeAdapter(Request)


def request_text(site: str, key: str) -> bytes:
    """Return what a site signs to ask for an invitation."""
    return f"protea request\n{site}\n{key}".encode()


def refuse_no_name(name: str) -> None:
    """Raise :class:`ConfigError` for what is no name of a site."""
    if not re.fullmatch(NAME, name):
        raise ConfigError(
            f"{name[:80]!r} is no name for a site: use letters, digits, '_', '-' and '.', 64 at most, the last two not "
            f"at its beginning."
        )


def write_request(folder: Path, name: str, former: Path | None = None, *, rotate: bool = False) -> Path:
    """Write a site's request into its directory, with a key that is made if there is none yet; return the path.

    With ``rotate`` it asks to change to a new key, signed by the one in ``former`` too.  The new key takes the place of
    the old one when the bundle comes that answers the request.
    """
    refuse_no_name(name)
    if rotate and former is None:
        raise ConfigError(f"{folder} has no key that could be changed.  Leave out --rotate.")
    old = SiteKey(former.read_bytes()) if rotate and former is not None else None
    path = folder / (NEXT if rotate else KEY)
    if not rotate and former is not None:
        path = former
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_private(path, make_site_key()[0])
    key = SiteKey(path.read_bytes())
    public = key.public.decode()
    text = request_text(name, public)
    signed = "" if old is None else old.sign(text).hex()
    request = Request(FORMAT, name, public, key.sign(text).hex(), signed)
    found = folder / f"{name}.request"
    write_text(found, json.dumps(asdict(request), indent=2) + "\n")
    return found


def read_request(path: Path) -> Request:
    """Read a request file; raise :class:`ConfigError` for what is none, or is not signed by the key in it."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    return parse_request(content, str(path))


def parse_request(content: bytes, where: str) -> Request:
    """Read the content of a request file; errors begin with ``where``."""
    no_request = f"{where} is not a request of a site's (made by: protea site request NAME)"
    if len(content) > LARGEST:
        raise ConfigError(f"{no_request}: it has more than {LARGEST:,} bytes.")
    try:
        request: Request = _REQUEST.validate_json(content)
    except ValueError as error:
        raise ConfigError(f"{no_request}: {complaint(error)}.") from error
    if request.format != FORMAT:
        raise ConfigError(f"{where} has format {request.format}; this version of Protea reads {FORMAT}.")
    try:
        refuse_no_name(request.site)
        site_public_key(request.key.encode())
        signature, former = bytes.fromhex(request.signature), bytes.fromhex(request.former)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{no_request}: {error}") from error
    if not holds(request.text, signature, request.key.encode()):
        raise ConfigError(f"{no_request}: it is not signed by the key in it.")
    if former and len(former) != len(signature):
        raise ConfigError(f"{no_request}: its signature by a former key is of {len(former)} bytes.")
    return request


def follows(request: Request, public: bytes) -> bool:
    """Return whether the owner of this public key (PEM) has signed a request to change to another one."""
    return holds(request.text, bytes.fromhex(request.former), public)
