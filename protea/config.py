"""An experiment as frozen dataclasses, and its way from TOML and back.

Every table is read by one rule: a name that its dataclass does not have is refused, with
the nearest one suggested; a value must have the declared type and range.  Tables that
choose among kinds (``method``, ``data.source``, ``data.partition``) say which by ``name``
or ``kind``, or are just that word; plug-ins are read as strictly as built-ins.
"""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_type_hints

import pydantic
import tomli_w
from pydantic import NonNegativeInt, PositiveInt, TypeAdapter

from protea import plugins
from protea.data.augment import Augment
from protea.data.schemes import Dirichlet
from protea.data.sources.digits import Digits
from protea.data.split import Split
from protea.engines import EngineSettings
from protea.errors import ConfigError, PluginError, nearest
from protea.evaluation import Evaluation
from protea.method import Method
from protea.methods.fedproto import FedProto
from protea.models.families import Member, Models, members
from protea.training import Training

Table = dict[str, Any]


def chosen(group: str, tag: str, default: type[Any]) -> Any:
    """A field whose class is chosen by name from a plug-in group."""
    return field(default_factory=default, metadata={"group": group, "tag": tag})


@dataclass(frozen=True)
class Data:
    """``[data]``: which samples there are, and who has which."""

    source: Any = chosen("sources", "kind", Digits)
    partition: Any = chosen("partitions", "kind", Dirichlet)
    pool: Literal["train", "all"] = "train"  # of the source; "all" merges its test part in, as HtFLlib does
    public: NonNegativeInt = 0  # samples set aside, seen by all
    split: Split = field(default_factory=Split)  # of each client's samples
    augment: Augment = field(default_factory=Augment)
    seed: int | None = None  # of partition and split; the run's seed if not given


@dataclass(frozen=True)
class Checkpoint:
    """``[checkpoint]``: when the state of server and clients is written to the run directory."""

    every: PositiveInt = 10  # rounds; the last round always
    keep: PositiveInt = 1


@dataclass(frozen=True)
class Experiment:
    """All that decides a run's numbers."""

    rounds: PositiveInt = 20
    clients: PositiveInt = 10
    fraction: Annotated[float, pydantic.Field(gt=0, le=1)] = 1.0  # of the clients take part in a round
    seed: int = 1
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    failures: Literal["stop", "skip"] = "stop"  # when a client fails
    min_replies: PositiveInt = 1  # fewer good replies than this end the run
    method: Any = chosen("methods", "name", FedProto)
    data: Data = field(default_factory=Data)
    models: Models = field(default_factory=Models)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation = field(default_factory=Evaluation)
    engine: EngineSettings = field(default_factory=EngineSettings)
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
    return read(override(table, overrides), str(path))


def read(table: Table, where: str = "experiment") -> Experiment:
    """The experiment that a table describes, checked."""
    experiment = cast(Experiment, _read(Experiment, table, "", where))
    check(experiment, where)
    return experiment


def override(table: Table, changes: Sequence[str]) -> Table:
    """The table with ``a.b=c`` changes; choosing another kind drops the settings of the former."""
    result = copy.deepcopy(table)
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals or not path:
            raise ConfigError(f"{change!r} changes nothing.  Write setting=value, such as method.pull=1 or seed=2.")
        *parents, name = path.split(".")
        inner = result
        for parent in parents:
            if not isinstance(inner.get(parent, {}), dict):  # method = "fedproto" stands for { name = "fedproto" }
                inner[parent] = {"name" if parent in ("method", "engine") else "kind": inner[parent]}
            inner = inner.setdefault(parent, {})
        value = _value(text)
        if name in ("name", "kind") and parents[-1:] != ["engine"] and inner.get(name) != value:
            inner.clear()
        inner[name] = value
    return result


def dump(experiment: Experiment) -> str:
    """TOML from which :func:`load` gives the same experiment."""
    return tomli_w.dumps(to_table(experiment))


def to_table(settings: Any) -> Table:
    """All settings as plain values; those that are ``None`` are left out."""
    table: Table = {}
    for f in _settings(type(settings)):
        value = getattr(settings, f.name)
        if "group" in f.metadata:
            table[f.name] = {
                f.metadata["tag"]: plugins.name_of(f.metadata["group"], type(value)),
                **to_table(value),
            }
        elif is_dataclass(value):
            table[f.name] = to_table(value)
        elif isinstance(value, list | tuple | Mapping) and _hints(cast(Hashable, type(settings)))[f.name] is Any:
            continue  # a script's own data, which no file should hold
        elif isinstance(value, bool | int | float | str | Path | list | tuple | Mapping):
            table[f.name] = TypeAdapter(Any).dump_python(value, mode="json")
    return table


def method_label(method: Any) -> str:
    """``fedproto``, or ``fedproto@htfllib`` where the fields are just that variant's."""
    name = plugins.name_of("methods", type(method)).rpartition(":")[2].lower()
    for variant, changed in type(method).variants.items():
        if changed and method == type(method)(**changed):
            return f"{name}@{variant}"
    return name


