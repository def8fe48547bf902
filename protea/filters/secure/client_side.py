"""A client's steps: keys with the training, then shares of its secrets, its masked upload, and what unmasks the sum.

A client trusts the server in nothing that it can check itself.  It takes part only with enough others, shares each
pair of keys with one list of clients only, and of each other client it gives away either the share of its seed or that
of its key, never both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from protea.core.errors import PayloadError, ProteaError
from protea.core.memory import Memory
from protea.core.message import Named
from protea.filters.secure.fixed_point import FixedPoint, Words, shapes_of
from protea.filters.secure.masks import TAG, mask, pair_mask_key, public_key, seal, unseal
from protea.filters.secure.shares import SHARE, split
from protea.filters.secure.state import (
    KEY,
    KEYS,
    MASKS,
    MESSAGES,
    Participants,
    SumState,
    clients_of,
    digest,
    expect_rows,
    to_bytes,
    to_tensor,
)
from protea.filters.secure.vouching import VOUCHED, Voucher, vouched_by

MEMORY = "secure_sum"  # the name of the state in a client's memory
Draw = Callable[[str], bytes]  # 32 secret bytes for a purpose


@dataclass(frozen=True)
class SummingClient:
    """One client in the secure sum of one round.  All that it must remember is in its memory."""

    id: int
    round: int
    memory: Memory
    draw: Draw
    point: FixedPoint
    need: Callable[[int], int]  # of so many clients that share secrets, how many must be in the sum
    least: int  # clients that must be in any sum
    voucher: Voucher = field(default_factory=Voucher)  # for the list of clients and keys

    def answer(self, step: str, down: Named) -> Named:
        """Do one of the steps that follow the training."""
        steps = {"keys": self.keys, "shares": self.share, "masked": self.masked, "unmask": self.unmask}
        try:
            return steps[step](down)
        except ProteaError as error:
            raise type(error)(f"client {self.id}, round {self.round}: {error}") from error

    def begin(self, upload: Named) -> Named:
        """Keep what is to be added to the sum of this round, and return fresh public keys."""
        nothing = torch.zeros(0, KEY, dtype=torch.uint8)
        return self._with_keys(SumState(upload, torch.tensor([self.round, 0]), nothing))

    def keys(self, down: Named) -> Named:
        """Return fresh public keys, for another attempt at the sum of this round."""
        state = self._state()
        number = torch.tensor([self.round, int(state.number[1]) + 1])
        return self._with_keys(SumState(state.upload, number, state.private, answered=state.answered))

    def _with_keys(self, state: SumState) -> Named:
        private = [self._draw(state, f"key {number}") for number in range(KEYS)]
        self.memory[MEMORY] = replace(state, private=torch.stack([to_tensor(key) for key in private]))
        return {"public": torch.stack([to_tensor(public_key(key)) for key in private])}

    def share(self, down: Named) -> Named:
        """Return a share of this client's secrets for every participant, which only that one can read."""
        state, others = self._state(), Participants.of(self.round, down)
        if state.clients is not None or not len(state.private):
            raise PayloadError("these keys were shared already; another attempt needs new ones.")
        if len(others.clients) < self.least:
            raise PayloadError(
                f"a sum over {len(others.clients)} clients was asked for; {self.least} at least must be."
            )
        private = [to_bytes(key) for key in state.private]
        self._refuse_without_me(others, [public_key(key) for key in private])
        seed, count = self._draw(state, "seed"), len(others.clients)
        threshold = self.need(count)
        parts = [
            split(secret, threshold, count, self._draw(state, f"{name} shares"))
            for name, secret in (("seed", seed), ("key", private[MASKS]))
        ]
        sealed = [
            seal(private[MESSAGES], key[MESSAGES], others.session, self.id, other, seed_share + key_share)
            for other, key, seed_share, key_share in zip(others.clients, others.public, *parts, strict=True)
        ]
        self.memory[MEMORY] = replace(state, seed=to_tensor(seed), clients=down["clients"], public=down["public"])
        signed = self.voucher.sign(self.id, others)
        shares = {"shares": torch.stack([to_tensor(each) for each in sealed]), "proof": to_tensor(proof_of(seed))}
        return {**shares, VOUCHED: to_tensor(signed)} if signed else shares

    def _refuse_without_me(self, others: Participants, own: list[bytes]) -> None:
        if self.id not in others.clients or list(others.public[others.clients.index(self.id)]) != own:
            raise PayloadError(f"a list of clients came in which client {self.id} is not, or has other keys.")

    def masked(self, down: Named) -> Named:
        """Return this client's upload under a mask of its own, and one with every other client whose shares came."""
        state, others = self._shared()
        if state.senders is not None:
            raise PayloadError("an upload was masked by these keys already; another attempt needs new ones.")
        senders = self._enough(down, others.clients, len(others.clients))
        self.voucher.check(self.id, others, vouched_by(down, senders))
        sealed = expect_rows(down, "shares", len(senders), 2 * SHARE + TAG)
        private, session = [to_bytes(key) for key in state.private], others.session
        shares = [
            unseal(private[MESSAGES], others.key(other, MESSAGES), session, other, self.id, to_bytes(row))
            for other, row in zip(senders, sealed, strict=True)
        ]
        assert state.seed is not None
        words = self.point.words(state.upload, len(senders))
        words = words + mask(to_bytes(state.seed), len(words), self.point.dtype)
        for other in senders:
            if other != self.id:
                key = pair_mask_key(private[MASKS], others.key(other, MASKS), session, self.id, other)
                words = add_pair_mask(words, key, self.id, other)
        kept = torch.stack([to_tensor(each).reshape(2, SHARE) for each in shares])
        self.memory[MEMORY] = replace(state, senders=down["clients"], shares=kept)
        return self.point.to_send(words, shapes_of(state.upload))

    def unmask(self, down: Named) -> Named:
        """Return a share of the seed of each client in the sum, and of the key of each one that is missing in it."""
        state, others = self._shared()
        if state.senders is None or state.shares is None:
            raise PayloadError("this client has sent no masked upload that could be unmasked.")
        senders = clients_of(state.senders)
        summed = self._enough(down, senders, len(others.clients))
        if state.answered is not None and clients_of(state.answered) != summed:
            raise PayloadError(
                "the sum of other clients in this round was unmasked before: their difference would tell."
            )
        rows = [pair[0] if other in summed else pair[1] for other, pair in zip(senders, state.shares, strict=True)]
        upload, number, none = state.upload, state.number, state.private[:0]
        self.memory[MEMORY] = SumState(upload, number, none, answered=down["clients"])
        return {"shares": torch.stack(list(rows)).cpu()}

    def _enough(self, down: Named, known: tuple[int, ...], count: int) -> tuple[int, ...]:
        """Read a list of clients; raise :class:`PayloadError` unless it has enough of those known, and this one."""
        found = clients_of(down.get("clients"))
        if self.id not in found or not set(found) <= set(known):
            raise PayloadError(f"a list of clients came in which client {self.id} is not, or others that have no part.")
        if len(found) < self.need(count):
            raise PayloadError(f"{len(found)} clients of {count} are left; {self.need(count)} must be in a sum.")
        return found

    def _state(self) -> SumState:
        state = self.memory.get(MEMORY)
        if not isinstance(state, SumState) or int(state.number[0]) != self.round:
            raise PayloadError(f"this client has nothing to add to a sum of round {self.round}.")
        return state

    def _shared(self) -> tuple[SumState, Participants]:
        """Return the state of an attempt in which this client has shared its secrets, and with whom."""
        state = self._state()
        if state.clients is None or state.public is None:
            raise PayloadError("this client has shared no secrets in this attempt.")
        return state, Participants.of(self.round, {"clients": state.clients, "public": state.public})

    def _draw(self, state: SumState, purpose: str) -> bytes:
        return self.draw(f"attempt {int(state.number[1])} {purpose}")


def add_pair_mask(words: Words, key: bytes, own: int, other: int) -> Words:
    """Add the mask that two clients have in common, or take it off: one adds it, the other takes it off."""
    shared = mask(key, len(words), words.dtype)
    return words + shared if own < other else words - shared


def proof_of(seed: bytes) -> bytes:
    """Return by what the server will know the seed when it has put it together from shares."""
    return digest(b"seed", seed)
