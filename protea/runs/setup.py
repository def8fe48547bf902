"""The parts that a run needs (data, clients, engine, round loop), and how they are built from an experiment."""

from __future__ import annotations

import tomllib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from protea.clients.factory import ClientFactory
from protea.clients.plan import WorkerPlan
from protea.clients.privacy import noise_filter, refuse_idle_budget, why_not
from protea.config import registry
from protea.config.attack import Attack
from protea.config.experiment import Experiment, experiment_to_toml, method_label
from protea.config.sections import Checkpoint, Evaluation, Limits
from protea.config.toml import to_table
from protea.config.units import in_bytes
from protea.core.client import Client
from protea.core.devices import choose_device
from protea.core.errors import ConfigError, PluginError
from protea.core.files import naming_file
from protea.core.method import Method
from protea.core.private_sgd import refuse_shared_statistics
from protea.core.rng import Streams
from protea.core.server import Server
from protea.core.shell import quoted
from protea.core.split_model import SplitModel
from protea.data import Federated, PartitionFile, federate
from protea.data.views import refuse_unread
from protea.federation.jobs import JobEngine, Watch, ignore
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.federation.played import attackers, evaluation_of, method_of
from protea.federation.privacy import TOGETHER
from protea.federation.record import Record
from protea.models.prompted import prompt_encoder
from protea.runs.directory import RunDirectory
from protea.runs.environment import environment
from protea.runs.settings_diff import UNWRITTEN, differing, flat, shown, under
from protea.runs.summary import summarise

ENGINE = ("name", "workers", "limit", "retries", "memory", "address", "gpus")
FREE = ("device", "checkpoint", *(f"engine.{name}" for name in ENGINE))  # may change when a run is resumed
LATER = {"limits": Limits(), "attack": Attack()}  # sections with settings that earlier versions did not write


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


def prepare(experiment: Experiment, given: PartitionFile | None = None) -> ClientFactory:
    """Load the data, split them among the clients, and build every model once: settings that cannot work fail here.

    ``given`` is the partition of the run that is resumed.
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
    if data.names is not None:
        federated = federated.called(data.names)
    if experiment.method.needs.public_data and not len(federated.public):
        raise ConfigError(f"{method_label(experiment.method)} needs public data, and the partition file has none.")
    if experiment.protect:
        refuse_nothing_held_out(federated)
    if experiment.method.needs.text_encoder is not None:
        refuse_without_encoder(experiment.method.needs.text_encoder)
    if experiment.attack.kind == "backdoor" and experiment.attack.target >= len(federated.dataset.names):
        raise ConfigError(
            f"attack.target is {experiment.attack.target}; the data have the classes 0 to "
            f"{len(federated.dataset.names) - 1}."
        )
    if (data.augment.crop or data.augment.flip) and len(federated.dataset.shape) != 3:
        raise ConfigError(f"data.augment is for images; samples here have the shape {federated.dataset.shape}.")
    factory = ClientFactory(
        federated,
        models=experiment.models.of_clients(federated.client_names()),
        training=experiment.training,
        augment=data.augment if data.augment.crop or data.augment.flip else None,
        rounds=experiment.rounds,
        device=choose_device(experiment.device),
        gives_public=experiment.method.needs.public_data,
        gives_test=experiment.evaluation.shared != "never",
        common_view=experiment.method.needs.common_view,
    )
    channels_last = factory.make.channels_last(experiment.training.batch)
    factory = replace(factory, models=replace(factory.models, channels_last=channels_last))
    with Streams(experiment.seed).default("try"):
        models = {member: factory.make(member) for member in dict.fromkeys(factory.members)}
        for model in models.values():
            refuse_unread(federated.dataset, model.view)
            if experiment.training.dp is not None:
                refuse_shared_statistics([model], model.name)
            refuse_budget(experiment, model, federated)
        if experiment.models.server is not None:
            refuse_unread(federated.dataset, factory.make("server").view)
    if factory.first_weights is not None:
        factory.first_weights.check(experiment.clients, [models[member] for member in factory.members])
    return factory


def refuse_budget(experiment: Experiment, model: SplitModel, data: Federated) -> None:
    """Raise :class:`PrivacyError` for a privacy budget with a model for which no guarantee can hold."""
    noise, private = noise_filter(experiment.filters), experiment.training.dp
    why = why_not(method_of(experiment), model, experiment.filters, private is not None)
    why = why or unguarded(experiment, data)
    refuse_idle_budget(noise, private, why, model.name)


def unguarded(experiment: Experiment, data: Federated) -> str:
    """Return why records of an experiment are not prepared one by one; an empty string where they are."""
    mixed = getattr(experiment.data.source, "mixes_records", False) or data.dataset.mixed or data.fills is not None
    return TOGETHER if mixed else ""


def refuse_without_encoder(name: str) -> None:
    """Raise if the encoder that the server reads names of classes with is not here, before any work."""
    try:
        prompt_encoder(name)
    except (ConfigError, PluginError) as error:
        raise type(error)(
            f"{error}\n  The server reads names of classes with method.encoder={name}.  Without it, "
            f"method.encoder=words needs nothing installed; it hashes words and knows no meanings."
        ) from error


def refuse_nothing_held_out(federated: Federated) -> None:
    """Raise :class:`ConfigError` if some client has no validation samples, which protect = true needs of all."""
    lacking = [client for client, share in enumerate(federated.shares) if not len(share.validation)]
    if lacking:
        few = len(federated.shares[lacking[0]].train)
        raise ConfigError(
            f"protect = true needs samples that each client holds out, and client {lacking[0]}, with {few} for "
            f"training, has none ({len(lacking)} of {len(federated.shares)} clients).  Raise data.split.validation, or "
            f"give clients more samples."
        )


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
