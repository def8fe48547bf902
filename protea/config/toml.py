"""Tables of settings, as TOML has them, to frozen dataclasses and back.

One rule for all: a name that the dataclass does not have is refused, with the nearest one suggested; a value must have
the declared type and range.  A field of :mod:`protea.core.choices` takes any class of a plug-in group: its table says
which by ``name`` or ``kind``, or is just that word.  Plug-ins are read as strictly as built-ins.
"""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast, get_type_hints

import pydantic
from pydantic import TypeAdapter

from protea.config import registry
from protea.config.words import RULES
from protea.core.errors import ConfigError, PluginError, nearest

Table = dict[str, Any]


def read_toml(text: str, where: str) -> Table:
    """Return the tables of a TOML text; raise :class:`ConfigError`, beginning with ``where``, for anything else."""
    try:
        table = tomllib.loads(text)
        refuse_huge(table, where)
        return table
    except ValueError as error:  # no TOML, or a number of thousands of digits
        raise ConfigError(f"{where} is not a TOML file: {error}") from error
    except RecursionError:
        raise ConfigError(f"{where} is not a file of settings: its tables and lists are nested too deep.") from None


def refuse_huge(value: object, where: str) -> None:
    """Raise :class:`ConfigError` for a whole number of more than 64 bits, which TOML does not have."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(f"{where} has a number of {value.bit_length()} bits; whole numbers have 64 at most.")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        refuse_huge(inner, where)


def settings_from_table(kind: type[Any], table: object, where: str, path: str = "", tag: str = "") -> Any:
    """Make an object of ``kind`` from its table; errors name the file ``where`` and the ``path`` of the setting in it.

    ``tag`` is the setting that chose the kind, if one did.
    """
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: {path} must be a table of settings; found {table!r}.")
    known = {f.name: f for f in _settings(kind)}
    for name in table.keys() - known.keys():
        raise ConfigError(_unknown(name, kind, known, path, where, tag))
    values = {}
    for name, value in table.items():
        at = f"{path}.{name}" if path else name
        inner = section_of(known[name])
        if known[name].metadata.get("many"):
            values[name] = _choose_all(known[name], value, at, where)
        elif "group" in known[name].metadata:
            values[name] = _choose(known[name], value, at, where)
        elif inner is not None:
            named = isinstance(value, str) and "name" in (f.name for f in _settings(inner))
            values[name] = settings_from_table(inner, {"name": value} if named else value, where, at)
        else:
            values[name] = _valid(kind, name, value, at, where)
    for name, f in known.items():
        if name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise ConfigError(f"{where}: {path}.{name} is missing.  {_has(known.values())}")
    return kind(**values)


def _choose(f: Field[Any], value: object, path: str, where: str) -> Any:
    """Make the object that a table, or a word, stands for; a table that names no kind is of the default one."""
    group, tag = f.metadata["group"], f.metadata["tag"]
    table = {tag: value} if isinstance(value, str) else value
    if isinstance(table, dict) and tag not in table and not f.metadata["many"]:
        table = {tag: registry.name_of(group, type(_default(f))), **table}
    if not isinstance(table, dict) or not isinstance(table.get(tag), str):
        raise ConfigError(f'{where}: {path} must say which one by {tag} = "...".  {nearest("", registry.table(group))}')
    name, _, variant = table[tag].partition("@")
    try:
        kind = registry.find(group, name)
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
    return settings_from_table(kind, rest, where, path, tag)


def _choose_all(f: Field[Any], value: object, path: str, where: str) -> tuple[Any, ...]:
    """Make the objects that a list of tables or words stands for."""
    if not isinstance(value, list | tuple):
        raise ConfigError(
            f"{where}: {path} must be a list; found {value!r}.  In a file, write each as [[{path}]] with its "
            f"{f.metadata['tag']}."
        )
    return tuple(_choose(f, each, f"{path}[{number}]", where) for number, each in enumerate(value))


def _default(f: Field[Any]) -> Any:
    """Return what a field of :func:`protea.core.choices.choice_of` holds by default."""
    return cast("Callable[[], Any]", f.default_factory)()


def check_settings(settings: Any, where: str, path: str = "") -> None:
    """Check settings that were made in Python as :func:`settings_from_table` checks those of a file."""
    for f in _settings(type(settings)):
        value, at = getattr(settings, f.name), f"{path}.{f.name}" if path else f.name
        if f.metadata.get("many"):
            _check_all(f, value, where, at)
            continue
        kind = section_of(f)
        if value is None and "table" in f.metadata:
            continue
        if "group" not in f.metadata and kind is None:
            _valid(type(settings), f.name, value, at, where)
        elif isinstance(value, type) or not is_dataclass(value) or (kind is not None and not isinstance(value, kind)):
            example = (kind or type(_default(f))).__name__
            raise ConfigError(
                f"{where}: {at} is {value!r}; expected is an object of a frozen dataclass, such as {example}()."
            )
        else:
            check_settings(value, where, at)


def _check_all(f: Field[Any], values: object, where: str, path: str) -> None:
    """Check a tuple of plug-ins."""
    if not isinstance(values, list | tuple):
        raise ConfigError(f"{where}: {path} is {values!r}; expected is a tuple of {f.metadata['group']}.")
    for number, value in enumerate(values):
        if isinstance(value, type) or not is_dataclass(value):
            raise ConfigError(
                f"{where}: {path}[{number}] is {value!r}; expected is an object of a frozen dataclass, as all "
                f"{f.metadata['group']} are."
            )
        check_settings(value, where, f"{path}[{number}]")


def override(table: Table, changes: Sequence[str]) -> Table:
    """Return the table with ``a.b=c`` changes; choosing another kind drops the settings of the former one.

    >>> override({"method": {"name": "fedproto", "pull": 1.0}}, ["method.name=fedtgp", "seed=2"])
    {'method': {'name': 'fedtgp'}, 'seed': 2}
    """
    result = copy.deepcopy(table)
    for change in sorted(changes, key=lambda change: change.partition("=")[0].split(".")[-1] not in ("name", "kind")):
        path, equals, text = change.partition("=")
        if not equals or not path:
            raise ConfigError(f"{change!r} changes nothing.  Write setting=value, such as method.pull=1 or seed=2.")
        *parents, name = path.split(".")
        inner = result
        for parent in parents:
            if not isinstance(inner.get(parent, {}), dict):  # method = "fedproto" stands for { name = "fedproto" }
                inner[parent] = {
                    "name" if parent in ("method", "engine", "sampler", "optimizer") else "kind": inner[parent]
                }
            inner = inner.setdefault(parent, {})
        value = _value(text)
        if name in ("name", "kind") and parents[-1:] != ["engine"] and inner.get(name) != value:
            inner.clear()
        inner[name] = value
    return result


def to_table(settings: Any) -> Table:
    """Return all settings as plain values; those that are ``None`` are left out."""
    table: Table = {}
    for f in _settings(type(settings)):
        value = getattr(settings, f.name)
        if f.metadata.get("many"):
            table[f.name] = [_plugin_to_table(f, each) for each in value]
        elif "group" in f.metadata:
            table[f.name] = _plugin_to_table(f, value)
        elif is_dataclass(value):
            table[f.name] = to_table(value)
        elif isinstance(value, list | tuple | Mapping) and _hints(cast(Hashable, type(settings)))[f.name] is Any:
            continue  # a script's own data, which no file should hold
        elif isinstance(value, bool | int | float | str):
            table[f.name] = value  # as it is: JSON has no infinity, TOML has
        elif isinstance(value, Path | list | tuple | Mapping):
            table[f.name] = TypeAdapter(Any).dump_python(value, mode="json")
    return table


def _plugin_to_table(f: Field[Any], value: Any) -> Table | str:
    """Return a plug-in's name and settings, or just its name."""
    name, settings = registry.name_of(f.metadata["group"], type(value)), to_table(value)
    return name if f.metadata["word"] and not settings else {f.metadata["tag"]: name, **settings}


