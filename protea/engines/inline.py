"""One process, one client after another.  For debugging, and as the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from protea.clients.plan import WorkerPlan
from protea.clients.worker import Worker
from protea.config.sections import Engine
from protea.core.errors import ConfigError
from protea.engines.base import EngineBase
from protea.federation.jobs import Job, Reply, Watch, ignore


class Inline(EngineBase):
    """One process, one client after another.

    A worker may be given instead of a plan, so that its clients can be looked at afterwards.
    """

    def __init__(self, plan: WorkerPlan | Worker, settings: Engine | None = None) -> None:
        self.check(settings or Engine("inline"))
        self.worker = plan if isinstance(plan, Worker) else Worker(plan)

    @classmethod
    def check(cls, settings: Engine) -> None:
        super().check(settings)
        if settings.limit:
            raise ConfigError("engine.limit is set, and engine.name=inline cannot end a client.  Set it to processes.")

    def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
        replies = []
        for job in sorted(jobs, key=lambda job: job.client):
            own = {name: tensor.clone() for name, tensor in job.down.items()}  # clients may share what they are sent
            replies.append(self.worker.run(replace(job, down=own)))
            watch(replies[-1])
        return replies

    def save(self, directory: Path) -> None:
        self.worker.save(directory)

    def load(self, directory: Path) -> None:
        self.worker.load(directory)
