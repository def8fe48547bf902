"""What a run is made of, and how that is put together from an experiment."""

from __future__ import annotations

import tomllib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from protea.clients.factory import ClientFactory
from protea.clients.plan import WorkerPlan
from protea.config import registry
from protea.config.experiment import Experiment, experiment_to_toml, method_label
from protea.config.sections import Checkpoint, Evaluation
from protea.config.toml import to_table
from protea.config.units import in_bytes
from protea.core.client import Client
from protea.core.devices import choose_device
from protea.core.errors import ConfigError
from protea.core.files import naming_file
from protea.core.method import Method
from protea.core.rng import Streams
from protea.core.server import Server
from protea.data import PartitionFile, federate
from protea.data.views import refuse_unread
from protea.federation.jobs import JobEngine, Watch, ignore
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.federation.record import Record
from protea.runs.directory import RunDirectory
from protea.runs.environment import environment
from protea.runs.settings_diff import differing, flat, shown, under
from protea.runs.summary import summarise

ENGINE = ("name", "workers", "limit", "retries", "memory", "address", "gpus")
FREE = ("device", "checkpoint", *(f"engine.{name}" for name in ENGINE))  # may differ where a run goes on


class RunSetup(ABC):
    """What a :class:`protea.Run` needs to know of the thing it runs: a simulation, or a federation over a network."""

    method: Method[Any, Any]
    evaluation: Evaluation
    checkpoint: Checkpoint
    rounds: int

    @abstractmethod
    def config(self) -> str:
        """The settings as TOML, for ``config.toml``; asked after :meth:`prepare`."""

    @abstractmethod
    def environment(self) -> dict[str, Any]:
        """Versions and machine, for ``environment.json``."""

    @abstractmethod
    def refuse_other(self, directory: RunDirectory) -> None:
        """Raise :class:`ConfigError` unless the run in a directory is of these settings."""

    @abstractmethod
    def prepare(self, directory: RunDirectory | None) -> None:
        """Get ready for the first round; what cannot work fails here.

        ``directory`` is that of a run which goes on: who has which samples is as it was.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The first line of the metrics: what each client has."""

    @abstractmethod
    def keep(self, directory: RunDirectory) -> None:
        """Write what else a new run leaves in its directory before its first round."""

    @abstractmethod
    def federation(self, watch: Watch) -> Federation:
        """The round loop, its engine open."""

    @abstractmethod
    def summary(self, records: Sequence[Record]) -> dict[str, Any]:
        """The headline numbers of the rounds so far."""

    @abstractmethod
    def new_server(self) -> Server:
        """The server as it is before the first round, without its state."""

    @abstractmethod
    def new_client(self, client: int) -> Client:
        """A client as it is before its first round, with its data; :class:`ConfigError` where none can be here."""

    def end(self) -> None:  # noqa: B027  most have nothing to do
        """Do what must be done before the run counts as ended."""

    def go_on(self, path: Path) -> str:
        """What to type to continue the run in a directory."""
        return f"protea resume {path}"

    @abstractmethod
    def close(self) -> None:
        """Give back what :meth:`federation` took."""


class Simulation(RunSetup):
    """An experiment: data are loaded and shared out here, and clients live on this machine or a cluster."""

    def __init__(self, experiment: Experiment) -> None:
        experiment.check()
        self.experiment = experiment
        self.method, self.rounds = experiment.method, experiment.rounds
        self.evaluation, self.checkpoint = experiment.evaluation, experiment.checkpoint
        self.partition: PartitionFile | None = None  # that the run had before it was interrupted
        self.engine: JobEngine | None = None

    def config(self) -> str:
        return experiment_to_toml(self.experiment)

    def environment(self) -> dict[str, Any]:
        return environment(self.factory.device, self.experiment.engine.threads)

    def refuse_other(self, directory: RunDirectory) -> None:
        """Where a run goes on, and how often it is saved, may differ; nothing else."""
        stored = tomllib.loads(directory.config_path.read_text("utf-8"))
        given, there = flat(to_table(self.experiment)), flat(stored)
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
        registry.find("engines", self.experiment.engine_name).warm()  # it may take long, and gets ready meanwhile
        self.experiment = replace(self.experiment, models=self.factory.models)  # channels_last as settled

    @cached_property
    def factory(self) -> ClientFactory:
        """The data shared out, and all that clients are built from."""
        return prepare(self.experiment, self.partition)

    def describe(self) -> dict[str, Any]:
        return self.factory.describe()

    def keep(self, directory: RunDirectory) -> None:
        with naming_file(directory.partition_path):
            self.factory.data.save_partition(directory.partition_path)

    def federation(self, watch: Watch) -> Federation:
        self.engine = open_engine(self.experiment, self.factory)
        return federation(self.experiment, self.factory, self.engine, watch)

    def summary(self, records: Sequence[Record]) -> dict[str, Any]:
        return summarise(self.experiment, list(records), self.factory.data)

    def new_server(self) -> Server:
        view = self.factory.server_view(self.method.needs.server_model)
        return self.factory.server(self.experiment.seed, view)

    def new_client(self, client: int) -> Client:
        if not 0 <= client < self.experiment.clients:
            raise ConfigError(
                f"There is no client {client}: this run has those from 0 to {self.experiment.clients - 1}."
            )
        return worker_plan(self.experiment, self.factory).make_client(client)

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
            self.engine = None


