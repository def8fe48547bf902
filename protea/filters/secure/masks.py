"""Keys that two clients agree on, masks that are drawn from keys, and messages that only one client can read.

X25519, HKDF with SHA-256, AES-256 in counter mode and ChaCha20-Poly1305, all of the package ``cryptography``.
"""

from __future__ import annotations

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from protea.core.errors import PayloadError
from protea.filters.secure.fixed_point import Words
from protea.filters.secure.state import KEY

TAG = 16  # bytes that a sealed message is longer


def public_key(private: bytes) -> bytes:
    """Return the public key to a private one; any 32 bytes are a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed_key(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """Return the key that the owners of two key pairs have in common, for one purpose and no other.

    >>> one, two = b"1" * 32, b"2" * 32
    >>> agreed_key(one, public_key(two), b"masks") == agreed_key(two, public_key(one), b"masks")
    True
    """
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:  # a point of low order, with which everybody would agree on the same key
        raise PayloadError("a public key came that is none.") from error
    return HKDF(hashes.SHA256(), KEY, salt=None, info=purpose).derive(shared)


def pair_mask_key(private: bytes, public: bytes, session: bytes, one: int, other: int) -> bytes:
    """Return the key of the mask that two clients have in common; both find the same one."""
    low, high = sorted((one, other))
    return agreed_key(private, public, _purpose(b"mask", session, low, high))


def key_stream(key: bytes, size: int) -> bytes:
    """Return ``size`` bytes that nobody can tell from chance without the key, which is used for nothing else."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def mask(key: bytes, count: int, dtype: np.dtype[np.generic]) -> Words:
    """Return a mask of ``count`` words."""
    return np.frombuffer(key_stream(key, count * dtype.itemsize), dtype)


def seal(private: bytes, public: bytes, session: bytes, sender: int, receiver: int, text: bytes) -> bytes:
    """Return a text that only the receiver can read, and of which it knows who sent it, and in which session."""
    return _cipher(private, public, session, sender, receiver).encrypt(bytes(12), text, None)


def unseal(private: bytes, public: bytes, session: bytes, sender: int, receiver: int, sealed: bytes) -> bytes:
    """Return the text that was sealed; :class:`PayloadError` if it was changed on its way."""
    try:
        return _cipher(private, public, session, sender, receiver).decrypt(bytes(12), sealed, None)
    except InvalidTag:
        raise PayloadError(f"what client {sender} has sealed for client {receiver} was changed on its way.") from None


def _cipher(private: bytes, public: bytes, session: bytes, sender: int, receiver: int) -> ChaCha20Poly1305:
    """Return the cipher of one message: its key is used once, so that its nonce may be zero."""
    return ChaCha20Poly1305(agreed_key(private, public, _purpose(b"share", session, sender, receiver)))


def _purpose(word: bytes, session: bytes, first: int, second: int) -> bytes:
    return b"protea secure sum " + word + session + first.to_bytes(8, "big") + second.to_bytes(8, "big")