def field_type(kind: type[Any], name: str) -> Any:
    """Return the declared type of a setting."""
    return _hints(cast(Hashable, kind))[name]


def _valid(kind: type[Any], name: str, value: object, path: str, where: str) -> Any:
    """Return a value as its field wants it; raise :class:`ConfigError` for another type or range."""
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
        rule = name == "answer" and isinstance(value, str) and value in RULES
        hint = f"  To let the rule {value} of all runs answer, set evaluation.answer={value}." if rule else ""
        raise ConfigError(f"{where}: {path} = {value!r}: {reason[0].lower()}{reason[1:]}.{hint}") from error


@cache
def _adapter(kind: Hashable, name: str) -> TypeAdapter[Any]:
    return TypeAdapter(_hints(kind)[name], config=pydantic.ConfigDict(arbitrary_types_allowed=True))


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(cast(Any, kind), include_extras=True)


def _settings(kind: type[Any]) -> list[Field[Any]]:
    """Return the fields that can be set."""
    return [f for f in fields(kind) if f.init]


def section_of(f: Field[Any]) -> type[Any] | None:
    """Return the dataclass of a field that is a section of its own."""
    if "table" in f.metadata:
        return cast("type[Any]", f.metadata["table"])
    factory: Any = f.default_factory
    return cast("type[Any]", factory) if is_dataclass(factory) and not f.metadata else None


def _value(text: str) -> Any:
    """Return the value that a text is in TOML; a text that is none stands for itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _unknown(name: str, kind: type[Any], known: Mapping[str, Field[Any]], path: str, where: str, tag: str) -> str:
    of = f" of {path}" if path and not tag else f" of {kind.__name__.lower()}" if path else ""
    at = f"{path}.{name}" if path else name
    others = [*known, tag] if tag else list(known)
    hint = nearest(at, [f"{path}.{other}" if path else other for other in others])
    return f"{where}: {at} is not a setting{of}.\n  {hint}  {_has(known.values())}"


def _has(known: Iterable[Field[Any]]) -> str:
    """Return a sentence that lists the settings there are."""

    def shown(f: Field[Any]) -> str:
        return f.name if f.default is MISSING else f"{f.name} (default {f.default!r})"

    return f"It has: {', '.join(shown(f) for f in known) or 'no settings'}."
