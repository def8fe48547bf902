"""Who vouches for the list of clients and keys that a secure sum is made with.

The server carries public keys from client to client, so it could put keys of its own in their place.  Where clients
have long-term keys that the others know, each signs the list that it was shown, and masks nothing before it has seen
that all others have signed the same list.  A list has the fresh keys of everybody in it, so no signature fits twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from protea.core.errors import PayloadError
from protea.core.message import Named
from protea.filters.secure.state import Participants, expect_rows, to_bytes

VOUCHED = "vouched"  # the name of what is signed, in messages
SIGNED, SIGNER = 96, 49  # bytes of a signature by a key on P-384, and of that public key, compressed
VOUCH = SIGNED + SIGNER


class Voucher:
    """Signs the list that a client is shown, and checks what others have signed.  In simulations it does neither."""

    def sign(self, client: int, others: Participants) -> bytes:
        """Return ``VOUCH`` bytes: a signature of the list, and by which key; none where nobody checks."""
        return b""

    def check(self, client: int, others: Participants, signed: Mapping[int, bytes]) -> None:
        """Raise :class:`PayloadError` unless all other clients of the list have signed it, by keys that are known."""


def vouched_rows(signed: Mapping[int, bytes], clients: Sequence[int]) -> Named:
    """Return what clients have signed as the server sends it, zeros for those that have not; nothing if nobody has."""
    if not signed:
        return {}
    rows = [list(signed.get(client, bytes(VOUCH))) for client in clients]
    return {VOUCHED: torch.tensor(rows, dtype=torch.uint8)}


def vouched_by(down: Named, clients: Sequence[int]) -> dict[int, bytes]:
    """Read what :func:`vouched_rows` gave."""
    if VOUCHED not in down:
        return {}
    rows = zip(clients, expect_rows(down, VOUCHED, len(clients), VOUCH), strict=True)
    return {client: to_bytes(row) for client, row in rows if row.any()}


def expect_vouch(up: Named) -> bytes:
    """Return what a client has signed, if it has; :class:`PayloadError` for another number of bytes."""
    if VOUCHED not in up:
        return b""
    tensor = up[VOUCHED]
    if tensor.dtype != torch.uint8 or tensor.shape != (VOUCH,):
        raise PayloadError(
            f"{VOUCHED!r}: {tuple(tensor.shape)} of {tensor.dtype} arrived; {VOUCH} bytes were expected."
        )
    return to_bytes(tensor)
