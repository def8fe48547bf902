"""The task of a federation over a network: what all parties agree on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tomli_w
import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from safetensors.torch import save

from protea.config import registry
from protea.config.experiment import method_label
from protea.config.families import AdapterKind, Models
from protea.config.sections import Evaluation, Limits
from protea.config.toml import Table, override, read_toml, settings_from_table, to_table
from protea.config.words import ALONE, Protocol
from protea.core.choices import choice_of, list_of
from protea.core.errors import ConfigError
from protea.core.method import Method
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.server import Server
from protea.core.training import Training
from protea.data.convert import to_inputs
from protea.federation.played import played_method
from protea.models.maker import ModelMaker

MONTH = 30 * 24 * 3600.0  # seconds
LARGEST: dict[str, float] = {  # what a task may ask of its sites
    "rounds": 1_000_000,
    "deadline": MONTH,
    "patience": MONTH,
    "models.dim": 65_536,
    "training.epochs": 10_000,
    "training.batch": 1_000_000,
    "classes": 100_000,
}
NAME = 200  # characters of a class's name, at most


@dataclass(frozen=True)
class SharedSpace(Models):
    """``[models]`` of a task: the space of features that all sites share; the models in it are the sites' own."""

    dim: PositiveInt = 128
    adapter: AdapterKind = "linear"


@dataclass(frozen=True)
class SiteEvaluation(Evaluation):
    """``[evaluation]`` of a task: on each site's own samples, and nothing about a single sample leaves it."""

    shared: Literal["never", "last"] | PositiveInt = "never"
    snapshots: NonNegativeInt = 0
    protocol: Protocol = "final"  # sites keep the models of the last round, not of one that was chosen


@dataclass(frozen=True)
class Task:
    """The content of ``task.toml``."""

    classes: tuple[str, ...]  # names, in the order of their labels
    rounds: PositiveInt = 50
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0  # of the sites that are there take part in a round
    quorum: PositiveInt = 2  # sites that must be there, and must have answered, for a round to count
    deadline: PositiveFloat = 3600.0  # seconds that a site has for its answer; then the round goes on without it
    late: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0  # times the usual, then a site is late; 0: never
    patience: PositiveFloat = 60.0  # seconds that a round waits for a site that is not connected
    seed: int = 1
    shape: tuple[PositiveInt, ...] = ()  # of a sample; for methods with public data or a model on the server
    method: Any = choice_of("methods", "name", registry.default("methods", "fedproto"))
    protect: bool = False  # each site also trains alone, and answers by what is best on its held-out samples
    models: SharedSpace = field(default_factory=SharedSpace)
    training: Training = field(default_factory=Training)  # a site may set its own
    evaluation: SiteEvaluation = field(default_factory=SiteEvaluation)
    filters: tuple[Any, ...] = list_of("filters", "name")  # of uploads, in the order in which sites apply them
    limits: Limits = field(default_factory=Limits)

    @property
    def played(self) -> Method[Any, Any]:
        """The method as it is played: with sites protected, where that is set."""
        return played_method(self.method, protect=self.protect)

    def mark(self) -> str:
        """Return a checksum of the whole task, by which parties see that they have the same one."""
        return hashlib.blake2b(task_to_toml(self).encode(), digest_size=16).hexdigest()


def load_task(path: Path) -> Task:
    """Read the task in a file, and check it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return parse_task(text, str(path))


def parse_task(text: str, where: str) -> Task:
    """Read a task from TOML, and check it; errors begin with ``where``."""
    table = read_toml(text, where)
    if ALONE in table:
        raise ConfigError(
            f"{where}: {ALONE} is for simulations: a site that trains alone needs no network.  Remove it, and compare "
            f"there: protea run EXPERIMENT.toml --beside alone"
        )
    refuse_places(table, where)
    task: Task = settings_from_table(Task, table, where)
    check_task(task, where)
    return task


def refuse_places(table: Table, where: str) -> None:
    """Raise :class:`ConfigError` for ``module:name``: that would be imported, and called, at every site."""
    for part in ("method", "models", "filters", "training", "evaluation"):
        for text in _texts(table.get(part)):
            if ":" in text:
                raise ConfigError(
                    f"{where}: {part} has {text!r}.  A task may have names that `protea list` shows, and of plug-ins "
                    f"that every party has installed; it cannot bring code to others."
                )


def _texts(value: object) -> Iterator[str]:
    """Yield all texts in a value of TOML, also those within tables and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def new_task(table: Table, changes: Sequence[str]) -> Task:
    """Make a new task from what a coordinator typed: a table, and ``a.b=c`` changes."""
    return parse_task(tomli_w.dumps(override(table, changes)), "command line")


