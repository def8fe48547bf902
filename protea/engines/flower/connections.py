"""How long connections to a SuperLink are kept, and how many there are."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

import httpx
from flwr.supercore.protobuf.client import ProtobufClient

KEEP = 60.0  # seconds that a connection without a request is kept; Flower's own clients keep it for five
MOST = 8  # connections of one client; who needs one more waits for it
CONNECT, READ = 10.0, 30.0  # seconds

Calling = TypeVar("Calling", bound=ProtobufClient)


def allow_files(most: int = 2**16) -> None:
    """Let this process and those that it starts have this many open files, or as many as the system lets them.

    A site takes up to five, and a usual limit is 1,024.
    """
    with suppress(ImportError, OSError, ValueError):  # there is no such limit on Windows
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def keeping(client: Calling) -> Calling:
    """Let a client of Flower's keep few connections for long: a new one costs both sides more than most requests do."""
    pool = client._client._transport._pool  # type: ignore[attr-defined]
    pool._keepalive_expiry, pool._max_connections, pool._max_keepalive_connections = KEEP, MOST, MOST
    client._client.timeout = httpx.Timeout(READ, connect=CONNECT, pool=None)
    return client
