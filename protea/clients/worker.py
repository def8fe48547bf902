"""Run one job on one client.  Every engine ends up here, and only here."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protea.clients.offload import OffloadedStore, full_at
from protea.clients.plan import WorkerPlan
from protea.clients.privacy import leave_private, noise_filter, reason_of, refuse_idle_budget
from protea.clients.state_files import undone_if_it_fails
from protea.clients.store import ClientStore, MemoryStore
from protea.core.accounting import Event
from protea.core.client import Client
from protea.core.devices import torch_threads
from protea.core.errors import PayloadError, ProteaError
from protea.core.ledger import history_of
from protea.core.message import Named
from protea.core.payload import pack, unpack
from protea.core.process_memory import peak_memory
from protea.evaluation.client_side import examine, shared_answers, snapshot
from protea.federation.jobs import SUM_STEPS, Job, Reply
from protea.federation.privacy import Privacy
from protea.filters.base import Passage
from protea.filters.secure_sum import secure_sum_of

if TYPE_CHECKING:
    from protea.filters.secure.client_side import SummingClient


def open_store(plan: WorkerPlan) -> MemoryStore:
    """Make the store that a plan asks for: in memory, or offloaded where memory is limited."""
    if plan.memory is None:
        return MemoryStore(plan.make_client)
    return OffloadedStore(plan.make_client, full_at(plan.memory), plan.folder)


class Worker:
    """Runs jobs on the clients that live in this process."""

    def __init__(self, plan: WorkerPlan, store: ClientStore | None = None) -> None:
        self.plan = plan
        self.store = open_store(plan) if store is None else store
        self.method = plan.method
        self.secure = secure_sum_of(plan.filters)

    @property
    def clients(self) -> Mapping[int, Client]:
        """The clients that are in memory."""
        return self.store.clients

    def client(self, id: int) -> Client:
        """Give a client to look at, between jobs."""
        client = self.store.get(id)
        self.store.put_back(id)
        return client

    def run(self, job: Job) -> Reply:
        """Do a job.  Whatever goes wrong is an error in the reply: it is the client's failure, not the engine's."""
        started = time.perf_counter()
        try:
            with torch_threads(self.plan.threads):
                reply = self._run(job)
        except ProteaError as problem:
            reply = Reply(job.client, job.round, error=str(problem))
        except Exception:
            error = f"client {job.client}, round {job.round}:\n{traceback.format_exc()}"
            reply = Reply(job.client, job.round, error=error)
        seconds = time.perf_counter() - started
        return replace(reply, seconds=seconds, process=os.getpid(), memory=peak_memory())

    def repeat(self, client: int, jobs: Sequence[Job]) -> None:
        """Bring a client that this process has not met to where it was in another one, which is gone."""
        with torch_threads(self.plan.threads):
            self.client(client)
            for job in jobs:
                self._run(job)

    def _run(self, job: Job) -> Reply:
        client = self.store.get(job.client)
        try:
            client.begin(job.round, self.plan.streams(job.client).at("round", job.round))
            with client.rng.default(job.task):
                return self._reply(job, client)
        finally:
            self.store.put_back(job.client)

    def _reply(self, job: Job, client: Client) -> Reply:
        method, plan = self.method, self.plan
        down = None if job.task in SUM_STEPS else self.received(job, client)
        match job.task:
            case "keys" | "shares" | "masked" | "unmask":
                return Reply(job.client, job.round, self._secure(client).answer(job.task, job.down))
            case "evaluate":
                found = examine(
                    method,
                    client,
                    down,
                    plan.local_prototypes,
                    plan.rules,
                    plan.metrics,
                    answer=plan.answer,
                    single=plan.single_answers,
                    train=plan.train_accuracy,
                )
                return plan.release.reply(Reply(job.client, job.round, pack(plan.release.evaluation(found))))
            case "answer":
                answers = shared_answers(method, client, down, plan.local_prototypes, plan.rules, plan.answer)
                return Reply(job.client, job.round, answers)
            case "look":
                return Reply(job.client, job.round, pack(snapshot(client)))
            case "train":
                self._refuse_idle_budget(client)
                before = history_of(client.memory)
                with undone_if_it_fails(client) if plan.careful else nullcontext():
                    up, privacy = self._leaving(job, client, pack(method.local_update(client, down)), before)
                    said = {} if privacy is None else privacy.metrics()
                    if self.secure is not None:
                        begun = self._secure(client).begin(self._sums(client, up, privacy))
                        return plan.release.reply(Reply(job.client, job.round, begun, metrics=said))
                if client.losses and (privacy is None or not privacy.formal):  # a loss has no noise
                    said["loss"] = sum(client.losses) / len(client.losses)
                return plan.release.reply(Reply(job.client, job.round, up, len(client.train), said))

    def received(self, job: Job, client: Client) -> Any:
        """Return what the method's server has sent along with a job."""
        down = unpack(self.method.down, {name: t.to(client.device) for name, t in job.down.items()})
        if down is not None:
            down.check(client.classes, client.dim)
        return down

    def _leaving(self, job: Job, client: Client, up: Named, before: Sequence[Event]) -> tuple[Named, Privacy | None]:
        """Take out of an upload what the client keeps back, and apply the filters.

        ``before`` is what the client had spent before this round.
        """
        plan, release = self.plan, self.plan.release
        at = Passage(
            job.client, job.round, self.method.up, client.classes, client.dim, client.rng, plan.system_randomness
        )
        withhold = partial(release.withhold, at=at)
        found, privacy = leave_private(
            self.method,
            plan.filters,
            client,
            withhold(up),
            at,
            before,
            withhold if release.by_counts else None,
            plan.unguarded,
        )
        return release.upload(found, at), privacy

    def _refuse_idle_budget(self, client: Client) -> None:
        """Raise :class:`PrivacyError`, before anything is trained, for a budget that nothing can be spent on."""
        plan, noise, training = self.plan, noise_filter(self.plan.filters), client.training.dp
        if noise is not None or training is not None:
            why = reason_of(self.method, plan.filters, client, plan.unguarded, by_counts=plan.release.by_counts)
            refuse_idle_budget(noise, training, why, f"client {client.id}, round {client.round}")

    def _secure(self, client: Client) -> SummingClient:
        """Return the client's side of a secure sum."""
        if self.secure is None:
            raise PayloadError("a step of a secure sum was asked for, and the filter secure_sum is not set.")
        return self.secure.client(client, self.plan.system_randomness, self.plan.voucher)

    def _sums(self, client: Client, up: Named, privacy: Privacy | None) -> Named:
        """Return what a client adds to a secure sum: its upload, and what else it would tell in the clear."""
        assert self.secure is not None
        told = client.losses and (privacy is None or not privacy.formal)
        said = {"loss": sum(client.losses) / len(client.losses)} if told else {}
        beside = self.plan.release.reply(Reply(client.id, client.round, samples=len(client.train), metrics=said))
        loss = beside.metrics.get("loss", 0.0)
        return self.secure.sums_of(self.method.up, up, self.method.needs.sums, beside.samples, loss)

    def forget(self, id: int) -> None:
        """Forget a client; it is built again when it is next needed."""
        self.store.forget(id)

    def save(self, directory: Path) -> None:
        """Write the clients met here; the caller adds the others from where they were."""
        self.store.save(directory)

    def load(self, directory: Path) -> None:
        """Forget all clients, which go on from a directory."""
        self.store.load(directory)
