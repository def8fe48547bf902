"""An experiment: everything that decides a run's numbers, as frozen dataclasses; from TOML and back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import tomli_w
from pydantic import NonNegativeInt, PositiveInt

from protea.config import registry
from protea.config.attack import Attack
from protea.config.families import Models
from protea.config.search_path import add_folder_of
from protea.config.sections import Checkpoint, Data, Engine, Evaluation, Faults, Limits, participants
from protea.config.toml import Table, check_settings, override, read_toml, settings_from_table, to_table
from protea.config.words import label_with
from protea.core.choices import choice_of, list_of
from protea.core.errors import ConfigError
from protea.core.method import Method
from protea.core.training import Training
from protea.core.wrapping import Wrapper


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a run's numbers."""

    rounds: PositiveInt = 20
    clients: PositiveInt = 10
    fraction: Annotated[float, pydantic.Field(gt=0, le=1)] = 1.0  # of the clients take part in a round
    seed: int = 1
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    failures: Literal["stop", "skip"] = "stop"  # when a client fails
    min_replies: NonNegativeInt = 1  # fewer good replies than this end the run; with 0 a round may pass without any
    method: Any = choice_of("methods", "name", registry.default("methods", "fedproto"))
    alone: bool = False  # each client in a federation of its own: what the method's training does without the others
    protect: bool = False  # each client also trains alone, and answers by what is best on its held-out samples
    sampler: Any = choice_of("samplers", "name", registry.default("samplers", "uniform"), word=True)
    data: Data = field(default_factory=Data)
    models: Models = field(default_factory=Models)
    training: Training = field(default_factory=Training)
    filters: tuple[Any, ...] = list_of("filters", "name")  # of uploads, in the order in which clients apply them
    evaluation: Evaluation = field(default_factory=Evaluation)
    engine: Engine = field(default_factory=Engine)
    faults: Faults = field(default_factory=Faults)
    limits: Limits = field(default_factory=Limits)
    attack: Attack = field(default_factory=Attack)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)

    @property
    def participants(self) -> int:
        """How many clients take part in a round."""
        return participants(self.clients, self.fraction)

    @property
    def label(self) -> str:
        """The name of what is run, for people: ``fedproto``, ``fedproto@htfllib``, ``fedproto alone``."""
        return label_with(method_label(self.method), self.alone, self.protect, self.attack.kind != "none")

    @property
    def engine_name(self) -> str:
        """The engine that runs it: the one named, or by ``auto`` processes, unless something is of a notebook's cells.

        Other processes cannot import what a notebook or an interactive session defines.
        """
        if self.engine.name != "auto":
            return self.engine.name
        interactive = not hasattr(sys.modules["__main__"], "__file__")
        return "inline" if interactive and "__main__:" in experiment_to_toml(self) else "processes"

    def check(self, where: str = "experiment") -> None:
        """Raise :class:`ConfigError` for what cannot run, before any work; ``where`` begins the message."""
        check_settings(self, where)
        try:
            check_method(self.method)
            needs, name = self.method.needs, method_label(self.method)
            if self.protect and not self.data.split.validation and not self.data.from_file:
                raise ConfigError(
                    "protect = true chooses each client's answer on samples that it holds out, and "
                    "data.split.validation is 0.  Set, for example, data.split.validation=0.1."
                )
            self.engine.check()
            self.models.check(needs, name)
            self.data.check(needs, name)
            self.evaluation.check(self.method, name)
            self.faults.check(self.clients)
            self.attack.check(self.clients, self.method.up, name)
            for each in self.filters:
                each.check(self.method, name, self.filters, 1 if self.alone else self.participants)
            if self.min_replies > self.participants:
                raise ConfigError(
                    f"min_replies is {self.min_replies}, but only {self.participants} of {self.clients} clients take "
                    f"part in a round.  Lower min_replies, or raise fraction."
                )
        except ConfigError as error:
            raise type(error)(f"{where}: {error}") from error


def check_method(method: Any) -> None:
    """Refuse an object that is no method, or one that does not say what travels."""
    if not isinstance(method, Method):
        raise ConfigError(f"method is {method!r}, which is not derived from protea.Method.")
    if not hasattr(method, "up"):
        name = method_label(method)
        raise ConfigError(f"{name} does not say what travels.  Write: class {name}(Method[Down, Up]).")


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read the experiment in a TOML file, with ``a.b=c`` changes, and check it.

    ``module:name`` in it is also looked for beside the file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist.  examples/digits.toml is one to start from.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error
    add_folder_of(path)
    return experiment_with_changes(read_toml(text, str(path)), overrides, str(path))


def experiment_with_changes(table: Table, overrides: Sequence[str], where: str) -> Experiment:
    """Make the experiment of a table with changes; errors name the file ``where``, or the command line."""
    result = override(table, overrides)
    try:
        return experiment_from_table(result, where)
    except ConfigError:
        if not overrides or not _good(table):
            raise
        return experiment_from_table(result, "command line")


def _good(table: Table) -> bool:
    """Tell whether a table describes an experiment that can run."""
    try:
        experiment_from_table(table)
    except ConfigError:
        return False
    return True


def experiment_from_table(table: Table, where: str = "experiment") -> Experiment:
    """Make the experiment that a table describes, and check it."""
    experiment: Experiment = settings_from_table(Experiment, table, where)
    experiment.check(where)
    return experiment


def experiment_to_toml(experiment: Experiment) -> str:
    """Return TOML from which :func:`load_experiment` makes the same experiment."""
    return tomli_w.dumps(to_table(experiment))


def method_label(method: Any) -> str:
    """Return the name of a method: ``fedproto``, or ``fedproto@htfllib`` if its fields are just that variant's.

    The word of a wrapper stands behind it: ``fedproto alone``.
    """
    if isinstance(method, Wrapper):
        return f"{method_label(method.inner)} {method.word}"
    name = registry.name_of("methods", type(method)).rpartition(":")[2].lower()
    for variant, changed in type(method).variants.items():
        if changed and method == type(method)(**changed):
            return f"{name}@{variant}"
    return name
