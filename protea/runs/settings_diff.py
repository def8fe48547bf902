"""What sets runs apart: their labels, and whether they may stand in one table at all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protea.core.errors import ConfigError, nearest
from protea.runs.reader import RunReader

# Settings are of three groups.  These may differ: means are taken over seeds, and the others move no number.
FREE = (
    "seed", "data.seed", "device", "engine", "checkpoint",
    "limits", "evaluation.shared", "evaluation.local_prototypes", "evaluation.snapshots", "evaluation.features",
    "evaluation.protocol", "evaluation.rules", "evaluation.metrics", "evaluation.train",
)  # fmt: skip
# What earlier versions did not write, with what they did: it sets no runs apart.
UNWRITTEN: dict[str, Any] = {
    "evaluation.answer": "method", "evaluation.train": False, "training.order": "shuffled", "data.source.channels": 1,
}  # fmt: skip
NAMED = ("alone", "protect")  # the name of the method says these
LEFT_OUT = tuple(f"{name}." for name in (*FREE, *NAMED))  # the live page asks for the settings of many runs again
# Of the others, these must be the same in one table; all that remain make a row of their own.
SAME = ("rounds", "clients", "fraction", "data", "evaluation")


def settings(run: RunReader) -> dict[str, Any]:
    """The settings that make a run's numbers, but for its seed, by name: ``training.lr``."""
    # An empty list says no more than none, and earlier versions did not write it.
    usual = {name: value for name, value in flat(run.config).items() if UNWRITTEN.get(name) != value}
    return {name: value for name, value in usual.items() if value != [] and not f"{name}.".startswith(LEFT_OUT)}


def labels(runs: Sequence[RunReader]) -> list[str]:
    """Each run's method and what sets it apart: ``fedproto pull=1``.  Runs that differ in their seed have the same.

    The method's own settings are told apart among runs of that method, all others among all runs.  What should be the
    same is named where it is not as in most; if that is more than one setting, by a number.
    """
    tables, usual = [settings(run) for run in runs], usual_settings(runs)
    common = [name for name in differing(tables) if not under(name, ["method", "alone"])]  # a method's name says alone
    by_method: dict[str, list[dict[str, Any]]] = {}
    for run, table in zip(runs, tables, strict=True):
        by_method.setdefault(run.method, []).append(table)
    own = {method: [name for name in differing(some) if under(name, ["method"])] for method, some in by_method.items()}
    found, kinds = [], list[str]()
    for run, table in zip(runs, tables, strict=True):
        words = [_word(name, table) for name in own[run.method] + common if name in table and not under(name, SAME)]
        odd = [name for name in common if under(name, SAME) and _mark(table.get(name)) != _mark(usual.get(name))]
        if len(odd) > 1:
            kind = " ".join(_word(name, table) for name in odd)
            kinds += [kind] if kind not in kinds else []
            words.append(f"({kinds.index(kind) + 1})")
        else:
            words += [_word(name, table) for name in odd]
        found.append(" ".join([run.method, *words]))
    return found


def _word(name: str, table: Mapping[str, Any]) -> str:
    return f"{name.removeprefix('method.')}={shown(table.get(name))}"


def chosen(runs: Sequence[RunReader], where: Sequence[str]) -> list[RunReader]:
    """Runs that have all the settings ``a.b=c``, seeds included."""
    found = list(runs)
    for each in where:
        name, equals, value = each.partition("=")
        if not equals:
            raise ConfigError(
                f"--where {each} names no value.  Write --where setting=value, such as --where rounds=20."
            )
        every = [flat(run.config) for run in runs]
        if not any(name in table for table in every):
            raise ConfigError(
                f"--where {each}: no run has this setting.  {nearest(name, {n for t in every for n in t})}"
            )
        found = [run for run in found if shown(flat(run.config).get(name)) == value]
        if not found:
            there = sorted({shown(table.get(name)) for table in every})
            raise ConfigError(f"--where {each} leaves no run.  There is {name}={words_of(there)}.")
    return found


def shown(value: object) -> str:
    """A setting as one would type it."""
    if value is None:
        return "not set"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return value if isinstance(value, str) else json.dumps(value)


def refuse_different(runs: Sequence[RunReader]) -> None:
    """Say which settings differ that should not, between which runs."""
    tables = [settings(run) for run in runs]
    found = []
    for name in differing(tables):
        if under(name, SAME):
            values = [shown(table.get(name)) for table in tables]
            found.append(f"  {name}: " + who(values, runs))
    for seed in sorted({run.seed for run in runs}):
        same = [run for run in runs if run.seed == seed]
        if not found and len({run.partition for run in same}) > 1:
            found.append(f"  who has which samples, with seed {seed}: " + who([run.partition for run in same], same))
    if found:
        raise ConfigError(
            "These runs do not compare: their numbers were made in different ways.\n"
            + "\n".join(found)
            + "\n  Name runs that agree in this, choose by --where SETTING=VALUE, or mark what differs by --anyway."
        )


def usual_settings(runs: Sequence[RunReader]) -> dict[str, Any]:
    """Of each setting that should be the same, the value that most runs have."""
    tables = [settings(run) for run in runs]
    names = dict.fromkeys(name for table in tables for name in table if under(name, SAME))
    found = {name: Counter(_mark(table.get(name)) for table in tables).most_common(1)[0][0] for name in names}
    return {name: json.loads(mark) for name, mark in found.items() if mark != "null"}


def differing(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names whose value is not the same in all, in the order in which they appear."""
    names = dict.fromkeys(name for table in tables for name in table)
    return [name for name in names if len({_mark(table.get(name)) for table in tables}) > 1]


def _mark(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # in Python one may give 0 where the file then says 0.0
    return json.dumps(value, sort_keys=True, default=str)


def flat(table: Mapping[str, Any], mark: str = ".", above: str = "") -> dict[str, Any]:
    """Nested tables as one, under names such as ``data.split.test``."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, mark, f"{above}{name}{mark}")
        else:
            found[f"{above}{name}"] = value
    return found


def under(name: str, groups: Iterable[str]) -> bool:
    """Whether a setting is one of the groups, or within one: ``data.split.test`` is under ``data``."""
    return f"{name}.".startswith(tuple(f"{group}." for group in groups))


def who(values: Sequence[str], runs: Sequence[RunReader]) -> str:
    """``6 in runs/a, runs/b; 30 in runs/c``."""
    found: dict[str, list[str]] = {}
    for value, run in zip(values, runs, strict=True):
        found.setdefault(value, []).append(str(run.path))
    return "; ".join(f"{value} in {words_of(paths)}" for value, paths in found.items())


def words_of(values: Sequence[object], most: int = 4) -> str:
    """The first few values, and how many more there are."""
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(map(str, values[:most])) + more
