"""What a site's policy may say of a task's settings: which there are, and what values and bounds they can have."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError

from protea.config import registry
from protea.config.toml import field_type, section_of
from protea.core.errors import ConfigError, nearest
from protea.network.task import Task


def shown(value: object) -> str:
    """Write a value as TOML does."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f'"{name}" = {shown(inner)}' for name, inner in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else "never" if value is None else str(value)


def refuse_bad_rule(kind: str, setting: str, value: object, where: str) -> None:
    """Raise :class:`ConfigError` for a rule about a setting that no task has, or by a value that it cannot have."""
    known = known_settings()
    if setting not in known:
        raise ConfigError(
            f'{where}: {kind} has "{setting}", and no task has such a setting.  {nearest(setting, sorted(known))}\n'
            f'  Write it in quotes, such as "method.taken", "training.epochs" or "filters.clip.norm".'
        )
    types = known[setting]
    if any(is_section(each) for each in types):
        raise ConfigError(
            f'{where}: {kind}."{setting}" is a table of settings, and no value.  Name one of them: '
            f"{', '.join(each for each in known if each.startswith(f'{setting}.'))}."
        )
    if kind == "refused":
        if not isinstance(value, list):
            raise ConfigError(f'{where}: refused."{setting}" must be a list of values, such as ["before"].')
        words = dict.fromkeys(str(word) for each in types for word in literals(each))  # of several methods
        for each in value:
            if not any(can_be(each, one) for one in types):
                raise ConfigError(
                    f'{where}: refused."{setting}": {shown(each)} is no value of it, and would refuse nothing.'
                    + (f"  {nearest(str(each), words)}" if words else "")
                )
    elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f'{where}: {kind}."{setting}" = {shown(value)}: a number is needed, such as 10.')
    elif not any(can_be_number(each) for each in types):
        what = "a word" if all(literals(each) for each in types) else "no number"
        raise ConfigError(f'{where}: {kind}."{setting}": this setting is {what}, which has no bounds.  Use [refused].')


def refuse_contradictions(at_least: Mapping[str, Any], at_most: Mapping[str, Any], where: Callable[[str], str]) -> None:
    """Raise :class:`ConfigError` for bounds that no task can keep; ``where`` cites the line of a setting."""
    for setting in at_least.keys() & at_most.keys():
        if at_least[setting] > at_most[setting]:
            raise ConfigError(
                f"{where(f'at_most.{setting}')}: it must be {shown(at_least[setting])} at least by [at_least], so that "
                f"no task could have it."
            )


def is_section(kind: Any) -> bool:
    """Tell whether a setting of this type is a table with settings of its own."""
    return any(isinstance(each, type) and is_dataclass(each) for each in (kind, *get_args(kind)))


def can_be(value: object, kind: Any) -> bool:
    """Tell whether a setting of this type can have a value.

    >>> can_be("befor", Literal["before", "after"]), can_be(3, float), can_be("true", bool)
    (False, True, False)
    """
    adapter = TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
    try:
        adapter.validate_json(json.dumps(value, default=str), strict=True)  # in JSON a list may stand for a tuple
    except ValidationError:
        return False
    return True


def can_be_number(kind: Any) -> bool:
    """Tell whether a setting of this type may be a number, which bounds are about.

    >>> can_be_number(Literal[32, 64]), can_be_number(bool), can_be_number(float | None)
    (True, False, True)
    """
    if kind in (int, float):
        return True
    if get_origin(kind) is Literal:
        return any(isinstance(each, int | float) and not isinstance(each, bool) for each in get_args(kind))
    return any(can_be_number(each) for each in get_args(kind) if get_origin(kind) is not tuple)


def literals(kind: Any) -> tuple[Any, ...]:
    """Give the values of a type that has only these; none for any other.

    >>> literals(Literal["before", "after"]), literals(float)
    (('before', 'after'), ())
    """
    return get_args(kind) if str(kind).startswith("typing.Literal[") else ()


def known_settings() -> dict[str, list[Any]]:
    """Name every setting that a task can have, with its types: its own, those of every method, and of every filter."""
    found: dict[str, list[Any]] = {}
    for name, kind in typed_settings(Task):
        if name not in ("method", "filters"):
            found[name] = [kind]
    for group, prefix in (("methods", "method."), ("filters", "filters.")):
        for plugin in registry.table(group):
            inner = prefix if group == "methods" else f"{prefix}{plugin}."
            for name, kind in typed_settings(registry.find(group, plugin), inner):
                found.setdefault(name, []).append(kind)
    return found


def typed_settings(kind: type[Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and type of each setting of a dataclass, and of the sections in it."""
    for each in fields(kind):
        if each.init:
            yield f"{path}{each.name}", field_type(kind, each.name)
            if (inner := section_of(each)) is not None:
                yield from typed_settings(inner, f"{path}{each.name}.")
