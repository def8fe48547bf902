"""What the server asks of clients, what they answer, and what carries both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

from protea.core.payload import Named, nbytes

JobKind = Literal["train", "evaluate", "answer", "look"]  # answer: on the shared test set; look: show prototypes


@dataclass(frozen=True)
class Job:
    """One task for one client.  ``down`` is a packed payload, empty if there is none."""

    task: JobKind
    round: int
    client: int
    down: Named = field(default_factory=dict)

    @cached_property
    def size(self) -> int:
        """Bytes of the tensors that go to the client."""
        return nbytes(self.down)


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
    memory: int = 0  # most bytes that this process ever had
    error: str | None = None
    refused: bool = False  # the error is that what came could not be read
    away: bool = False  # the error is that nothing came

    @cached_property
    def size(self) -> int:
        """Bytes of the tensors that came from the client."""
        return nbytes(self.up)


Watch = Callable[[Reply], None]


def ignore(reply: Reply) -> None:
    """Watch nothing."""


class JobEngine(Protocol):
    """Carries jobs to clients and replies back: all that the round loop knows of an engine."""

    def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
        """Run the jobs; one reply each, ordered by client.  ``watch`` sees replies as they come."""
        ...

    def save(self, directory: Path) -> None:
        """Write the state of every client that has one."""
        ...

    def load(self, directory: Path) -> None:
        """Let clients go on from what :meth:`save` wrote."""
        ...

    def close(self) -> None:
        """Give back processes, files and connections."""
        ...
