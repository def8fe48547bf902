"""Signatures of sites: what a site vouches for, so that it can be shown later who said what.

A site signs every answer by its own key (EC P-384), the one by which the server knows it.  What it signs is a short
statement with a checksum of the answer, so that a line of the coordinator's ledger can be checked without the answer.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_private_key,
)

from protea.core.errors import ConfigError, PayloadError
from protea.network.trust.keys import UNREADABLE

NUMBER = 48  # bytes of each of the two numbers of a signature
SEAL = 2 * NUMBER  # bytes of a signature
GROUPS = 8  # of four digits, in a fingerprint


@dataclass(frozen=True)
class SignedAnswer:
    """What a site vouches for: that in a round of a task it gave an answer with this checksum."""

    task: str  # checksum of the task
    site: str
    asked: str  # train, evaluate, or a step of a secure sum
    round: int
    sha256: str  # of the answer

    @classmethod
    def of(cls, task: str, site: str, asked: str, round: int, answer: bytes) -> SignedAnswer:
        """Make the statement about an answer."""
        return cls(task, site, asked, round, hashlib.sha256(answer).hexdigest())

    @property
    def text(self) -> bytes:
        """What is signed: nothing else that a site signs begins like this."""
        return "\n".join(["protea answer", self.task, self.site, self.asked, str(self.round), self.sha256]).encode()


class SiteKey:
    """A site's private key, by which it signs."""

    def __init__(self, private: bytes) -> None:
        try:
            key = load_ssh_private_key(private, None)
        except UNREADABLE as error:
            raise ConfigError(f"The site's key cannot be read: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
            raise ConfigError("The site's key is not a P-384 key.")
        self.key = key

    @property
    def public(self) -> bytes:
        """The public key, PEM."""
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def sign(self, text: bytes) -> bytes:
        """Return the signature of a text: always of the same size, and the same for the same text."""
        numbers = decode_dss_signature(self.key.sign(text, ec.ECDSA(SHA384(), deterministic_signing=True)))
        return b"".join(number.to_bytes(NUMBER, "big") for number in numbers)


def holds(text: bytes, signature: bytes, public: bytes) -> bool:
    """Return whether the owner of a public key (PEM) has signed this text."""
    if len(signature) != SEAL:
        return False
    numbers = (int.from_bytes(part, "big") for part in (signature[:NUMBER], signature[NUMBER:]))
    try:
        site_public_key(public).verify(encode_dss_signature(*numbers), text, ec.ECDSA(SHA384()))
    except (InvalidSignature, ValueError):
        return False
    return True


def site_public_key(public: bytes) -> ec.EllipticCurvePublicKey:
    """Read a site's public key, PEM; raise :class:`ConfigError` for what is none."""
    try:
        key = load_pem_public_key(public)
    except UNREADABLE as error:
        raise ConfigError(f"The site's public key cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ConfigError("The site's public key is not a P-384 key.")
    return key


def fingerprint(public: bytes) -> str:
    """Return what two people read to each other to know that they have the same key (PEM): 128 bits of its checksum."""
    try:
        content = load_pem_public_key(public).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except UNREADABLE as error:
        raise ConfigError(f"The public key cannot be read: {error}") from error
    digits = hashlib.sha256(content).hexdigest()
    return " ".join(digits[4 * group : 4 * group + 4] for group in range(GROUPS))


def fingerprint_of(text: str) -> str:
    """Return a fingerprint as it is compared, however it was typed; raise :class:`ConfigError` for what is none.

    >>> fingerprint_of("1A2B3C4D 5e6f-7081 0000111122223333")
    '1a2b 3c4d 5e6f 7081 0000 1111 2222 3333'
    """
    digits = re.sub(r"[\s:-]", "", text).lower()
    if not re.fullmatch(r"[0-9a-f]{32}", digits):
        raise ConfigError(
            f"{text[:80]!r} is no fingerprint of a site's key: eight groups of four digits or letters a to f, as that "
            f"site reads it from  protea site request  or  protea site check."
        )
    return " ".join(digits[at : at + 4] for at in range(0, 32, 4))


def compressed(public: bytes) -> bytes:
    """Return a site's public key (PEM) in 49 bytes: a point of the curve."""
    return site_public_key(public).public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def from_compressed(point: bytes) -> bytes:
    """Return the public key (PEM) of a point; raise :class:`PayloadError` for what is none of the curve."""
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), point)
    except ValueError as error:
        raise PayloadError("a public key came that is none.") from error
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def unsealed(part: bytes) -> tuple[bytes, bytes]:
    """Split an answer as it came into its signature and the answer itself; raise :class:`PayloadError` if too short."""
    if len(part) <= SEAL:
        raise PayloadError(f"an answer of {len(part)} bytes came that has no signature.")
    return part[:SEAL], part[SEAL:]
