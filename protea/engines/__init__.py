"""Engines carry jobs to clients and replies back.  A method cannot tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from protea.errors import ConfigError
from protea.payload import Named
from protea.units import Size

Task = Literal["train", "evaluate", "answer", "look"]  # answer: the shared test set; look: show prototypes


@dataclass(frozen=True)
class Job:
    """One task for one client.  ``down`` is a packed payload, empty if there is none."""

    task: Task
    round: int
    client: int
    down: Named = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What came of a job.  A client that fails is a value too: ``error`` says how."""

    client: int
    round: int
    up: Named = field(default_factory=dict)
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    process: int = 0  # that the client is in
    memory: int = 0  # most bytes that it ever had
    error: str | None = None
    refused: bool = False  # the error is that what came could not be read
    away: bool = False  # the error is that nothing came


Watch = Callable[[Reply], None]


def ignore(reply: Reply) -> None:
    """Watch nothing."""


class Engine(Protocol):
    def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
        """Run the jobs; one reply each, ordered by client.  ``watch`` sees replies as they come."""
        ...

    def save(self, directory: Path) -> None:
        """Write the state of every client that has one."""
        ...

    def load(self, directory: Path) -> None:
        """Let clients go on from what :meth:`save` wrote."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class EngineSettings:
    """``[engine]`` of an experiment."""

    name: str = "processes"
    workers: NonNegativeInt = 0  # processes or actors; 0 for one per core
    threads: PositiveInt = 1  # of torch, in each worker and on the server
    limit: NonNegativeFloat = 0.0  # seconds that a client may take for a job; 0 for as long as it takes
    retries: NonNegativeInt = 1  # for a job whose process was killed or took too long
    memory: Size | None = None  # of all workers together; clients beyond it wait on disk
    address: str = ""  # of a Ray cluster, such as 10.0.0.1:6379; empty for one on this machine
    gpus: NonNegativeInt = 0  # of the Ray cluster, shared out evenly among the workers

    def refuse_cluster(self) -> None:
        """For engines that know no cluster: a setting that would do nothing is an error."""
        for setting in ("address", "gpus"):
            if getattr(self, setting):
                raise ConfigError(
                    f"engine.{setting} is set, and engine.name={self.name} has no use for it.  Set engine.name=ray."
                )
