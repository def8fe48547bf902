"""The round loop.  Read this file first."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch

from protea.data.samples import Samples
from protea.engines import Engine, Job, Reply, Task, Watch, ignore
from protea.errors import ClientError, PayloadError
from protea.evaluation import Evaluation, Judged, Score, Shared, Together, serve
from protea.method import Method, Upload
from protea.payload import nbytes, pack, unpack
from protea.server import Server
from protea.worker import threads

GROUP = 64  # clients whose answers on the shared test set are in memory at once


@dataclass(frozen=True)
class Record:
    """What happened in one round.  All but ``cost`` is equal in equal runs."""

    round: int
    participants: list[int]
    loss: float | None
    test: dict[str, Score]  # by rule; empty in rounds without evaluation
    validation: dict[str, Score]
    clients: list[dict[str, Any]]  # each client's own counts
    shared: dict[str, Shared]  # on the shared test set, by rule; empty in rounds without it
    server: dict[str, float]  # a model on the server, on the shared test set, by rule
    bytes_up: int
    bytes_down: int
    failures: dict[int, str]
    cost: dict[str, float]  # seconds

    @property
    def accuracy(self) -> float | None:
        """By the method's own rule on the clients' test parts, every sample counting once."""
        return self.test["method"].weighted if self.test else None

    def lines(self) -> list[dict[str, Any]]:
        """The record as plain values: a line for the round, and one for each client evaluated."""
        whole = asdict(self)
        clients = whole.pop("clients")
        failures = {str(client): why for client, why in whole.pop("failures").items()}
        line = {"kind": "round", "accuracy": self.accuracy, **whole, "failures": failures}
        return [line, *({"kind": "client", "round": self.round, **client} for client in clients)]

    @classmethod
    def read(cls, lines: Iterable[Mapping[str, Any]]) -> list[Record]:
        """The records that :meth:`lines` wrote."""
        records: list[Record] = []
        for line in lines:
            values = {k: v for k, v in line.items() if k not in ("kind", "accuracy")}
            if line["kind"] == "client":
                records[-1].clients.append({k: v for k, v in values.items() if k != "round"})
                continue
            for part in ("test", "validation"):
                values[part] = {rule: Score(**score) for rule, score in values[part].items()}
            values["shared"] = {rule: Shared(**score) for rule, score in values["shared"].items()}
            values["failures"] = {int(client): why for client, why in values["failures"].items()}
            records.append(cls(**values, clients=[]))
        return records


@dataclass
class Federation:
    """A method, an engine that reaches the clients, and a server."""

    method: Method[Any, Any]
    engine: Engine
    server: Server
    clients: int
    rounds: int
    fraction: float = 1.0
    evaluation: Evaluation = field(default_factory=Evaluation)
    failures: Literal["stop", "skip"] = "stop"
    min_replies: int = 1
    threads: int = 1
    test: Samples | None = None  # shared by all
    watch: Watch = ignore
    started: bool = field(default=False, init=False)

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
            clock = Clock()
            judged = Judged()
            if self.evaluation.when == "before":
                with clock("evaluate"):
                    judged = self._evaluate()

            chosen = choose(self.clients, self.fraction, server)
            with clock("train"):
                jobs = self._jobs("train", chosen)
                replies = self.engine.map(jobs, self.watch)
            with clock("server"), self._on_server("aggregate"):
                uploads, failures = self._accept(chosen, replies)
                method.aggregate(server, uploads)

            if self.evaluation.when == "after":
                with clock("evaluate"):
                    judged = self._evaluate()

            yield Record(
                round=server.round,
                participants=chosen,
                loss=_mean([r.metrics["loss"] for r in replies if "loss" in r.metrics]),
                test=judged.scores("test"),
                validation=judged.scores("validation"),
                clients=judged.clients(),
                shared=judged.shared.scores() if judged.shared else {},
                server=judged.server,
                bytes_up=sum(nbytes(r.up) for r in replies),
                bytes_down=sum(nbytes(j.down) for j in jobs),
                failures=failures | judged.failures(),
                cost=clock.seconds,
            )

    def _jobs(self, task: Task, clients: Sequence[int]) -> list[Job]:
        with self._on_server("broadcast"):
            return [Job(task, self.server.round, c, pack(self.method.broadcast(self.server, c))) for c in clients]

    def _accept(self, chosen: Sequence[int], replies: Sequence[Reply]) -> tuple[list[Upload[Any]], dict[int, str]]:
        """Uploads that are as declared, and why the others are not used."""
        if [reply.client for reply in replies] != list(chosen):
            raise PayloadError(f"Replies of clients {[r.client for r in replies]} arrived; {list(chosen)} were asked.")
        uploads, failures = [], {}
        for reply in replies:
            try:
                if reply.error is not None:
                    raise ClientError(reply.error)
                payload = unpack(self.method.up, {name: t.to(self.server.device) for name, t in reply.up.items()})
                if payload is not None:
                    payload.check(self.server.classes, self.server.dim)
                elif self.method.up is not type(None):
                    raise PayloadError(f"nothing arrived, {self.method.up.__name__} was expected.")
                if reply.samples < 1:
                    raise PayloadError(f"{reply.samples} samples were reported; at least one is needed.")
                self.method.check(self.server, payload)
                uploads.append(Upload(reply.client, payload, reply.samples))
            except PayloadError as error:
                failures[reply.client] = f"client {reply.client}, round {self.server.round}: {error}"
            except ClientError as error:
                failures[reply.client] = str(error)
        if failures and self.failures == "stop":
            raise ClientError(next(iter(failures.values())))
        if len(uploads) < self.min_replies:
            raise ClientError(
                f"round {self.server.round}: {len(uploads)} of {len(replies)} clients replied, {self.min_replies} "
                f"are needed (min_replies).  " + "  ".join(failures.values())
            )
        return uploads, failures

    def _evaluate(self) -> Judged:
        """Judge all clients on their own data, and now and then, with the server's model, on the shared test set."""
        judged, settings, everyone = Judged(), self.evaluation, range(self.clients)
        if settings.due(self.server.round, self.rounds):
            judged.own = self._ask("evaluate", everyone)
            if self.test is not None:
                with self._on_server("evaluate"):
                    judged.server = serve(self.method, self.server, self.test)
        if self.test is not None and settings.shared_due(self.server.round, self.rounds):
            judged.shared = Together(self.test.y.cpu())
            for start in everyone[::GROUP]:
                for reply in self._ask("answer", everyone[start : start + GROUP]):
                    judged.shared.add(reply)
        return judged

    def _ask(self, task: Task, clients: Sequence[int]) -> list[Reply]:
        replies = self.engine.map(self._jobs(task, clients), self.watch)
        for reply in replies:
            if reply.error is not None and self.failures == "stop":
                raise ClientError(reply.error)
        return replies

    @contextmanager
    def _on_server(self, purpose: str) -> Iterator[None]:
        """Draws of a server hook come from the stream ``server/round/12/aggregate``."""
        with threads(self.threads), self.server.rng.at("round", self.server.round).default(purpose):
            yield


def participants(clients: int, fraction: float) -> int:
    """How many clients take part in a round."""
    return max(1, round(fraction * clients))


def choose(clients: int, fraction: float, server: Server) -> list[int]:
    """Who takes part in this round."""
    count = participants(clients, fraction)
    generator = server.rng.at("round", server.round).generator("participants")
    return sorted(torch.randperm(clients, generator=generator)[:count].tolist())


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
