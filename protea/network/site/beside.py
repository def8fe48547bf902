"""What this site would have without the federation: a second model that it trains alone, on this machine.

With ``beside = true`` in ``site.toml``.  The model begins with the weights of the federated one, trains in the same
rounds on the same samples, and never leaves.  It trains while nobody asks for anything.

state/alone/client-.../    the second model after its last rounds
state/alone/gain.jsonl     by how much the federation is better, a line for each evaluation
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from protea.clients.builder import Builder
from protea.clients.durable import DurableWorker, kept_states, newest_state
from protea.clients.release import Release
from protea.clients.state_files import name_of
from protea.core.client import Client
from protea.core.errors import ClientError
from protea.core.method import Method
from protea.core.rng import Streams
from protea.engines.messages import job_to_bytes, reply_from_bytes, reply_to_bytes
from protea.evaluation.client_side import examine
from protea.evaluation.counts import unpacked_bits
from protea.federation.jobs import Job
from protea.federation.protect import OWN, Protect
from protea.methods.local import Local
from protea.network.site.directory import Site, SiteBuilder
from protea.network.site.gains import gains_of
from protea.runs.bootstrap import Differences, client_interval
from protea.runs.gain import ClientGain


class AloneBuilder(Builder):
    """Builds the site's client for training alone: nobody sees what it learns, so it needs no noise."""

    def __init__(self, site: Site) -> None:
        self.inner = SiteBuilder(site)

    def __call__(self, id: int, streams: Streams) -> Client:
        client = self.inner(id, streams)
        client.training = replace(client.training, dp=None)
        return client

    @property
    def device(self) -> str:
        return self.inner.device


class Beside:
    """The site's second model, and the comparison with the one of the federation."""

    def __init__(self, site: Site, federated: DurableWorker) -> None:
        self.site, self.federated = site, federated
        self.folder = gains_of(site.path).parent
        self.folder.mkdir(exist_ok=True)
        plan = replace(
            site.plan(),
            method=Local(),
            builder=AloneBuilder(site),
            local_prototypes=False,
            rules=(),
            metrics=(),
            answer="method",
            filters=(),
            release=Release(),
            system_randomness=False,
            unguarded="",
        )
        self.worker = DurableWorker(plan, self.folder, reply_to_bytes)

    @property
    def protected(self) -> bool:
        """Whether the federated client has a model trained alone anyway."""
        return isinstance(self.site.task.played, Protect)

    def behind(self) -> list[int]:
        """Give the rounds that the federated model was trained in, and this one not yet.

        Which rounds these are is known of the last few alone; if there are more, all rounds are taken for it.
        """
        if self.protected:
            return []
        theirs = [int(state.name) for state in kept_states(self.site.state / name_of(self.site.id))]
        newest = newest_state(self.folder, self.site.id)
        mine = 0 if newest is None else int(newest.name)
        if mine in theirs or not theirs:
            return [round for round in theirs if round > mine]
        return list(range(mine + 1, theirs[-1] + 1))

    def train_next(self) -> None:
        """Train in the next of these rounds, if there is one."""
        for round in self.behind()[:1]:
            job = Job("train", round, self.site.id)
            reply = reply_from_bytes(self.worker.answer(job, job_to_bytes(job)))
            if reply.error is not None:
                raise ClientError(reply.error)

    def compare(self, job: Job) -> ClientGain | None:
        """Compare both models after a round on the site's test samples; keep the result, for the site's screen.

        Return None where there are no test samples, or while this model has several rounds to catch up with.
        """
        if len(self.behind()) == 1:
            self.train_next()
        if self.behind():
            return None
        ours = self._right_in_federation(job)
        theirs = self._right_alone(job)
        if ours is None or theirs is None:
            return None
        low, high = client_interval(Differences.of((ours - theirs)[:, None]), self.site.id)
        found = ClientGain(self.site.id, len(ours), float(ours.mean()), float(theirs.mean()), low, high)
        self._keep(job.round, found)
        return found

    def _right_in_federation(self, job: Job) -> np.ndarray[Any, np.dtype[np.float64]] | None:
        task, worker = self.site.task, self.federated.worker
        self.federated.store.rewind(job.client, job.round + 1)
        client = worker.client(job.client)
        return right(task.played, client, worker.received(job, client), task.evaluation.rules, task.evaluation.answer)

    def _right_alone(self, job: Job) -> np.ndarray[Any, np.dtype[np.float64]] | None:
        if self.protected:
            client = self.federated.worker.client(job.client)
            twin = replace(client, model=client.memory[OWN], _cached=None)
            return right(Local(), twin, None)
        self.worker.store.rewind(job.client, job.round + 1)
        return right(Local(), self.worker.worker.client(job.client), None)

    def _keep(self, round: int, found: ClientGain) -> None:
        line = {
            "round": round,
            "samples": found.samples,
            "accuracy": found.accuracy,
            "alone": found.reference,
            "low": found.low,
            "high": found.high,
            "verdict": found.verdict,
        }
        with gains_of(self.site.path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def right(
    method: Method[Any, Any], client: Client, down: Any, rules: Sequence[Any] = (), answer: str = "method"
) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Return which test samples a client answers right, as 1 and 0; None where it has none."""
    if client.test is None or not len(client.test):
        return None
    local = answer != "method" or bool(rules)
    with client.rng.default("beside"):
        found = examine(method, client, down, local, rules, answer=answer, single=True)
    assert found.right is not None  # there are test samples
    return unpacked_bits(found.right)[: len(client.test)].to(torch.float64).numpy()