def prepare(experiment: Experiment, given: PartitionFile | None = None) -> ClientFactory:
    """Load and share out the data, and try every model once: what cannot work fails here.

    ``given`` is the partition that a run had before it was interrupted.
    """
    experiment.check()
    data = experiment.data
    federated = federate(
        data.source.load(),
        experiment.clients,
        given or data.partition,
        split=data.split,
        pool=data.pool,
        samples=data.samples,
        public=data.public,
        seed=experiment.seed if data.seed is None else data.seed,
    )
    if experiment.method.needs.public_data and not len(federated.public):
        raise ConfigError(f"{method_label(experiment.method)} needs public data, and the partition file has none.")
    if (data.augment.crop or data.augment.flip) and len(federated.dataset.shape) != 3:
        raise ConfigError(f"data.augment is for images; samples here have the shape {federated.dataset.shape}.")
    factory = ClientFactory(
        federated,
        models=experiment.models,
        training=experiment.training,
        augment=data.augment if data.augment.crop or data.augment.flip else None,
        rounds=experiment.rounds,
        device=choose_device(experiment.device),
        gives_public=experiment.method.needs.public_data,
        gives_test=experiment.evaluation.shared != "never",
    )
    channels_last = factory.make.channels_last(experiment.training.batch)
    factory = replace(factory, models=replace(factory.models, channels_last=channels_last))
    with Streams(experiment.seed).default("try"):
        for member in dict.fromkeys(factory.members):
            refuse_unread(federated.dataset, factory.make(member).view)
        if experiment.models.server is not None:
            refuse_unread(federated.dataset, factory.make("server").view)
    return factory


def worker_plan(experiment: Experiment, factory: ClientFactory) -> WorkerPlan:
    """What every worker process of a run needs to know."""
    settings = experiment.engine
    return WorkerPlan(
        experiment.method,
        factory,
        experiment.seed,
        settings.threads,
        experiment.evaluation.local_prototypes,
        rules=experiment.evaluation.rules,
        metrics=experiment.evaluation.metrics,
        filters=experiment.filters,
        careful=experiment.failures == "skip",
        memory=None if settings.memory is None else in_bytes(settings.memory),
    )


def open_engine(experiment: Experiment, factory: ClientFactory) -> JobEngine:
    """The engine that an experiment asks for, with its clients."""
    kind = registry.find("engines", experiment.engine_name)
    engine: JobEngine = kind(worker_plan(experiment, factory), experiment.engine)
    return engine


def federation(experiment: Experiment, factory: ClientFactory, engine: JobEngine, watch: Watch = ignore) -> Federation:
    """The round loop of an experiment on an engine that is open."""
    view = factory.server_view(experiment.method.needs.server_model)
    plan = FederationPlan(
        clients=experiment.clients,
        rounds=experiment.rounds,
        fraction=experiment.fraction,
        sampler=experiment.sampler,
        evaluation=experiment.evaluation,
        failures=experiment.failures,
        min_replies=experiment.min_replies,
        filters=experiment.filters,
        faults=experiment.faults,
        limits=experiment.limits,
        threads=experiment.engine.threads,
    )
    server, test = factory.server(experiment.seed, view), factory.shared_test(view)
    return Federation(experiment.method, engine, server, plan, test=test, watch=watch)
