"""The round loop.  Read this file first."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from protea.config.sections import Evaluation, Faults, Limits
from protea.core.devices import torch_threads
from protea.core.errors import ClientError, PayloadError, ProteaError
from protea.core.method import Method
from protea.core.payload import Named, nbytes, pack, unpack
from protea.core.process_memory import peak_memory
from protea.core.samples import Samples
from protea.core.server import Server
from protea.evaluation.client_side import Snapshot, serve
from protea.evaluation.scores import finite
from protea.evaluation.server_side import Judged, Together
from protea.federation.faults import Absence, draw_absences
from protea.federation.jobs import Job, JobEngine, Reply, Task, Watch, ignore
from protea.federation.ledger import Strikes, Traffic
from protea.federation.record import Cost, Record
from protea.federation.uploads import Accepted, accept, by_client, refuse_infinite

_IS: dict[Absence, str] = {"dropped out": "dropped out", "late": "was late", "quarantined": "is in quarantine"}
GROUP = 64  # clients whose answers on the shared test set are in memory at once


@dataclass
class Federation:
    """A method, an engine that reaches the clients, and a server."""

    method: Method[Any, Any]
    engine: JobEngine
    server: Server
    clients: int
    rounds: int
    fraction: float = 1.0
    evaluation: Evaluation = field(default_factory=Evaluation)
    failures: Literal["stop", "skip"] = "stop"
    min_replies: int = 1
    quota: str = "min_replies; with 0 the round passes without them"  # how the setting is called, for a message
    faults: Faults = field(default_factory=Faults)
    limits: Limits = field(default_factory=Limits)
    threads: int = 1
    test: Samples | None = None  # shared by all
    roster: Callable[[], Sequence[int]] | None = (
        None  # who can take part, asked before every round; all clients if none
    )
    watch: Watch = ignore
    on_refused: Callable[[Sequence[int]], None] = lambda clients: None  # told whose uploads were not as declared
    started: bool = field(default=False, init=False)
    peaks: dict[int, int] = field(default_factory=dict, init=False)  # memory of worker processes, by their ids

    def __post_init__(self) -> None:
        self.recall([])
        self.here: Sequence[int] = range(self.clients)

    def recall(self, records: Sequence[Record]) -> None:
        """Take up what earlier rounds left: how much has travelled, and whose uploads were refused."""
        self.traffic, self.strikes = Traffic.of(records), Strikes.of(records, self.limits.quarantine)

    def start(self) -> None:
        """Let the method fill the server's memory, once."""
        if not self.started:
            self.started, self.server.rounds = True, self.rounds
            with self._on_server("start"):
                self.method.start_server(self.server)

    def run(self) -> Iterator[Record]:
        """Run rounds ``server.round + 1 .. rounds`` and yield one record for each."""
        method, server = self.method, self.server
        self.start()
        while server.round < self.rounds:
            server.round += 1
            self.here = range(self.clients) if self.roster is None else self.roster()
            clock, failures = Clock(), dict[int, str]()
            chosen = choose(self.here, self.fraction, server)
            absent = self._absent(chosen)
            asked = [client for client in chosen if absent.get(client) in (None, "late")]
            judged = Judged(server.classes, server.dim)
            if self.evaluation.when == "before":
                with clock("evaluate"):
                    self._evaluate(chosen, judged, failures)

            with clock("train"):
                jobs = self._jobs("train", asked)
                replies = self._ask(jobs)
                answers = by_client(replies)
                away = {reply.client for reply in replies if reply.away}
                self.here = [client for client in self.here if client not in away] if away else self.here
            with clock("server"), self._on_server("aggregate"):
                found = accept(method, server, self.limits, jobs, answers, absent)
                self.on_refused(found.refused)
                self._enough(found, absent)
                if found.uploads:
                    method.aggregate(server, found.uploads)
                    refuse_infinite(server)
            failures |= found.failures
            self.strikes.add([client for client in chosen if client not in absent], found.refused)

            if self.evaluation.when == "after":
                with clock("evaluate"):
                    self._evaluate(chosen, judged, failures)

            for job in jobs:
                self.traffic.add(job.client, 0, nbytes(job.down))
            for reply in replies:
                self.traffic.add(reply.client, nbytes(reply.up), 0)
            yield Record(
                round=server.round,
                participants=chosen,
                loss=_mean([r.metrics["loss"] for r in replies if "loss" in r.metrics and r.client not in failures]),
                test=judged.scores("test"),
                validation=judged.scores("validation"),
                classes=judged.by_class(),
                shared=judged.shared(),
                server=judged.server,
                geometry=judged.geometry(),
                values={name: finite(value) for name, value in server.memory.items() if isinstance(value, float)},
                bytes_up=sum(nbytes(r.up) for r in replies),
                bytes_down=sum(nbytes(j.down) for j in jobs),
                total_up=self.traffic.up.total(),
                total_down=self.traffic.down.total(),
                failures=failures,
                refused=found.refused,
                absent={client: str(why) for client, why in absent.items()},
                cost=Cost(clock.seconds, self.memory),
                clients=self._clients(jobs, answers, judged),
            )

    @property
    def memory(self) -> int:
        """The most bytes that each process ever had, of all that were heard of."""
        return sum((self.peaks | {os.getpid(): peak_memory()}).values())

    def look(self) -> Named:
        """All prototypes as they are now, and one client's features: what a report draws."""
        server, found = self.server, Named()
        with self._on_server("look"):
            if (known := self.method.prototypes(self.method.broadcast(server, 0))) is not None:
                found = {f"global.{name}": tensor for name, tensor in pack(known).items()}
        all_there = self.evaluation.clients == "all"
        clients = self.here if all_there else choose(self.here, self.fraction, server)
        for reply in self._ask(self._jobs("look", clients), ignore):
            try:
                if reply.error is None and (shown := unpack(Snapshot, reply.up)) is not None:
                    shown.check(server.classes, server.dim)
            except PayloadError:
                continue  # a picture without it is better than none
            first = reply.client == clients[0]
            parts = {name: t for name, t in reply.up.items() if first or name.startswith("prototypes")}
            found |= {f"{reply.client}.{name}": tensor for name, tensor in parts.items()}
        return found

    def _jobs(self, task: Task, clients: Sequence[int]) -> list[Job]:
        """A job for each; clients that are sent the very same thing share one copy of it."""
        jobs, last, packed = [], None, pack(None)
        with self._on_server("broadcast"):
            for client in clients:
                down = self.method.broadcast(self.server, client)
                if down is not last:
                    last, packed = down, pack(down)
                jobs.append(Job(task, self.server.round, client, packed))
        return jobs

    def _absent(self, chosen: Sequence[int]) -> dict[int, Absence]:
        """Who of the chosen clients will not be heard in this round."""
        away = draw_absences(self.faults, chosen, self.clients, self.server.rng.at("round", self.server.round))
        return away | {client: "quarantined" for client in chosen if self.strikes.out(client)}

    def _enough(self, found: Accepted, absent: Mapping[int, Absence]) -> None:
        """Raise where failures are not put up with, or too few replies are left."""
        if found.failures and self.failures == "stop":
            raise ClientError(next(iter(found.failures.values())))
        if len(found.uploads) < self.min_replies:
            reasons = [*found.failures.values(), *(f"client {client} {_IS[why]}." for client, why in absent.items())]
            raise ClientError(
                f"round {self.server.round}: {len(found.uploads)} usable replies came, {self.min_replies} are needed "
                f"({self.quota}).  " + "  ".join(reasons)
            )

    def _evaluate(self, chosen: Sequence[int], judged: Judged, failures: dict[int, str]) -> None:
        """Judge clients on their own data, and now and then, with the server's model, on the shared test set."""
        server, settings = self.server, self.evaluation
        clients = self.here if settings.clients == "all" else chosen
        if settings.due(server.round, self.rounds):
            self._judge("evaluate", clients, judged, failures)
            with self._on_server("evaluate"):
                judged.known = self.method.prototypes(self.method.broadcast(server, 0))
                if self.test is not None:
                    judged.server = serve(self.method, server, self.test)
        if self.test is not None and settings.shared_due(server.round, self.rounds):
            judged.together = Together(self.test.y.cpu(), server.classes)
            for start in range(0, len(clients), GROUP):
                self._judge("answer", clients[start : start + GROUP], judged.together, failures)

    def _ask(self, jobs: Sequence[Job], watch: Watch | None = None) -> list[Reply]:
        """The engine's replies; their processes' memory is noted."""
        replies = self.engine.map(jobs, watch or self.watch)
        self.peaks |= {reply.process: reply.memory for reply in replies if reply.process}
        return replies

    def _judge(self, task: Task, clients: Sequence[int], judge: Judged | Together, failures: dict[int, str]) -> None:
        """Give each good reply to the judge, and the reasons against the others to ``failures``.

        Replies are read as they come, while clients are at work, and taken in the order of clients.
        """
        early: dict[int, tuple[Reply, Any]] = {}  # by the reply itself: an engine may give back another

        def read(reply: Reply) -> Any:
            try:
                if reply.error is not None:
                    raise ClientError(reply.error)
                if reply.round != self.server.round:
                    raise PayloadError(f"it is of round {reply.round}.")
                return judge.read(reply)
            except (ClientError, PayloadError) as error:
                return error

        def watch(reply: Reply) -> None:
            early[id(reply)] = reply, read(reply)
            self.watch(reply)

        for reply in self._ask(self._jobs(task, clients), watch):
            found = early[id(reply)][1] if id(reply) in early else read(reply)
            if not isinstance(found, ProteaError):
                judge.take(reply.client, found)
                continue
            why = str(found)
            if isinstance(found, PayloadError):
                why = f"client {reply.client}, round {self.server.round}: its evaluation cannot be used: {why}"
            if self.failures == "stop":
                raise ClientError(why) from found
            failures.setdefault(reply.client, why)

    def _clients(
        self, jobs: Sequence[Job], answers: Mapping[int, Sequence[Reply]], judged: Judged
    ) -> list[dict[str, Any]]:
        """One line for each client that took part or was judged."""
        found: dict[int, dict[str, Any]] = {}
        for job in jobs:
            own = answers.get(job.client, [])
            losses = [finite(reply.metrics["loss"]) for reply in own if "loss" in reply.metrics]
            found[job.client] = {
                "loss": losses[0] if losses else None,
                "up": sum(nbytes(reply.up) for reply in own),
                "down": nbytes(job.down),
                "total_up": self.traffic.up[job.client],
                "total_down": self.traffic.down[job.client],
            }
        for client, numbers in judged.clients().items():
            found.setdefault(client, {}).update(numbers)
        return [{"client": client, **numbers} for client, numbers in sorted(found.items())]

    @contextmanager
    def _on_server(self, purpose: str) -> Iterator[None]:
        """Draws of a server hook come from the stream ``server/round/12/aggregate``."""
        with torch_threads(self.threads), self.server.rng.at("round", self.server.round).default(purpose):
            yield


def participants(clients: int, fraction: float) -> int:
    """How many clients take part in a round."""
    return max(1, round(fraction * clients))


def choose(clients: Sequence[int], fraction: float, server: Server) -> list[int]:
    """Who of these takes part in this round."""
    count = participants(len(clients), fraction)
    generator = server.rng.at("round", server.round).generator("participants")
    return sorted(clients[place] for place in torch.randperm(len(clients), generator=generator)[:count].tolist())


class Clock:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, purpose: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[purpose] = self.seconds.get(purpose, 0.0) + time.perf_counter() - started


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
