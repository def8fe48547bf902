"""The chain of a coordinator's keys: each new signing key is signed by the one before it.

A site that knows an earlier key can see that a later one is of the same coordinator.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import pairwise

from cryptography.exceptions import InvalidSignature
from pydantic import ConfigDict, TypeAdapter

from protea.config.complaints import complaint
from protea.core.errors import ConfigError
from protea.network.trust.keys import Signer, coordinator_key

CHAIN = "coordinator.chain"
KIND = "key"  # of what is signed
LONGEST = 1000  # links


@dataclass(frozen=True)
class ChainLink:
    """A key, and the signature of it by the key before."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")

    key: str  # public, PEM
    signature: str  # in hexadecimal digits


_LINKS = TypeAdapter(list[ChainLink])


def longer_chain(chain: bytes, old: Signer, new: bytes) -> bytes:
    """Return the chain up to the key ``old`` with one link more: the public key ``new`` (PEM), signed by ``old``."""
    before, known = read_chain(chain), old.public().decode()
    place = next((k for k, link in enumerate(before) if link.key == known), -1)  # what follows was never used
    links = [*before[: place + 1], ChainLink(new.decode(), old.signature(KIND, new).hex())]
    return json.dumps([asdict(link) for link in links], indent=1).encode()


def read_chain(chain: bytes) -> list[ChainLink]:
    """Read a chain; raise :class:`ConfigError` for what is none."""
    try:
        links = _LINKS.validate_json(chain)
        if len(links) > LONGEST or any(len(bytes.fromhex(link.signature)) != 64 for link in links):
            raise ConfigError("The chain of the coordinator's keys has a signature that is none.")
    except ValueError as error:
        raise ConfigError(f"The chain of the coordinator's keys cannot be read: {complaint(error, 'it')}.") from error
    return links


def check_chain(chain: bytes) -> None:
    """Raise :class:`ConfigError` unless every key in a chain is one, signed by the one before it."""
    links = read_chain(chain)
    for link in links:
        coordinator_key(link.key.encode())
    for before, link in pairwise(links):
        if not signed_by(before.key.encode(), link):
            raise ConfigError("The chain of the coordinator's keys is broken: a key is not signed by the one before.")


def leads(chain: bytes, known: bytes, new: bytes) -> bool:
    """Return whether a chain leads from a public key that a site knows to the one ``new`` (both PEM)."""
    if known == new:
        return True
    links = read_chain(chain)
    for place, link in enumerate(links):
        if signed_by(known, link):
            rest = links[place:]
            whole = all(signed_by(a.key.encode(), b) for a, b in pairwise(rest))
            return whole and rest[-1].key.encode() == new
    return False


def signed_by(public: bytes, link: ChainLink) -> bool:
    """Return whether the owner of a public key (PEM) has signed a link."""
    try:
        coordinator_key(public).verify(bytes.fromhex(link.signature), KIND.encode() + b"\0" + link.key.encode())
    except InvalidSignature:
        return False
    return True
