"""A grid of runs: every combination of the values given for an experiment file's settings, each one checked."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from pathlib import Path

from protea.config import registry
from protea.config.experiment import (
    Experiment,
    experiment_to_toml,
    experiment_with_changes,
    load_experiment,
)
from protea.config.search_path import add_folder_of
from protea.config.toml import Table, override, to_table
from protea.core.errors import ConfigError, PluginError, nearest

NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"


@dataclass(frozen=True)
class SweepSource:
    """The experiment file that a sweep starts from, and its content at that time."""

    path: Path
    content: str

    @classmethod
    def load(cls, path: Path) -> SweepSource:
        """Read the file; raise :class:`ConfigError` if it is no TOML."""
        try:
            content = path.read_text(encoding="utf-8")
            tomllib.loads(content)
        except (OSError, ValueError):
            load_experiment(path)  # says what is wrong with it
            raise
        add_folder_of(path)
        return cls(path, content)

    @cached_property
    def table(self) -> Table:
        """The settings that the file writes down, unchecked."""
        return tomllib.loads(self.content)


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.  ``name`` is that of its directory, ``changes`` are the settings it changes, as ``a.b=c``."""

    name: str
    changes: tuple[str, ...]
    experiment: Experiment

    @cached_property
    def key(self) -> str:
        """All settings as one text, which is equal for equal experiments."""
        return experiment_to_toml(self.experiment)


@dataclass(frozen=True)
class SweepAxis:
    """The values that one setting takes in a sweep; only in runs of ``method``, if that is not empty."""

    key: str
    values: tuple[str, ...]
    method: str = ""

    @classmethod
    def parse(cls, argument: str) -> SweepAxis:
        """Parse an argument such as ``seed=1..5``, ``method.pull=1,10`` or ``fedtgp:method.threshold=10,100``."""
        left, equals, text = argument.partition("=")
        method, _, key = left.rpartition(":")
        if not equals or not key:
            raise ConfigError(f"{argument!r} changes nothing.  Write setting=value or setting=a,b, such as seed=1..5.")
        pieces = split(text)
        if len(pieces) > 1 and not all(pieces):
            raise ConfigError(f"{argument!r} has an empty value between its commas.")
        return cls(key, tuple(value for piece in pieces for value in span(piece, argument)), method)

    def changes(self) -> list[str]:
        """Return one change, such as ``seed=1``, for each value."""
        return [f"{self.key}={value}" for value in self.values]

    def fits(self, method: str) -> bool:
        """Return whether runs of a method have this axis."""
        return self.method in ("", method, base(method))


def split(text: str) -> list[str]:
    """Split at commas outside quotes and brackets; a text whose quotes or brackets do not close is one part."""
    found, start, depth, quote = [], 0, 0, ""
    for at, letter in enumerate(text):
        if quote:
            escaped = quote == '"' and text[at - 1] == "\\"
            quote = "" if letter == quote and not escaped else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and not depth:
            found.append(text[start:at])
            start = at + 1
    return [text] if quote or depth else [*found, text[start:]]


def span(text: str, argument: str) -> list[str]:
    """Expand the range ``1..3`` to 1, 2, 3; return any other text as it is."""
    ends = re.fullmatch(rf"({NUMBER})\.\.({NUMBER})", text)
    if ends is None:
        return [text]
    try:
        first, last = (int(end) for end in ends.groups())
    except ValueError:
        raise ConfigError(
            f"{argument!r}: a range in a grid is of whole numbers.  Write the values out, key=0.1,0.2; or let them be "
            f"searched: --search 20 --for {argument}"
        ) from None
    if first > last:
        raise ConfigError(f"{argument!r}: the range is empty.  Write the smaller number first: {last}..{first}")
    return [str(number) for number in range(first, last + 1)]


def method_of(table: Table) -> str:
    """Return the method that a table of settings names, with its variant: ``fedtgp@code``."""
    default = to_table(Experiment())["method"]["name"]
    method = table.get("method", default)
    return str(method.get("name", default) if isinstance(method, dict) else method)


