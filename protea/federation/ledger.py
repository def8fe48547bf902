"""Kept over all rounds: the bytes sent each way, each client's refused uploads in a row, and its privacy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from protea.federation.jobs import Job, Reply
from protea.federation.privacy import Privacy
from protea.federation.record import ClientBytes, Record


@dataclass(frozen=True)
class Ledger:
    """Bytes sent by (``up``) and to (``down``) each client since the first round, and its refused uploads in a row."""

    max_refusals: int  # in a row, then the client is quarantined; 0 = never
    up: Counter[int] = field(default_factory=Counter)
    down: Counter[int] = field(default_factory=Counter)
    refusals: Counter[int] = field(default_factory=Counter)
    privacy: dict[int, Privacy] = field(default_factory=dict)  # of each client, as it last told

    @classmethod
    def of(cls, records: Iterable[Record], max_refusals: int) -> Ledger:
        """Rebuild the ledger as it was after these rounds."""
        ledger = cls(max_refusals)
        for record in records:
            for each in record.clients:
                if each.bytes is not None:
                    ledger.up[each.client] += each.bytes.up
                    ledger.down[each.client] += each.bytes.down
                if each.privacy is not None:
                    ledger.privacy[each.client] = each.privacy
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

    def note_privacy(self, replies: Sequence[Reply]) -> None:
        """Remember what clients tell of their privacy beside their uploads."""
        self.privacy.update({r.client: told for r in replies if (told := Privacy.read(r.metrics)) is not None})

    def spent(self, client: int) -> bool:
        """Return whether one more round would cost the client more than its privacy budget."""
        return client in self.privacy and self.privacy[client].spent

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