def check(experiment: Experiment, where: str = "experiment") -> None:
    """Raise :class:`ConfigError` for what cannot run, before any work."""
    _check(experiment, "", where)
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
    if needs.public_data and not experiment.data.public:
        raise ConfigError(
            f"{where}: {name} needs public data, and data.public is 0.  Set, for example, data.public=500."
        )
    if needs.server_model and models.server is None:
        raise ConfigError(f"{where}: {name} needs a model on the server.  Set, for example, models.server=resnet18.")
    if needs.same_architecture and any(member != family[0] for member in family):
        raise ConfigError(
            f"{where}: {name} averages whole models, which must all be alike; {which} has several kinds.  "
            f"Set models.family to one architecture, such as cnn4."
        )
    if needs.same_head and len({member.head for member in family}) > 1:
        raise ConfigError(
            f"{where}: {name} averages heads, which must all be alike; {which} has heads of different shape.  "
            f"Use a family that differs in its bodies only, such as htfe8 or tiny5."
        )
    chosen = max(1, round(experiment.fraction * experiment.clients))
    if experiment.min_replies > chosen:
        raise ConfigError(
            f"{where}: min_replies is {experiment.min_replies}, but only {chosen} of {experiment.clients} clients take "
            f"part in a round.  Lower min_replies, or raise fraction."
        )


def _read(kind: type[Any], table: object, path: str, where: str) -> Any:
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: {path} must be a table of settings; found {table!r}.")
    known = {f.name: f for f in _settings(kind)}
    for name in table.keys() - known.keys():
        raise ConfigError(_unknown(name, kind, known, path, where))
    values = {}
    for name, value in table.items():
        at = f"{path}.{name}" if path else name
        inner = _nested(known[name])
        if "group" in known[name].metadata:
            values[name] = _choose(known[name].metadata["group"], known[name].metadata["tag"], value, at, where)
        elif inner is not None:
            table_form = {"name": value} if inner is EngineSettings and isinstance(value, str) else value
            values[name] = _read(inner, table_form, at, where)
        else:
            values[name] = _valid(kind, name, value, at, where)
    for name, f in known.items():
        if name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise ConfigError(f"{where}: {path}.{name} is missing.  {_has(known.values())}")
    return kind(**values)


def _choose(group: str, tag: str, value: object, path: str, where: str) -> Any:
    table = {tag: value} if isinstance(value, str) else value
    if not isinstance(table, dict) or not isinstance(table.get(tag), str):
        raise ConfigError(f'{where}: {path} must say which one by {tag} = "...".  {nearest("", plugins.table(group))}')
    name, _, variant = table[tag].partition("@")
    try:
        kind = plugins.find(group, name)
    except PluginError as error:
        raise PluginError(f"{where}: {path}.{tag}: {error}") from error
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise PluginError(f"{where}: {path}.{tag}: {name} is not a frozen dataclass, as all {group} are.")
    rest = {k: v for k, v in table.items() if k != tag}
    if variant:
        variants = getattr(kind, "variants", {})
        if variant not in variants:
            raise ConfigError(f"{where}: {name} has no variant {variant!r}.  {nearest(variant, variants)}")
        rest = {**variants[variant], **rest}
    return _read(kind, rest, path, where)


def _check(settings: Any, path: str, where: str) -> None:
    """The same checks for settings made in Python."""
    for f in _settings(type(settings)):
        value, at = getattr(settings, f.name), f"{path}.{f.name}" if path else f.name
        kind = _nested(f)
        if "group" not in f.metadata and kind is None:
            _valid(type(settings), f.name, value, at, where)
        elif isinstance(value, type) or not is_dataclass(value) or (kind is not None and not isinstance(value, kind)):
            example = cast(type[Any], kind or f.default_factory).__name__
            raise ConfigError(
                f"{where}: {at} is {value!r}; expected is an object of a frozen dataclass, such as {example}()."
            )
        else:
            _check(value, at, where)


def _valid(kind: type[Any], name: str, value: object, path: str, where: str) -> Any:
    if _hints(cast(Hashable, kind))[name] is Any:
        return value
    adapter = _adapter(cast(Hashable, kind), name)
    try:
        if isinstance(value, list | dict | str):
            return adapter.validate_json(
                json.dumps(value, default=str), strict=True
            )  # in JSON a list may stand for a tuple
        return adapter.validate_python(value, strict=True)
    except pydantic.ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ConfigError(f"{where}: {path} = {value!r}: {reason[0].lower()}{reason[1:]}.") from error


@cache
def _adapter(kind: Hashable, name: str) -> TypeAdapter[Any]:
    return TypeAdapter(_hints(kind)[name], config=pydantic.ConfigDict(arbitrary_types_allowed=True))


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(cast(Any, kind), include_extras=True)


def _settings(kind: type[Any]) -> list[Field[Any]]:
    return [f for f in fields(kind) if f.init]


def _nested(f: Field[Any]) -> type[Any] | None:
    factory: Any = f.default_factory
    return cast("type[Any]", factory) if is_dataclass(factory) and not f.metadata else None


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _unknown(name: str, kind: type[Any], known: Mapping[str, Field[Any]], path: str, where: str) -> str:
    of = f" of {kind.__name__.lower()}" if path else ""
    at = f"{path}.{name}" if path else name
    hint = nearest(at, [f"{path}.{other}" if path else other for other in known])
    return f"{where}: {at} is not a setting{of}.\n  {hint}  {_has(known.values())}"


def _has(known: Any) -> str:
    def shown(f: Field[Any]) -> str:
        return f.name if f.default is MISSING else f"{f.name} (default {f.default!r})"

    return f"It has: {', '.join(shown(f) for f in known) or 'no settings'}."


__all__ = ["Data", "Experiment", "check", "dump", "load", "method_label", "override", "read", "to_table"]