def read_public_inputs(path: Path) -> tuple[bytes, list[int]]:
    """Read public inputs from a .npy file; return them as they go into bundles, and the shape of one."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"{path} cannot be read as a .npy file: {error}") from error
    if not isinstance(array, np.ndarray) or array.ndim < 2 or not len(array):
        raise ConfigError(f"{path} must hold one array, with a row for each sample.")
    x = to_inputs(array)
    if not torch.isfinite(x).all():
        raise ConfigError(f"{path} holds values that are not finite (nan or inf).")
    return save({"x": x}), list(x.shape[1:])


def task_to_toml(task: Task) -> str:
    """Return TOML from which :func:`parse_task` makes the same task."""
    return tomli_w.dumps(to_table(task))


def new_server(task: Task, public: Samples | None = None) -> Server:
    """Make the server of a task, with empty memory; it has no samples but public ones."""
    return Server(
        classes=len(task.classes),
        dim=task.models.dim,
        rng=Streams(task.seed).at("server"),
        public=public,
        make=ModelMaker(task.models, task.shape, len(task.classes)),
        rounds=task.rounds,
        names=tuple(task.classes),
    )


def started_server(task: Task, public: Samples | None = None) -> Server:
    """Make the server of a task as it is before the first round, its memory filled by the method."""
    server = new_server(task, public)
    with server.rng.at("round", 0).default("start"):
        task.played.start_server(server)
    return server


def refuse_shapeless(task: Task, where: str) -> None:
    """Raise :class:`ConfigError` if the method makes a model on the server, which needs the shape of a sample."""
    try:
        started_server(task)
    except ConfigError as error:
        raise ConfigError(
            f"{where}: the method makes a model on the server, and needs to know the shape of a sample for that.  "
            f"Set it: shape = [1, 28, 28]."
        ) from error


def refuse_excess(task: Task, where: str) -> None:
    """Raise :class:`ConfigError` for numbers by which a task would never end, or fill the memory of its sites."""
    asked = {
        "rounds": task.rounds,
        "deadline": task.deadline,
        "patience": task.patience,
        "models.dim": task.models.dim,
        "training.epochs": task.training.epochs,
        "training.batch": task.training.batch,
        "classes": len(task.classes),
    }
    for name, value in asked.items():
        if not value <= LARGEST[name]:
            has = f"{value:,} of them" if name == "classes" else f"{value:,}"
            raise ConfigError(f"{where}: {name}: {has}; at most {LARGEST[name]:,} is taken.")
    for name in task.classes:
        if not name.isprintable() or not 0 < len(name) <= NAME:
            raise ConfigError(
                f"{where}: classes: {name[:NAME]!r} is no name that a screen can show.  Use 1 to {NAME} printable "
                f"characters."
            )


def check_task(task: Task, where: str) -> None:
    """Raise :class:`ConfigError` for a task that cannot run, before any work."""
    refuse_excess(task, where)
    if len(task.classes) < 2 or len(set(task.classes)) < len(task.classes):
        raise ConfigError(f"{where}: classes must be two or more different names; found {list(task.classes)}.")
    if not isinstance(task.method, Method):
        raise ConfigError(f"{where}: method is {task.method!r}, which is not derived from protea.Method.")
    needs = task.method.needs
    if needs.server_model and task.models.server is None:
        raise ConfigError(f"{where}: the method has a model on the server.  Set models.server to an architecture.")
    if (needs.public_data or needs.server_model) and not task.shape:
        raise ConfigError(f"{where}: the method needs to know the shape of a sample.  Set it: shape = [1, 28, 28].")
    if needs.public_labels:
        raise ConfigError(
            f"{where}: the method learns labels of public samples, which have none in a federation over a network.  "
            f"Set method.public_epochs=0."
        )
    if needs.same_architecture:
        raise ConfigError(
            f"{where}: the method needs models that are all the same, and sites bring their own.  "
            f"Choose one for different models: protea list methods."
        )
    if getattr(task.method, "descriptions", ""):
        raise ConfigError(
            f"{where}: method.descriptions is a file of one machine, and a task is read by many.  Remove it; "
            f"classes may have long names."
        )
    if not task.shape and needs.text_encoder is None:  # whose encoder a site need not have
        refuse_shapeless(task, where)
    evaluation = task.evaluation
    if evaluation.shared != "never" or evaluation.snapshots:
        raise ConfigError(
            f'{where}: evaluation.shared must be "never" and evaluation.snapshots 0: a site shows no features or '
            f"answers of single samples."
        )
    if evaluation.train:
        raise ConfigError(f"{where}: evaluation.train must be false: a site does not tell how well it has fitted.")
    if evaluation.when != "after":
        raise ConfigError(f'{where}: evaluation.when must be "after".')
    try:
        evaluation.check(task.method, method_label(task.method))
        for each in task.filters:
            each.check(task.method, method_label(task.method), task.filters, task.quorum)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
