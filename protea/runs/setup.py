"""What a run needs of the thing that it runs: a simulation on this machine, or a federation over a network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from protea.config.sections import Checkpoint, Evaluation
from protea.core.client import Client
from protea.core.method import Method
from protea.core.server import Server
from protea.core.shell import quoted
from protea.federation.jobs import Watch
from protea.federation.loop import Federation
from protea.federation.record import Record
from protea.runs.directory import RunDirectory


class RunSetup(ABC):
    """The thing that a :class:`protea.Run` runs: a simulation, or a federation over a network."""

    method: Method[Any, Any]
    evaluation: Evaluation
    checkpoint: Checkpoint
    rounds: int

    @abstractmethod
    def config(self) -> str:
        """Return the settings as TOML, for ``config.toml``; called after :meth:`prepare`."""

    @abstractmethod
    def environment(self) -> dict[str, Any]:
        """Return versions and machine, for ``environment.json``."""

    @abstractmethod
    def refuse_other(self, directory: RunDirectory) -> None:
        """Raise :class:`ConfigError` unless the run in a directory has these settings."""

    @abstractmethod
    def prepare(self, directory: RunDirectory | None) -> None:
        """Get ready for the first round; settings that cannot work fail here.

        ``directory`` is given when a run is resumed: every client then has the same samples as before.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the first line of ``metrics.jsonl``: the classes, and what each client has."""

    @abstractmethod
    def keep(self, directory: RunDirectory) -> None:
        """Write further files, such as the partition, into the directory of a new run before its first round."""

    @abstractmethod
    def federation(self, watch: Watch) -> Federation:
        """Open the engine and build the round loop; ``watch`` is called with every reply."""

    @abstractmethod
    def summary(self, records: Sequence[Record]) -> dict[str, Any]:
        """Compute the headline numbers of the rounds so far."""

    @abstractmethod
    def new_server(self) -> Server:
        """Build the server as it is before the first round, its memory empty."""

    @abstractmethod
    def new_client(self, client: int) -> Client:
        """Build a client as it is before its first round, with its data.

        Raise :class:`ConfigError` if there is no such client, or if its data are elsewhere.
        """

    def fill(self, client: int) -> Tensor | None:
        """Return what a client puts for missing numbers, of the shape of a sample; ``None`` where none is missing."""
        return None

    def end(self) -> None:  # noqa: B027  most setups have nothing to do here
        """Do what must be done before the run counts as ended."""

    def go_on(self, path: Path) -> str:
        """Return the command that resumes the run in a directory."""
        return f"protea resume {quoted(path)}"

    @abstractmethod
    def close(self) -> None:
        """Close the engine that :meth:`federation` opened."""
