"""The state of the round that is being played."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from protea.core.errors import ClientError, PayloadError
from protea.evaluation.server_side import Judged, Together
from protea.federation.faults import Absence
from protea.federation.jobs import Job, Reply, Watch


class Clock:
    """A stopwatch: ``with clock("train"):`` adds the seconds spent within to ``clock.seconds["train"]``."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, purpose: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[purpose] = self.seconds.get(purpose, 0.0) + time.perf_counter() - started


@dataclass
class Round:
    """The round that is being played: its participants, their jobs and replies, and the evaluation so far."""

    chosen: list[int]  # participants, ascending
    absent: dict[int, Absence]  # participants whose work is not used, through no fault of it
    judged: Judged
    clock: Clock = field(default_factory=Clock)
    trained: bool = False  # replies are there already: the clients were asked while the round before was evaluated
    jobs: list[Job] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)  # by client, why its work is not used
    refused: list[int] = field(default_factory=list)  # clients whose upload is not what the method declares
    changed: list[int] = field(default_factory=list)  # clients whose upload was changed when seen beside the others
    sum_jobs: list[Job] = field(default_factory=list)  # of the steps of a secure sum
    sum_replies: list[Reply] = field(default_factory=list)
    summed_loss: float | None = None  # mean over clients, where a secure sum shows nothing else

    @property
    def asked(self) -> list[int]:
        """The clients that are asked to train: late ones train too, but their upload is not used."""
        return [client for client in self.chosen if self.absent.get(client) in (None, "late")]

    @property
    def loss(self) -> float | None:
        """The mean training loss of the clients whose upload was used."""
        if self.summed_loss is not None:
            return self.summed_loss
        used = [r.metrics["loss"] for r in self.replies if "loss" in r.metrics and r.client not in self.failures]
        return sum(used) / len(used) if used else None


@dataclass
class Reader:
    """Parses evaluations as they arrive, while other clients are still at work."""

    round: int
    judge: Judged | Together
    seen: Watch  # called with every reply
    early: dict[int, tuple[Reply, Any]] = field(default_factory=dict)  # by object id: an engine may return another

    def watch(self, reply: Reply) -> None:
        """Parse a reply that has arrived, if it is of this round."""
        if reply.round == self.round:
            self.early[id(reply)] = reply, self.read(reply)
        self.seen(reply)

    def found(self, reply: Reply) -> Any:
        """Return what a reply has, or the error that it is not used for."""
        return self.early[id(reply)][1] if id(reply) in self.early else self.read(reply)

    def read(self, reply: Reply) -> Any:
        """Parse a reply; return the error if that fails."""
        try:
            if reply.error is not None:
                raise ClientError(reply.error)
            if reply.round != self.round:
                raise PayloadError(f"it is of round {reply.round}.")
            return self.judge.read(reply.up)
        except (ClientError, PayloadError) as error:
            return error
