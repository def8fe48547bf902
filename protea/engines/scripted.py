"""Clients that follow a script: test the server side of a method without training anything.

engine = Scripted(lambda job: Prototypes.of(features[job.client], labels[job.client], classes=3))
for record in Federation(MyMethod(), engine, server, FederationPlan(clients=2, rounds=5)).run(): ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from protea.core.payload import Payload, pack
from protea.engines.base import EngineBase
from protea.federation.jobs import Job, Reply, Watch, ignore

Script = Callable[[Job], Payload | Reply | None]


class Scripted(EngineBase):
    """Answers each job to train with what ``script(job)`` says: an upload, or a whole reply.

    Any other job, such as to evaluate, is for ``judge(job)``; without one nothing is found.
    ``jobs`` keeps what was asked, in order.
    """

    def __init__(self, script: Script, judge: Script | None = None, *, samples: int = 1) -> None:
        self.script, self.judge, self.samples = script, judge or (lambda job: None), samples
        self.jobs: list[Job] = []

    def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
        replies = []
        for job in sorted(jobs, key=lambda job: job.client):
            self.jobs.append(job)
            said = self.script(job) if job.task == "train" else self.judge(job)
            replies.append(said if isinstance(said, Reply) else Reply(job.client, job.round, pack(said), self.samples))
            watch(replies[-1])
        return replies
