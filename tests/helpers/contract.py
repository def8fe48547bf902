"""A federation of toys to hold methods to their contract: engines to play it on, and one run to compare them with."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import toy

from protea.clients.offload import OffloadedStore
from protea.clients.plan import WorkerPlan
from protea.clients.worker import Worker
from protea.config.sections import Engine
from protea.core.method import Method
from protea.core.samples import Samples
from protea.engines.inline import Inline
from protea.engines.processes.engine import Processes
from protea.federation.jobs import Job, JobEngine, Reply, Watch, ignore
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.runs import checkpoint

Make = Callable[[WorkerPlan], JobEngine]
Left = dict[str, Any]  # what a run leaves: its records but for cost, and its last checkpoint

ROUNDS, FRACTION = 3, 0.75  # of the run that others are compared with


def workers(count: int) -> Make:
    """Make an engine with so many worker processes."""
    return lambda plan: Processes(plan, Engine(workers=count))


class Backwards(Inline):
    """Runs the jobs in the opposite order, as a busy machine might."""

    def map(self, jobs: list[Job], watch: Watch = ignore) -> list[Reply]:
        return list(reversed([self.worker.run(job) for job in sorted(jobs, key=lambda job: -job.client)]))


class Short(Inline):
    """All clients are moved to disk after every job, with all their tensors."""

    def __init__(self, plan: WorkerPlan) -> None:
        self.store = OffloadedStore(plan.make_client, full=float("inf"))
        super().__init__(Worker(plan, self.store))

    def map(self, jobs: list[Job], watch: Watch = ignore) -> list[Reply]:
        replies = super().map(jobs, watch)
        for id, client in self.worker.clients.items():
            self.store.offload(id)
            assert not any(tensor.untyped_storage().resizable() for tensor in client.tensors() if tensor.numel())
        return replies


class Forgetful(Inline):
    """Client 2 never answers in round 1."""

    def map(self, jobs: list[Job], watch: Watch = ignore) -> list[Reply]:
        replies = super().map(jobs, watch)
        if jobs[0].round == 1 and jobs[0].task == "train":
            return [Reply(2, r.round, error="client 2 did not answer") if r.client == 2 else r for r in replies]
        return replies


def builder(method: Method[Any, Any]) -> Callable[..., Any]:
    """Build the toy's clients with the models that the method needs."""
    return partial(toy.build, same_architecture=method.needs.same_architecture)


def federation(
    method: Method[Any, Any], make: Make = Inline, *, build: Callable[..., Any] | None = None, **options: Any
) -> Federation:
    """The toy federation on an engine."""
    plan = FederationPlan(**{"clients": toy.CLIENTS, "rounds": ROUNDS, "fraction": FRACTION} | options)
    engine = make(toy.plan(method, build or builder(method), seed=7))
    return Federation(method, engine, toy.server(), plan, test=Samples(toy.BLOBS, toy.TEST))


def left(loop: Federation, records: list[Any]) -> Left:
    """What a federation leaves after these records."""
    lines = [line for record in records for line in record.lines()]
    for line in lines:
        line.pop("cost", None)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder), loop)
        (place,) = checkpoint.complete(Path(folder))
        files = {path.name: path.read_bytes() for path in sorted(place.iterdir())}
    tensors, _ = loop.server.memory.flat()
    return {"records": lines, "server": {name: tensor.tolist() for name, tensor in tensors.items()}, **files}


def play(method: Method[Any, Any], make: Make = Inline, **options: Any) -> Left:
    """Play the toy federation to its end."""
    loop = federation(method, make, **options)
    try:
        return left(loop, list(loop.run()))
    finally:
        loop.engine.close()


@cache
def reference(method: Method[Any, Any]) -> Left:
    """The run in this process that all others are compared with, made once."""
    found = play(method)
    assert len(found) >= 3 + 3  # records, the server, and at least three clients
    return found
