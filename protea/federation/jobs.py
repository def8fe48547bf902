"""Jobs that the server gives to clients, their replies, and the protocol of the engine that carries both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

from protea.core.message import Named, nbytes

JobKind = Literal[
    "train", "evaluate",
    "answer",  # the shared test set
    "look",  # show prototypes
    "keys", "shares", "masked", "unmask",  # steps of a secure sum, after the training
]  # fmt: skip
SUM_STEPS: frozenset[JobKind] = frozenset({"keys", "shares", "masked", "unmask"})
CHANGING: frozenset[JobKind] = SUM_STEPS | {"train"}  # jobs after which a client is not what it was before


@dataclass(frozen=True)
class Job:
    """One task for one client in one round.  ``down`` is the packed payload sent along; empty if there is none."""

    task: JobKind
    round: int
    client: int
    down: Named = field(default_factory=dict)

    @cached_property
    def size(self) -> int:
        """Bytes of the tensors that are sent to the client."""
        return nbytes(self.down)


@dataclass(frozen=True)
class Reply:
    """The result of a job.  A client that fails gives a reply too, whose ``error`` says what went wrong."""

    client: int
    round: int
    up: Named = field(default_factory=dict)
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    process: int = 0  # id of the process that the client ran in; 0 = unknown
    memory: int = 0  # peak memory of that process, in bytes
    error: str | None = None
    refused: bool = False  # the error: what the client sent could not be read
    away: bool = False  # the error: the client sent nothing

    @cached_property
    def size(self) -> int:
        """Bytes of the tensors that came from the client."""
        return nbytes(self.up)


Watch = Callable[[Reply], None]


def ignore(reply: Reply) -> None:
    """Do nothing with a reply: the default of every ``watch`` argument."""


class JobEngine(Protocol):
    """An engine as the round loop sees it: it carries jobs to clients and their replies back."""

    def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
        """Run the jobs and return one reply for each, ordered by client.

        ``watch`` is called with every reply as soon as it arrives.
        """
        ...

    def save(self, directory: Path) -> None:
        """Write the state of every client that has one into a checkpoint's directory."""
        ...

    def load(self, directory: Path) -> None:
        """Restore the clients from what :meth:`save` wrote."""
        ...

    def close(self) -> None:
        """Release the engine's processes, files and connections."""
        ...
