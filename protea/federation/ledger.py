"""Counts kept over all rounds: the bytes sent each way, and each client's refused uploads in a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from protea.federation.jobs import Job, Reply
from protea.federation.record import ClientBytes, Record


@dataclass(frozen=True)
class Ledger:
    """Bytes sent by (``up``) and to (``down``) each client since the first round, and its refused uploads in a row."""

    max_refusals: int  # in a row, then the client is quarantined; 0 = never
    up: Counter[int] = field(default_factory=Counter)
    down: Counter[int] = field(default_factory=Counter)
    refusals: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, records: Iterable[Record], max_refusals: int) -> Ledger:
        """Rebuild the ledger as it was after these rounds."""
        ledger = cls(max_refusals)
        for record in records:
            for each in record.clients:
                if each.bytes is not None:
                    ledger.up[each.client] += each.bytes.up
                    ledger.down[each.client] += each.bytes.down
            ledger.count_refusals([c for c in record.participants if c not in record.absent], record.refused)
        return ledger

    def count_bytes(self, jobs: Sequence[Job], replies: Sequence[Reply]) -> None:
        """Add the bytes of a round's jobs and replies, of training and of a secure sum.

        Evaluation is not counted: it serves whoever watches the experiment, and is no part of the method.
        """
        for job in jobs:
            self.down[job.client] += job.size
        for reply in replies:
            self.up[reply.client] += reply.size

    def count_refusals(self, asked: Iterable[int], refused: Iterable[int]) -> None:
        """Add one for each client whose upload was refused, and set every other client that was asked to 0."""
        refused = set(refused)
        for client in asked:
            self.refusals[client] = self.refusals[client] + 1 if client in refused else 0

    def bytes_of(self, client: int, jobs: Sequence[Job], replies: Sequence[Reply]) -> ClientBytes:
        """Return one client's bytes: those of the round's ``jobs`` and ``replies``, and those since the first round.

        The round must have been counted before, by :meth:`count_bytes`.
        """
        up = sum(reply.size for reply in replies if reply.client == client)
        down = sum(job.size for job in jobs if job.client == client)
        return ClientBytes(up, down, self.up[client], self.down[client])

    def quarantined(self, client: int) -> bool:
        """Return whether so many uploads in a row were refused that the client is no longer asked to train."""
        return 0 < self.max_refusals <= self.refusals[client]
