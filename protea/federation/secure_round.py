"""The secure sum of one round: from the public keys that clients send after training to one upload for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from protea.config.units import in_bytes
from protea.core.errors import ClientError, PayloadError
from protea.core.message import Named, refuse_malformed
from protea.core.method import Upload
from protea.federation.jobs import Job, Reply
from protea.federation.round import Round
from protea.federation.uploads import Accepted, Inspection, by_client, the_reply_to
from protea.filters.secure_sum import SecureSum, SumStep

if TYPE_CHECKING:
    from protea.filters.secure.server_side import Attempt

ATTEMPTS = 3  # at the sum of a round, each with fresh keys and without those that were lost in the one before
EVERYBODY = -1  # the number of the client whose upload stands for those of all

T = TypeVar("T")


@dataclass
class SecureRound:
    """Plays the steps of a secure sum with the clients that have trained, until there is a sum or too few are left."""

    inspection: Inspection
    secure: SecureSum
    this: Round
    ask: Callable[[Sequence[Job]], list[Reply]]
    found: Accepted = field(default_factory=Accepted)
    lost: set[int] = field(default_factory=set)  # clients that are not asked again in this round

    def collect(self) -> Accepted:
        """Return one upload that stands for all, or why there is none."""
        from protea.filters.secure.server_side import (  # cryptography takes a while to import
            TooFewSitesError,
            expect_keys,
        )

        keys = self._take(self.this.jobs, self.this.replies, lambda client, up: expect_keys(up))
        for attempt in range(ATTEMPTS):
            if attempt:
                again = {job.client: Named() for job in self.this.jobs if job.client not in self.lost}
                keys = self._step("keys", again, lambda client, up: expect_keys(up))
            self._refuse_copied(keys)
            if len(keys) < self.secure.least:
                short = f"secure_sum: {len(keys)} clients are left; {self.secure.least} at least must be in a sum."
                return self._without(short)
            tried = self.secure.attempt(self.this.jobs[0].round, keys)
            try:
                return self._summed(tried)
            except (TooFewSitesError, PayloadError) as error:
                self._without(str(error))
        return self.found

    def _summed(self, attempt: Attempt) -> Accepted:
        """Play the steps of one attempt, and return the upload that its sum stands for."""
        roster = attempt.roster()
        self._step("shares", dict.fromkeys(attempt.everyone.clients, roster), attempt.take_shares)
        if attempt.vouched:  # all must sign then: who cannot would end the next attempt too
            self.lost |= set(attempt.everyone.clients) - attempt.sealed.keys()
        self._step("masked", attempt.parcels(), self._in_time(attempt.take_masked), last=True)
        for client in attempt.odd():
            self._refuse(client, "its masked upload is not shaped as those of the others.")
        summed = attempt.summed()
        clients = sorted(attempt.masked)
        self._step("unmask", dict.fromkeys(clients, summed), attempt.take_unmasked)
        return self._accepted(attempt.total(), clients)

    def _accepted(self, total: Named, clients: Sequence[int]) -> Accepted:
        inspection = self.inspection
        method, server = inspection.method, inspection.server
        whole = self.secure.uploads_of(method.up, total, method.needs.sums, len(clients))
        payload = inspection.declared(whole.mean)
        method.check(server, payload)
        self.this.summed_loss = whole.loss
        failures = {client: why for client, why in self.found.failures.items() if client not in clients}
        refused = [client for client in self.found.refused if client not in clients]
        return Accepted([Upload(EVERYBODY, payload, whole.samples, len(clients))], failures, refused)

    def _step(
        self,
        step: SumStep,
        downs: Mapping[int, Named],
        read: Callable[[int, Named], T],
        last: bool = False,
    ) -> dict[int, T]:
        """Ask clients for a step, and return what was read of their replies.

        Clients that do not answer are lost.  Those that fail in the ``last`` thing that a sum needs of them are, too.
        """
        jobs = [Job(step, self.this.jobs[0].round, client, down) for client, down in downs.items()]
        replies = self.ask(jobs)
        self.this.sum_jobs += jobs
        self.this.sum_replies += replies
        found = self._take(jobs, replies, read)
        self.lost |= {reply.client for reply in replies if reply.away}
        if last:
            self.lost |= downs.keys() - found.keys()
        return found

    def _take(self, jobs: Sequence[Job], replies: Sequence[Reply], read: Callable[[int, Named], T]) -> dict[int, T]:
        """Read the reply to each job; note why others are not used."""
        answers, found = by_client(replies), {}
        for job in jobs:
            try:
                reply = the_reply_to(job, answers.get(job.client, []))
                self._refuse_large(reply)
                refuse_malformed(reply.up)
                found[job.client] = read(job.client, reply.up)
            except PayloadError as error:
                self._refuse(job.client, str(error))
            except ClientError as error:
                self.found.failures[job.client] = str(error)
        if jobs and jobs[0].task == "train":
            self.lost |= {job.client for job in jobs} - found.keys()
        return found

    def _in_time(self, read: Callable[[int, Named], None]) -> Callable[[int, Named], None]:
        """Let the masked uploads of late clients come when the round is over: what they shared makes up for them."""

        def read_unless_late(client: int, up: Named) -> None:
            if client in self.this.absent:
                self.lost.add(client)
            else:
                read(client, up)

        return read_unless_late

    def _refuse_large(self, reply: Reply) -> None:
        limit = self.inspection.limits.upload
        if reply.size > in_bytes(limit):
            raise PayloadError(f"{reply.size:,} bytes arrived; limits.upload is {limit}.")

    def _refuse_copied(self, keys: dict[int, Tensor]) -> None:
        """Drop all clients that came with a key of another, whoever of them had it first."""
        owners: dict[bytes, list[int]] = {}
        for client, pair in keys.items():
            for key in pair:
                owners.setdefault(key.numpy().tobytes(), []).append(client)
        for client in {client for those in owners.values() if len(those) > 1 for client in those}:
            del keys[client]
            self._refuse(client, "it has a key twice, or one of another client.")

    def _refuse(self, client: int, why: str) -> None:
        self.found.failures[client] = f"client {client}, round {self.this.jobs[0].round}: {why}"
        if client not in self.found.refused:
            self.found.refused.append(client)
        self.lost.add(client)

    def _without(self, short: str) -> Accepted:
        """Note why there is no sum."""
        self.found = Accepted([], self.found.failures, self.found.refused, short)
        return self.found
