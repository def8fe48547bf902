"""An experiment: all that decides a run's numbers, as frozen dataclasses; from TOML and back."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import tomli_w
from pydantic import NonNegativeInt, PositiveInt

from protea import plugins, tables
from protea.data.augment import Augment
from protea.data.partition_file import Given
from protea.data.schemes import Dirichlet
from protea.data.sources.digits import Digits
from protea.data.split import Split
from protea.engines import EngineSettings
from protea.errors import ConfigError, nearest
from protea.evaluation import Evaluation
from protea.faults import Faults, Limits
from protea.federation import participants
from protea.method import Method
from protea.methods.fedproto import FedProto
from protea.models.families import Member, Models, members
from protea.tables import Table, chosen, override, to_table
from protea.training import Training


@dataclass(frozen=True)
class Data:
    """``[data]``: which samples there are, and who has which."""

    source: Any = chosen("sources", "kind", Digits)
    partition: Any = chosen("partitions", "kind", Dirichlet)
    pool: Literal["train", "all"] = "train"  # of the source; "all" merges its test part in, as HtFLlib does
    samples: PositiveInt | None = None  # of the pool are used, drawn at random; all if not given
    public: NonNegativeInt = 0  # samples set aside, seen by all
    split: Split = field(default_factory=Split)  # of each client's samples
    augment: Augment = field(default_factory=Augment)
    seed: int | None = None  # of partition and split; the run's seed if not given


@dataclass(frozen=True)
class Checkpoint:
    """``[checkpoint]``: when the state of server and clients is written to the run directory."""

    every: PositiveInt = 10  # rounds; the last round always
    keep: PositiveInt = 2  # the newest; with one, there is none to go back to if it is damaged


@dataclass(frozen=True)
class Experiment:
    """All that decides a run's numbers."""

    rounds: PositiveInt = 20
    clients: PositiveInt = 10
    fraction: Annotated[float, pydantic.Field(gt=0, le=1)] = 1.0  # of the clients take part in a round
    seed: int = 1
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    failures: Literal["stop", "skip"] = "stop"  # when a client fails
    min_replies: NonNegativeInt = 1  # fewer good replies than this end the run; with 0 a round may pass without any
    method: Any = chosen("methods", "name", FedProto)
    data: Data = field(default_factory=Data)
    models: Models = field(default_factory=Models)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation = field(default_factory=Evaluation)
    engine: EngineSettings = field(default_factory=EngineSettings)
    faults: Faults = field(default_factory=Faults)
    limits: Limits = field(default_factory=Limits)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)


def load(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment in a TOML file, with ``a.b=c`` changes."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist.  examples/digits.toml is one to start from.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error
    return changed(table, overrides, str(path))


def changed(table: Table, overrides: Sequence[str], where: str) -> Experiment:
    """The experiment in the table of the file ``where``, with changes; what is wrong is blamed on one or the other."""
    result = override(table, overrides)
    try:
        return read(result, where)
    except ConfigError:
        if not overrides or not _good(table):
            raise
        return read(result, "command line")


def _good(table: Table) -> bool:
    try:
        read(table)
    except ConfigError:
        return False
    return True


def read(table: Table, where: str = "experiment") -> Experiment:
    """The experiment that a table describes, checked."""
    experiment: Experiment = tables.read(Experiment, table, where)
    check(experiment, where)
    return experiment


def dump(experiment: Experiment) -> str:
    """TOML from which :func:`load` gives the same experiment."""
    return tomli_w.dumps(to_table(experiment))


def method_label(method: Any) -> str:
    """``fedproto``, or ``fedproto@htfllib`` where the fields are just that variant's."""
    name = plugins.name_of("methods", type(method)).rpartition(":")[2].lower()
    for variant, changed in type(method).variants.items():
        if changed and method == type(method)(**changed):
            return f"{name}@{variant}"
    return name


def check(experiment: Experiment, where: str = "experiment") -> None:
    """Raise :class:`ConfigError` for what cannot run, before any work."""
    tables.check(experiment, where)
    if not isinstance(experiment.method, Method):
        raise ConfigError(f"{where}: method is {experiment.method!r}, which is not derived from protea.Method.")
    needs, name, models = experiment.method.needs, method_label(experiment.method), experiment.models
    try:
        plugins.find("engines", experiment.engine.name)
        family = members(models)
        if models.server is not None:
            Member.of(models.server)
    except ConfigError as error:
        raise type(error)(f"{where}: {error}") from error
    which = "models.members" if models.members else f"models.family={models.family}"
    known = {member.architecture for member in family} | ({models.server} if models.server else set())
    if models.channels_last != "auto" and (strange := sorted(set(models.channels_last) - known)):
        raise ConfigError(
            f"{where}: models.channels_last has {strange[0]!r}, which no model here is.  {nearest(strange[0], known)}"
        )
    if not hasattr(experiment.method, "up"):
        raise ConfigError(f"{where}: {name} does not say what travels.  Write: class {name}(Method[Down, Up]).")
    from_file = isinstance(experiment.data.partition, Given)  # which has its public set in it
    if needs.public_data and not experiment.data.public and not from_file:
        raise ConfigError(
            f"{where}: {name} needs public data, and data.public is 0.  Set, for example, data.public=500."
        )
    if needs.server_model and models.server is None:
        raise ConfigError(f"{where}: {name} needs a model on the server.  Set, for example, models.server=resnet18.")
    if needs.same_architecture and any(member != family[0] for member in family):
        raise ConfigError(
            f"{where}: {name} needs models that are all alike; {which} has several kinds.  "
            f"Set models.family to one architecture, such as cnn4."
        )
    if needs.same_head and len({member.head for member in family}) > 1:
        raise ConfigError(
            f"{where}: {name} needs heads that are all alike; {which} has heads of different shape.  "
            f"Use a family that differs in its bodies only, such as htfe8 or tiny5."
        )
    for rate in ("dropout", "late"):
        given = getattr(experiment.faults, rate)
        if isinstance(given, tuple | list) and len(given) != experiment.clients:
            raise ConfigError(
                f"{where}: faults.{rate} has {len(given)} rates for {experiment.clients} clients.  Give one each, "
                f"or a single number for all."
            )
    count = participants(experiment.clients, experiment.fraction)
    if experiment.min_replies > count:
        raise ConfigError(
            f"{where}: min_replies is {experiment.min_replies}, but only {count} of {experiment.clients} clients take "
            f"part in a round.  Lower min_replies, or raise fraction."
        )


__all__ = ["Data", "Experiment", "check", "dump", "load", "method_label", "override", "read", "to_table"]
