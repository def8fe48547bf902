"""An engine that notes what leaves one client, while a federation is played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from protea.clients.plan import WorkerPlan
from protea.clients.worker import Worker
from protea.core.message import Named
from protea.engines.inline import Inline
from protea.federation.jobs import Job, Reply, Watch, ignore


@dataclass(frozen=True)
class Departure:
    """What left a client in one round of training, and its model's weights before and after."""

    round: int
    down: Named  # that was sent to it
    up: Named  # as it left, after all filters
    samples: int  # that the client says it has for training
    before: Named
    after: Named


class Recorder(Inline):
    """Runs all jobs in this process, and keeps what one client is sent and sends.

    Weights are kept of its first round here and of the last.
    """

    def __init__(self, plan: WorkerPlan | Worker, client: int) -> None:
        super().__init__(plan)
        self.client = client
        self.departures: list[Departure] = []
        self.replies: list[Reply] = []  # to the question how accurate the client is

    def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
        replies = []
        for job in sorted(jobs, key=lambda job: job.client):
            before = self.weights() if job.client == self.client and job.task == "train" else {}
            reply = self.leaving(super().map([job])[0])
            replies.append(reply)
            watch(reply)
            if job.client == self.client and reply.error is None:
                self._keep(job, reply, before)
        return replies

    def leaving(self, reply: Reply) -> Reply:
        """Return a reply as it leaves its client."""
        return reply

    def weights(self) -> Named:
        """Copy the weights of the client's model."""
        return {name: t.detach().clone() for name, t in self.worker.client(self.client).model.state_dict().items()}

    def _keep(self, job: Job, reply: Reply, before: Named) -> None:
        if job.task == "evaluate":
            self.replies.append(reply)
        elif job.task == "masked":  # of a secure sum: two keys left before, and this is the upload
            self.departures[-1] = replace(self.departures[-1], up=reply.up)
        elif job.task == "train":
            if len(self.departures) > 1:
                self.departures[-1] = replace(self.departures[-1], before={}, after={})
            self.departures.append(Departure(job.round, job.down, reply.up, reply.samples, before, self.weights()))
