"""Shamir's secret sharing: any ``threshold`` shares give the secret, and fewer say nothing about it.

A secret of 32 bytes is a number below 2^256.  Shares are the values, at 1, 2, ..., of a polynomial of degree
``threshold - 1`` over the integers modulo a prime, whose value at 0 is the secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from protea.core.errors import PayloadError
from protea.filters.secure.masks import key_stream

PRIME = 2**256 + 297  # the smallest one above 2^256
SECRET = 32  # bytes of a secret
SHARE = 33  # bytes of a share
DRAWN = 48  # bytes for a coefficient: modulo the prime they are uniform but for 2^-128


def split(secret: bytes, threshold: int, count: int, seed: bytes) -> list[bytes]:
    """Return ``count`` shares of a secret, the first for place 1; the polynomial is drawn from ``seed``.

    >>> shares = split(b"k" * 32, threshold=2, count=3, seed=b"s" * 32)
    >>> combine({1: shares[0], 3: shares[2]}) == combine({2: shares[1], 3: shares[2]}) == b"k" * 32
    True
    """
    drawn = key_stream(seed, DRAWN * (threshold - 1))
    higher = [int.from_bytes(drawn[at : at + DRAWN], "little") for at in range(0, len(drawn), DRAWN)]
    coefficients = [int.from_bytes(secret, "big"), *higher]
    return [_value(coefficients, place).to_bytes(SHARE, "big") for place in range(1, count + 1)]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret, from as many shares as its threshold, by place; :class:`PayloadError` if they give none."""
    factors = _at_zero(tuple(shares))
    numbers = [int.from_bytes(share, "big") for share in shares.values()]
    found = sum(factor * number for factor, number in zip(factors, numbers, strict=True)) % PRIME
    if found >> (8 * SECRET):
        raise PayloadError("shares of a secret do not fit together.")
    return found.to_bytes(SECRET, "big")


def _value(coefficients: list[int], place: int) -> int:
    """Return the value of a polynomial, its lowest coefficient first, by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % PRIME
    return value


@lru_cache(maxsize=16)
def _at_zero(places: tuple[int, ...]) -> list[int]:
    """Return the factors by which values at these places give, added up, the value at 0 (Lagrange)."""
    found = []
    for place in places:
        above, below = 1, 1
        for other in places:
            if other != place:
                above, below = above * other % PRIME, below * (other - place) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found
