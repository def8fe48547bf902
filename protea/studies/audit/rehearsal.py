"""Some rounds of one client with nobody listening: what would leave, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from protea.clients.plan import WorkerPlan
from protea.core.errors import ClientError
from protea.core.payload import pack, unpack
from protea.core.server import Server
from protea.data import Dataset, Share, Texts
from protea.data.views import view_samples
from protea.evaluation.examination import Examination
from protea.federation.jobs import Job, JobKind, Reply
from protea.studies.audit.recorder import Recorder
from protea.studies.audit.shadows import Told
from protea.studies.audit.subject import Subject


@dataclass(frozen=True)
class Rehearsal:
    """A client that is not in any federation yet, and a server that has no other."""

    name: str  # such as "site north"
    plan: WorkerPlan
    client: int
    server: Server  # started
    aggregate: Callable[[Server, Reply], None]  # what the server does with the one upload
    dataset: Dataset
    share: Share
    reports: bool  # answers how accurate it is
    views: Path | None = None  # where what a model sees of texts is kept

    def play(self, rounds: int, told: Told) -> Recorder:
        """Train so many rounds, evaluate after the last, and note what would leave."""
        recorder, server = Recorder(self.plan, self.client), self.server
        for round in range(1, rounds + 1):
            told(f"round {round}", round - 1, rounds)
            server.round = round
            self.aggregate(server, self._ask(recorder, "train", round))
        if self.reports:
            self._ask(recorder, "evaluate", rounds)
        told("rounds", rounds, rounds)
        return recorder

    def _ask(self, recorder: Recorder, task: JobKind, round: int) -> Reply:
        down = pack(self.plan.method.broadcast(self.server, self.client))
        (reply,) = recorder.map([Job(task, round, self.client, down)])
        if reply.error is not None:
            raise ClientError(f"A round of {self.name} failed: {reply.error}")
        return reply

    def subject(self, rounds: int, told: Told, **settings: Any) -> Subject:
        """Play some rounds, and return what is attacked."""
        recorder = self.play(rounds, told)
        rows = torch.cat([self.share.train, self.share.validation, self.share.test])
        model, texts = recorder.worker.client(self.client).model, self.dataset.x
        return Subject(
            self.name,
            self.dataset.names,
            view_samples(self.dataset, rows, model.view, device=self.plan.builder.device, cache=self.views),
            len(self.share.train),
            self.plan,
            self.client,
            recorder.departures,
            [found for reply in recorder.replies if (found := unpack(Examination, reply.up)) is not None],
            rounds,
            seed_known=not isinstance(self.plan.seed, bytes),
            attacked=(
                f"Attacked is what would leave in the first {rounds} rounds, after all filters.  Nothing was sent: the "
                f"client was trained here, and a server without other clients answered it.",
                "Other records are those that the client holds out for validation and test.",
            ),
            text=(lambda row: next(iter(texts.take(rows[row : row + 1])))) if isinstance(texts, Texts) else None,
            settings={**settings, "model": model.name},
        )
