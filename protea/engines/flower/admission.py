"""What the front door lets through: limits, paths, and requests that are signed by a key of one of its sites."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from collections.abc import Collection
from dataclasses import dataclass

import h11
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

from protea.core.message import HEADER
from protea.engines.flower.codec import PART, parts_of

FLEET = "/v1/fleet/"
PATHS = (  # what a site's client process asks for; without TLS there is no door, so nobody registers here
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
SMALL = 64 * 2**10  # bytes of a body that carries no part of an upload
OBJECT = 256  # bytes of a message's list for each of its parts
JOBS = 2  # answers in one message: the evaluation of a round, and the training of the next one
CLOCK = "signed by another clock; here it is"  # what is said of a signature of long ago, or of the future


@dataclass(frozen=True)
class DoorLimits:
    """What the door lets through: bytes and seconds of a request, connections of an address and in all."""

    upload: int = 256 * 2**20  # bytes of a whole upload, of which one request carries a part
    per_address: int = 32
    connections: int = 256
    strangers: int = 64  # connections on which no request was signed yet
    per_key: int = 32  # connections of one site
    at_once: int = 8  # requests of one site that are read or handed on at a time, as many as its client makes
    requests: tuple[float, int] = (100.0, 400)  # of one site: a second, and at once
    arrivals: tuple[float, int] = (20.0, 200)  # new connections of one address: a second, and at once
    head: float = 10.0  # seconds for the head of a request to be whole
    idle: float = 75.0  # seconds that a connection without a request is kept
    slowest: float = 8 * 2**10  # bytes a second of a body, beyond the first ``head`` seconds
    answer: float = 120.0  # seconds that the SuperLink, and whoever reads its answer, may take
    largest_head: int = 16 * 2**10  # bytes

    @classmethod
    def of(cls, upload: int, sites: int) -> DoorLimits:
        """Give the limits of a federation: all its sites may come from one address."""
        return cls(
            upload=upload,
            per_address=16 + 16 * sites,
            connections=64 + 32 * sites,
            strangers=64 + 4 * sites,  # after a new start all sites connect at once
            arrivals=(20.0 + sites, 200 + 16 * sites),
        )

    @property
    def message(self) -> int:
        """The most bytes of one message: an upload for each of its answers, with their headers."""
        return JOBS * (self.upload + HEADER)

    @property
    def objects(self) -> int:
        """The most objects that one message consists of: itself, the list of its records, and these."""
        return 2 + parts_of(self.message)

    def body(self, path: str) -> int:
        """Give the most bytes that the body of a request to a path may have."""
        if path == "push-object":
            return PART + SMALL  # also of a reply that is too large in all: the coordinator says so of it
        return SMALL + (OBJECT * self.objects if path == "push-messages" else 0)


class RefusedRequestError(Exception):
    """A request that is not let through, with the status that says so."""

    def __init__(self, status: int, words: str = "") -> None:
        self.status, self.words = status, words


def allowed(request: h11.Request, limits: DoorLimits, keys: Collection[bytes]) -> tuple[bytes, int]:
    """Return the sender's key and the length of a request's body.

    :class:`RefusedRequestError` unless it is let through.
    """
    target = request.target.decode("ascii", "replace")
    path = target.removeprefix(FLEET)
    if not target.startswith(FLEET) or path not in PATHS or request.method != b"POST":
        raise RefusedRequestError(404)
    headers = dict(request.headers)
    if b"content-length" not in headers or b"transfer-encoding" in headers:
        raise RefusedRequestError(411)
    key = signed_by(headers, keys)
    length = int(headers[b"content-length"])
    if length > limits.body(path):
        raise RefusedRequestError(413)
    return key, length


def signed_by(headers: dict[bytes, bytes], keys: Collection[bytes]) -> bytes:
    """Return which of these public keys has signed a request; raise :class:`RefusedRequestError` if none has just now.

    A signature by any other key is not looked at.
    """
    try:
        key, signature = (
            base64.b64decode(headers[name.lower().encode()], validate=True)
            for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
        )
        if key not in keys:
            raise RefusedRequestError(401)
        stamp = headers[TIMESTAMP_HEADER.lower().encode()].decode("ascii")
        now = dt.datetime.now(dt.UTC)
        age = (now - dt.datetime.fromisoformat(stamp)).total_seconds()
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
            raise RefusedRequestError(401, f"{CLOCK} {now.isoformat(timespec='seconds')}")
        if verify_signature(bytes_to_public_key(key), stamp.encode(), signature):
            return key
    except (KeyError, ValueError, TypeError, AttributeError, NotImplementedError, binascii.Error):
        pass  # a signature or a time that cannot be read
    raise RefusedRequestError(401)
