"""The server's side of one attempt at a secure sum: it carries messages, and adds up what it cannot read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from protea.core.errors import ClientError, PayloadError
from protea.core.message import Named
from protea.filters.secure.client_side import add_pair_mask, proof_of
from protea.filters.secure.fixed_point import FixedPoint, TensorShapes, Words, shapes_of
from protea.filters.secure.masks import TAG, agreed_key, mask, pair_mask_key, public_key
from protea.filters.secure.shares import SHARE, combine
from protea.filters.secure.state import KEY, KEYS, MASKS, Participants, expect_rows, to_bytes
from protea.filters.secure.vouching import VOUCHED, expect_vouch, vouched_rows


class TooFewSitesError(ClientError):
    """Fewer clients are left than a sum must have: nothing can be unmasked, and the attempt is over."""


class Attempt:
    """One attempt at the sum of a round.

    ``roster`` goes to all clients for the step "shares", ``parcels`` to those that answered for "masked", and
    ``summed`` to those that answered that for "unmask"; then ``total`` is the sum.
    """

    def __init__(self, round: int, keys: Mapping[int, Tensor], point: FixedPoint, need: Callable[[int], int]) -> None:
        clients = sorted(keys)
        public = torch.stack([keys[client] for client in clients])
        self.everyone = Participants.of(round, {"clients": torch.tensor(clients), "public": public})
        self.point, self.need = point, need(len(clients))
        self.sealed: dict[int, Tensor] = {}  # by sender, a row for each client
        self.proofs: dict[int, bytes] = {}
        self.vouched: dict[int, bytes] = {}  # by sender, its signature of the roster, where clients check those
        self.masked: dict[int, Words] = {}
        self.shapes: dict[int, TensorShapes] = {}
        self.shares: dict[int, Tensor] = {}  # by the client that told them, a row for each sender

    def roster(self) -> Named:
        """Return the list of all clients and their keys."""
        return self.everyone.named()

    def take_shares(self, client: int, up: Named) -> None:
        """Take a client's sealed shares; :class:`PayloadError` for anything else."""
        _only({name: tensor for name, tensor in up.items() if name != VOUCHED}, "shares", "proof")
        rows = expect_rows(up, "shares", len(self.everyone.clients), 2 * SHARE + TAG)
        self.proofs[client] = to_bytes(expect_rows({"proof": up["proof"].reshape(1, -1)}, "proof", 1, KEY))
        if signed := expect_vouch(up):
            self.vouched[client] = signed
        self.sealed[client] = rows

    def parcels(self) -> dict[int, Named]:
        """Return for each client that shared its secrets the shares that others sealed for it."""
        senders = self._enough(self.sealed, "shared their secrets")
        if self.vouched and len(senders) < len(self.everyone.clients):
            raise TooFewSitesError(
                f"secure_sum: {len(senders)} of {len(self.everyone.clients)} clients signed the list; where they check "
                f"each other's keys, all must."
            )
        place = {client: index for index, client in enumerate(self.everyone.clients)}
        return {
            client: {
                "clients": torch.tensor(senders),
                "shares": torch.stack([self.sealed[other][place[client]] for other in senders]),
                **vouched_rows(self.vouched, senders),
            }
            for client in senders
        }

    def take_masked(self, client: int, up: Named) -> None:
        """Take a client's masked upload."""
        if not up or any(tensor.dtype != self.point.sent for tensor in up.values()):
            raise PayloadError(f"a masked upload was expected, in tensors of {self.point.sent}.")
        self.masked[client], self.shapes[client] = self.point.received(up), shapes_of(up)

    def odd(self) -> list[int]:
        """Drop the masked uploads that are not shaped as most are, and return whose they were."""
        usual = Counter(self.shapes[client] for client in sorted(self.shapes)).most_common(1)
        found = [client for client in sorted(self.shapes) if self.shapes[client] != usual[0][0]]
        for client in found:
            del self.masked[client], self.shapes[client]
        return found

    def summed(self) -> Named:
        """Return the list of clients whose uploads are in the sum."""
        return {"clients": torch.tensor(self._enough(self.masked, "sent a masked upload"))}

    def take_unmasked(self, client: int, up: Named) -> None:
        """Take the shares that a client has told."""
        _only(up, "shares")
        self.shares[client] = expect_rows(up, "shares", len(self.sealed), SHARE)

    def total(self) -> Named:
        """Return the sum, in float64: :class:`PayloadError` if what clients told does not unmask it."""
        tellers = self._enough(self.shares, "told what unmasks the sum")[: self.need]
        senders, summed = sorted(self.sealed), sorted(self.masked)
        secrets = {
            sender: combine({
                self.everyone.clients.index(teller) + 1: to_bytes(self.shares[teller][row]) for teller in tellers
            })
            for row, sender in enumerate(senders)
        }  # fmt: skip
        words = np.sum([self.masked[client] for client in summed], axis=0, dtype=self.point.dtype)
        for client in summed:
            if proof_of(secrets[client]) != self.proofs[client]:
                raise PayloadError(f"the shares of client {client}'s seed are not what it had shared.")
            words = words - mask(secrets[client], len(words), self.point.dtype)
        for client in sorted(set(senders) - set(summed)):
            words = self._without_pair_masks(words, client, secrets[client])
        return self.point.tensors(words, self.shapes[summed[0]])

    def _without_pair_masks(self, words: Words, missing: int, private: bytes) -> Words:
        """Take off the masks that all others have with a client whose own upload never came."""
        if public_key(private) != self.everyone.key(missing, MASKS):
            raise PayloadError(f"the shares of client {missing}'s key are not what it had shared.")
        for client in sorted(self.masked):
            key = pair_mask_key(private, self.everyone.key(client, MASKS), self.everyone.session, client, missing)
            words = add_pair_mask(words, key, missing, client)  # the opposite of what the client did
        return words

    def _enough(self, there: Mapping[int, object], what: str) -> list[int]:
        if len(there) < self.need:
            raise TooFewSitesError(
                f"secure_sum: {len(there)} of {len(self.everyone.clients)} clients {what}; {self.need} must."
            )
        return sorted(there)


def expect_keys(up: Named) -> Tensor:
    """Return the public keys that a client sent; :class:`PayloadError` for anything else."""
    _only(up, "public")
    public = up["public"]
    if public.dtype != torch.uint8 or public.shape != (KEYS, KEY):
        raise PayloadError(f"{KEYS} public keys were expected; {tuple(public.shape)} of {public.dtype} arrived.")
    for key in public:
        agreed_key(bytes(KEY), to_bytes(key), b"trial")  # one with which nobody can agree would stop all the others
    return public


def _only(up: Named, *names: str) -> None:
    if up.keys() != set(names):
        raise PayloadError(f"{' and '.join(names)} were expected; {', '.join(sorted(up))[:200] or 'nothing'} arrived.")
