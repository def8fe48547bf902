"""How long connections to a SuperLink are kept, and how many there are."""

from __future__ import annotations

from typing import TypeVar

import httpx
from flwr.supercore.protobuf.client import ProtobufClient

KEEP = 60.0  # seconds that a connection without a request is kept; Flower's own clients keep it for five
MOST = 8  # connections of one client; who needs one more waits for it
CONNECT, READ = 10.0, 30.0  # seconds

Client = TypeVar("Client", bound=ProtobufClient)


def keeping(client: Client) -> Client:
    """Let a client of Flower's keep few connections for long: a new one costs both sides more than most requests do."""
    pool = client._client._transport._pool  # type: ignore[attr-defined]
    pool._keepalive_expiry, pool._max_connections, pool._max_keepalive_connections = KEEP, MOST, MOST
    client._client.timeout = httpx.Timeout(READ, connect=CONNECT, pool=None)
    return client