def base(method: str) -> str:
    """Return a method's name without its variant: ``fedtgp`` of ``fedtgp@code``."""
    return method.partition("@")[0]


def grid(source: SweepSource, arguments: Sequence[str]) -> list[SweepRun]:
    """Build the runs for all combinations of the arguments' values; equal ones once, each one checked."""
    axes = [SweepAxis.parse(argument) for argument in arguments]
    wanted = [(method_of(override(source.table, changes)), changes) for changes in combine(source.table, axes)]
    methods = list(dict.fromkeys(method for method, _ in wanted))
    for axis in axes:
        if not any(axis.fits(method) for method in methods):
            raise ConfigError(
                f"{axis.method}:{axis.key}=...: no run of this sweep has the method {axis.method!r}.  "
                f"{nearest(axis.method, methods)}"
            )
    varied = {axis.key for axis in axes if len(axis.values) > 1}
    found: dict[str, SweepRun] = {}
    for method, changes in wanted:
        entry = SweepRun("", changes, check(source, changes, methods))
        if entry.key not in found:
            name = title(method, changes, varied, entry.experiment.seed)
            found[entry.key] = replace(entry, name=unique(name, {other.name for other in found.values()}))
    return list(found.values())


def combine(table: Table, axes: Sequence[SweepAxis]) -> Iterator[tuple[str, ...]]:
    """Yield the changes of every run.  Settings for one method only come last, so that they override the others."""
    shared = [axis for axis in axes if not axis.method]
    for changes in product(*(axis.changes() for axis in shared)):
        method = method_of(override(table, changes))
        own = [axis.changes() for axis in axes if axis.method and axis.fits(method)]
        for more in product(*own):
            yield (*changes, *more)


def check(source: SweepSource, changes: Sequence[str], methods: Sequence[str]) -> Experiment:
    """Build a run's experiment; raise :class:`ConfigError` if it cannot run.

    ``methods`` are all of the sweep: where a setting belongs to another of them, the error says how to write that.
    """
    table = override(source.table, changes)
    try:
        return experiment_with_changes(source.table, changes, str(source.path))
    except PluginError:
        raise
    except ConfigError as error:
        here, hint = settings_of(method_of(table)), ""
        for change in changes:
            left, _, value = change.partition("=")
            if span := re.fullmatch(r"(\d+)-(\d+)", value):
                hint += f"\n  To sweep from {span[1]} to {span[2]}, write {left}={span[1]}..{span[2]}"
            setting = left.removeprefix("method.")
            owner = next((method for method in methods if setting in settings_of(method)), None)
            if left != setting and setting not in here and owner is not None:
                hint += f"\n  To give it to runs of {owner} only, write {base(owner)}:{left}=..."
        raise ConfigError(f"{error}{hint}\n  This is the run with {' '.join(changes)}.") from error


def settings_of(method: str) -> set[str]:
    """Return the names of a method's settings."""
    return {"name", *(f.name for f in fields(registry.find("methods", base(method))))}


def title(method: str, changes: Sequence[str], varied: set[str], seed: int) -> str:
    """Name a run by its method, the settings that vary within the sweep, and its seed: ``fedtgp-threshold=10-s1``."""
    parts = [method.rpartition(":")[2].lower()]
    for change in changes:
        key, _, value = change.partition("=")
        if key in varied and key not in ("method", "method.name", "seed"):
            short = key.rpartition(".")[2]
            alone = short not in ("name", "kind", "seed") and [k.rpartition(".")[2] for k in varied].count(short) < 2
            plain = re.sub(r"[^\w.@+-]+", "-", value).strip("-")
            parts.append(f"{short if alone else key}={plain[:40]}")
    return "-".join([*parts, f"s{seed}"])


def unique(name: str, taken: set[str]) -> str:
    """Return the name, with a number behind it if it is taken: ``NAME-2``."""
    count, found = 1, name
    while found in taken:
        count += 1
        found = f"{name}-{count}"
    return found
