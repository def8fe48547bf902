"""A simulation: an experiment whose data are split here, and whose clients live on this machine or a cluster."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from protea.clients.factory import ClientFactory
from protea.clients.plan import WorkerPlan
from protea.config import registry
from protea.config.attack import Attack
from protea.config.experiment import Experiment, experiment_to_toml
from protea.config.sections import Limits
from protea.config.toml import to_table
from protea.config.units import in_bytes
from protea.core.client import Client
from protea.core.errors import ConfigError
from protea.core.files import naming_file
from protea.core.server import Server
from protea.data import PartitionFile
from protea.federation.jobs import JobEngine, Watch, ignore
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.federation.played import attackers, evaluation_of, method_of
from protea.federation.record import Record
from protea.runs.directory import RunDirectory
from protea.runs.environment import environment
from protea.runs.prepare import prepare, unguarded
from protea.runs.settings_diff import UNWRITTEN, differing, flat, shown, under
from protea.runs.setup import RunSetup
from protea.runs.summary import summarise

ENGINE = ("name", "workers", "limit", "retries", "memory", "address", "gpus")
FREE = ("device", "checkpoint", *(f"engine.{name}" for name in ENGINE))  # may change when a run is resumed
LATER = {"limits": Limits(), "attack": Attack()}  # sections with settings that earlier versions did not write


class Simulation(RunSetup):
    """An experiment: data are loaded and split among clients here, and clients live on this machine or a cluster."""

    def __init__(self, experiment: Experiment) -> None:
        experiment.check()
        self.experiment = experiment
        self.method, self.rounds = method_of(experiment), experiment.rounds
        self.evaluation, self.checkpoint = evaluation_of(experiment), experiment.checkpoint
        self.partition: PartitionFile | None = None  # of the run that is resumed
        self.engine: JobEngine | None = None

    def config(self) -> str:
        return experiment_to_toml(self.experiment)

    def environment(self) -> dict[str, Any]:
        return environment(self.factory.device, self.experiment.engine.threads)

    def refuse_other(self, directory: RunDirectory) -> None:
        """Raise unless the settings are the same, but for those of the machine and how often the run is saved."""
        stored = tomllib.loads(directory.config_path.read_text("utf-8"))
        later = {f.name: f.default for f in fields(Experiment) if f.default is not MISSING}  # than that run, maybe
        sections = {name: to_table(section) for name, section in LATER.items()}
        given = flat(to_table(self.experiment))
        usual = {name: value for name, value in UNWRITTEN.items() if name in given}
        there = {**usual, **flat(sections), **flat({**later, **stored})}
        free = [*FREE, "models.channels_last"] if isinstance(self.experiment.models.channels_last, str) else FREE
        if other := [name for name in differing([given, there]) if not under(name, free)]:
            found = ", ".join(
                f"{name} is {shown(given.get(name))}, {shown(there.get(name))} there" for name in other[:3]
            )
            raise ConfigError(
                f"This is not the experiment of {directory.path}: {found}.  Give the same one, or run it anew."
            )
        models = replace(self.experiment.models, channels_last=tuple(stored["models"]["channels_last"]))
        self.experiment = replace(self.experiment, models=models)

    def prepare(self, directory: RunDirectory | None) -> None:
        if directory is not None:
            self.partition = PartitionFile(str(directory.partition_path))
        registry.find("engines", self.experiment.engine_name).warm()  # workers start while data are loaded
        self.experiment = replace(self.experiment, models=self.factory.models)  # with channels_last decided
        if self.factory.first_weights is not None:
            self.start_server(self.new_server())  # what does not fit fails now

    def start_server(self, server: Server) -> None:
        """Let the method initialise a server's memory, and give it the first weights that it should have."""
        server.rounds = self.rounds
        with server.rng.at("round", 0).default("start"):
            self.method.start_server(server)
        if self.factory.first_weights is not None:
            self.factory.first_weights.into_server(server.memory)

    @cached_property
    def factory(self) -> ClientFactory:
        """The split data, and all else that clients are built from."""
        return prepare(self.experiment, self.partition)

    def describe(self) -> dict[str, Any]:
        return self.factory.describe()

    def keep(self, directory: RunDirectory) -> None:
        with naming_file(directory.partition_path):
            self.factory.data.save_partition(directory.partition_path)

    def federation(self, watch: Watch) -> Federation:
        self.engine = open_engine(self.experiment, self.factory)
        loop = federation(self.experiment, self.factory, self.engine, watch)
        if self.factory.first_weights is not None:
            loop.start()
            self.factory.first_weights.into_server(loop.server.memory)
        return loop

    def summary(self, records: Sequence[Record]) -> dict[str, Any]:
        return summarise(self.experiment, list(records), self.factory.data)

    def new_server(self) -> Server:
        view = self.factory.server_view(self.method.needs.server_model)
        return self.factory.server(self.experiment.seed, view)

    def new_client(self, client: int) -> Client:
        if not isinstance(client, int) or not 0 <= client < self.experiment.clients:
            raise ConfigError(
                f"There is no client {client!r}: this run has those from 0 to {self.experiment.clients - 1}."
            )
        return worker_plan(self.experiment, self.factory).make_client(client)

    def fill(self, client: int) -> Tensor | None:
        fills = self.factory.data.fills
        return None if fills is None else fills[client]

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
            self.engine = None


def worker_plan(experiment: Experiment, factory: ClientFactory) -> WorkerPlan:
    """Collect what every worker process needs to build its clients and run their jobs."""
    settings, evaluation = experiment.engine, evaluation_of(experiment)
    return WorkerPlan(
        method_of(experiment),
        factory,
        experiment.seed,
        settings.threads,
        evaluation.local_prototypes,
        rules=evaluation.rules,
        metrics=evaluation.metrics,
        answer=evaluation.answer,
        single_answers=True,
        train_accuracy=evaluation.train,
        filters=experiment.filters,
        unguarded=unguarded(experiment, factory.data),
        careful=experiment.failures == "skip",
        memory=None if settings.memory is None else in_bytes(settings.memory),
    )


def open_engine(experiment: Experiment, factory: ClientFactory) -> JobEngine:
    """Open the engine that an experiment names."""
    kind = registry.find("engines", experiment.engine_name)
    engine: JobEngine = kind(worker_plan(experiment, factory), experiment.engine)
    return engine


def federation(experiment: Experiment, factory: ClientFactory, engine: JobEngine, watch: Watch = ignore) -> Federation:
    """Build the round loop of an experiment on an open engine."""
    view = factory.server_view(experiment.method.needs.server_model)
    plan = FederationPlan(
        clients=experiment.clients,
        rounds=experiment.rounds,
        fraction=experiment.fraction,
        sampler=experiment.sampler,
        evaluation=evaluation_of(experiment),
        failures=experiment.failures,
        min_replies=experiment.min_replies,
        filters=experiment.filters,
        faults=experiment.faults,
        limits=experiment.limits,
        attackers=attackers(experiment),
        threads=experiment.engine.threads,
        single_answers=True,
    )
    server, test = factory.server(experiment.seed, view), factory.shared_test(view)
    return Federation(method_of(experiment), engine, server, plan, test=test, watch=watch)
