"""A federation over a network as a run: the task in the place of an experiment, sites in the place of clients."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from protea.config.sections import Checkpoint
from protea.config.toml import to_table
from protea.core.client import Client
from protea.core.errors import ConfigError
from protea.core.server import Server
from protea.core.shell import quoted
from protea.engines.flower.grid import Network
from protea.federation.jobs import Watch
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.federation.record import ClientData, DataRecord, Record
from protea.network.coordinator.directory import CoordinatorDirectory
from protea.network.coordinator.names import naming
from protea.network.public_data import public_samples
from protea.network.task import Task, new_server
from protea.runs.directory import RunDirectory
from protea.runs.environment import environment
from protea.runs.run import Run
from protea.runs.setup import RunSetup
from protea.runs.summary import summary


class CoordinatedRun(RunSetup):
    """The coordinator's side of a federation.  Sites keep their models and their state."""

    def __init__(
        self, coordinator: CoordinatorDirectory, task: Task, roster: Callable[[Federation, Network], Sequence[int]]
    ) -> None:
        self.coordinator, self.task, self.roster = coordinator, task, roster
        self.method, self.evaluation, self.rounds = task.played, task.evaluation, task.rounds
        self.checkpoint = Checkpoint(every=1, keep=2)
        self.network: Network | None = None  # once the server is up
        self.models: dict[int, str] = {}  # names of sites' models by number, as far as they have told
        self.described: dict[str, Any] | None = None  # the newest line on the data
        self.named = naming(lambda: [site.name for site in coordinator.guests.sites])

    def config(self) -> str:
        return tomli_w.dumps(self._settings())

    def _settings(self) -> dict[str, Any]:
        """The task in the form that reports and comparisons of runs read."""
        table = {**to_table(self.task), "clients": len(self.coordinator.guests.sites)}
        table["models"]["family"] = "the sites' own"
        table["data"] = {"source": "the sites' own data", "partition": "as they have it"}
        return tomllib.loads(tomli_w.dumps(table))  # as it will be read

    def environment(self) -> dict[str, Any]:
        return environment("cpu", threads=1)

    def refuse_other(self, directory: RunDirectory) -> None:
        stored = tomllib.loads(directory.config_path.read_text("utf-8"))
        if {**stored, "clients": 0} != {**self._settings(), "clients": 0}:  # sites may join
            raise ConfigError(
                f"task.toml is not as it was when {directory.path} was begun.  Undo the change, or move "
                f"{directory.path} away to begin anew; sites then need new bundles: "
                f"protea federation invite {quoted(self.coordinator.path)} --renew"
            )

    def refuse_outdated_bundles(self) -> None:
        """Raise :class:`ConfigError` if a site was given another task than there is now."""
        if old := self.coordinator.outdated():
            raise ConfigError(
                f"task.toml was changed since the bundle of {old[0]} was made.  Make new ones, and hand them over: "
                f"protea federation invite {quoted(self.coordinator.path)} --renew"
            )

    def prepare(self, directory: RunDirectory | None) -> None:
        """Nothing: data and models are at the sites."""

    def describe(self) -> dict[str, Any]:
        """Return who was invited by now; what models and samples they have is known to them alone."""
        clients = [
            ClientData(number, self.models.get(number, "its own"), None, [], [], [], site=site.name)
            for number, site in enumerate(self.coordinator.guests.sites)
        ]
        return DataRecord(list(self.task.classes), clients).line()

    def describe_anew(self, run: Run) -> None:
        """Add a line on the data, which takes the place of the one before, if sites or their models have come."""
        if run.directory is None:
            return
        if self.described is None:  # as the file has it: what came after a checkpoint was cut off
            self.described = [line for line in run.directory.metrics() if line["kind"] == "data"][-1]
        if (now := self.describe()) != self.described:
            with run.directory.writing():
                run.directory.append([now])
            self.described = now

    def keep(self, directory: RunDirectory) -> None:
        """Nothing: who has which samples is not known here."""

    def federation(self, watch: Watch) -> Federation:
        assert self.network is not None
        self.described = None
        task, network = self.task, self.network
        plan = FederationPlan(
            clients=len(self.coordinator.guests.sites),
            rounds=task.rounds,
            fraction=task.fraction,
            evaluation=task.evaluation,
            failures="skip",
            min_replies=task.quorum,
            quota="quorum",
            filters=task.filters,
            limits=task.limits,
        )
        loop = Federation(
            self.method,
            network,
            self.new_server(),
            plan,
            watch=watch,
            roster=lambda: self.roster(loop, network),
            named=self.named,
        )
        return loop

    def summary(self, records: Sequence[Record]) -> dict[str, Any]:
        found = summary(self.method, self.evaluation, list(records), self.task.classes)
        found["warnings"] = {kind: self.named(text) for kind, text in found["warnings"].items()}
        return found

    def new_server(self) -> Server:
        public = self.coordinator.public
        return new_server(self.task, None if public is None else public_samples(public, self.task))

    def new_client(self, client: int) -> Client:
        raise ConfigError("Models of a federation over a network are at its sites.  There: protea site predict")

    def end(self) -> None:
        """Tell the sites that all is done; a coordinator that is killed before this tells them when it is back."""
        assert self.network is not None
        self.network.dismiss({"round": self.task.rounds})

    def go_on(self, path: Path) -> str:
        return f"protea federation serve {quoted(self.coordinator.path)}"

    def close(self) -> None:
        """Nothing: the server stays up for the next try."""
