"""A federation of toys to hold methods to their contract: engines to play it on, and one run to compare them with."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import toy

from protea.clients.offload import OffloadedStore
from protea.clients.plan import WorkerPlan
from protea.clients.worker import Worker
from protea.config.sections import Engine
from protea.core.message import nbytes
from protea.core.method import Method
from protea.core.samples import Samples
from protea.core.server import Server
from protea.engines.inline import Inline
from protea.engines.processes.engine import Processes
from protea.federation.jobs import Job, JobEngine, Reply, Watch, ignore
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.federation.record import Cost, Record
from protea.runs import checkpoint

Make = Callable[[WorkerPlan], JobEngine]
Left = dict[str, Any]  # what a run leaves: its records but for cost, and its last checkpoint

ROUNDS, FRACTION = 2, 0.75  # of the run that others are compared with: a first round, and one that builds on it


def workers(count: int) -> Make:
    """Make an engine with so many worker processes."""
    return lambda plan: Processes(plan, Engine(workers=count))


class Backwards(Inline):
    """Runs the jobs in the opposite order, as a busy machine might."""

    def map(self, jobs: list[Job], watch: Watch = ignore) -> list[Reply]:
        return list(reversed([self.worker.run(job) for job in sorted(jobs, key=lambda job: -job.client)]))


class Tally(Inline):
    """Counts the bytes of what travels when clients train: down and up, round after round."""

    def __init__(self, plan: WorkerPlan) -> None:
        super().__init__(plan)
        self.travelled: list[int] = []

    def map(self, jobs: list[Job], watch: Watch = ignore) -> list[Reply]:
        replies = super().map(jobs, watch)
        if jobs[0].task == "train":
            self.travelled.append(sum(nbytes(job.down) for job in jobs))
            self.travelled.append(sum(sum(t.numel() * t.element_size() for t in r.up.values()) for r in replies))
        return replies


class Short(Backwards):
    """All clients are moved to disk after every round of jobs, with all their tensors."""

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


def builder(method: Method[Any, Any], build: Callable[..., Any] = toy.build) -> Callable[..., Any]:
    """Build the toy's clients with the models that the method needs."""
    return partial(build, same_architecture=method.needs.same_architecture)


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
    tensors, _ = loop.server.memory.flat()
    return {"records": lines, "server": {name: tensor.tolist() for name, tensor in tensors.items()}, **files(loop)}


def files(loop: Federation) -> dict[str, bytes]:
    """The files of a checkpoint of a federation."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder), loop)
        (place,) = checkpoint.complete(Path(folder))
        return {path.name: path.read_bytes() for path in sorted(place.iterdir())}


def play(method: Method[Any, Any], make: Make = Inline, **options: Any) -> Left:
    """Play the toy federation to its end."""
    loop = federation(method, make, **options)
    try:
        return left(loop, list(loop.run()))
    finally:
        loop.engine.close()


@dataclass(frozen=True)
class Watched:
    """A run in this process, with all that others are compared with."""

    left: Left
    records: list[Record]
    travelled: list[int]  # bytes down and up, round after round
    saved: dict[str, bytes]  # the files of its checkpoint after the first round


def watched(method: Method[Any, Any], **options: Any) -> Watched:
    """Play the toy federation in this process, and keep its first checkpoint."""
    engines: list[Tally] = []

    def make(plan: WorkerPlan) -> Tally:
        engines.append(Tally(plan))
        return engines[0]

    loop = federation(method, make, **options)
    records = [loop.play_round()]
    saved = files(loop)
    records += loop.run()
    return Watched(left(loop, records), records, engines[0].travelled, saved)


def resumed(run: Watched, method: Method[Any, Any], folder: Path, make: Make = Inline, **options: Any) -> Left:
    """What another federation leaves that goes on from the first round of a run."""
    place = folder / "checkpoints" / "000001"
    place.mkdir(parents=True)
    for name, content in run.saved.items():
        (place / name).write_bytes(content)
    loop = federation(method, make, **options)
    try:
        assert checkpoint.newest(place.parent) == place  # it is whole
        checkpoint.load(place, loop)
        loop.recall(run.records[:1])
        assert loop.server.round == 1
        return left(loop, [run.records[0], *loop.run()])
    finally:
        loop.engine.close()


@cache
def reference_run(method: Method[Any, Any]) -> Watched:
    """The run in this process that all others are compared with, made once."""
    found = watched(method)
    assert len(found.left) >= 3 + 3  # records, the server, and at least three clients
    return found


def reference(method: Method[Any, Any]) -> Left:
    """What the run leaves that all others are compared with."""
    return reference_run(method).left


@cache
def holding_out(
    method: Method[Any, Any], build: Callable[..., Any] | None = None, *, answer: str = "method", rules: Any = ()
) -> tuple[list[Record], Worker, Server]:
    """Two rounds of clients that hold samples out, made once: records but for cost, all clients, and the server."""
    build = build or builder(method, toy.build_holding_out)
    worker, server = toy.worker(method, build, answer=answer, rules=rules), toy.server()
    plan = FederationPlan(clients=toy.CLIENTS, rounds=2)
    plan = replace(plan, evaluation=replace(plan.evaluation, rules=rules))
    loop = Federation(method, Inline(worker), server, plan, test=Samples(toy.BLOBS, toy.TEST))
    return [replace(record, cost=Cost()) for record in loop.run()], worker, server
