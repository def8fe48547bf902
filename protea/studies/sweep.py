"""Many runs from one experiment file, in one directory: a grid of settings, or a search for good ones.

    sweep.json   the file, the arguments, and every run's settings and directory; written before a run starts
    NAME/        one run directory each; a run that failed has its error in error.txt
    best.toml    of a search: the experiment that is best on validation samples

What is in the directory decides what is left to do, so the same call again goes on where the last one stopped.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Protocol

from protea.config import registry
from protea.config.experiment import (
    Experiment,
    experiment_from_table,
    experiment_to_toml,
    experiment_with_changes,
    load_experiment,
)
from protea.config.toml import Table, override, to_table
from protea.core.errors import ConfigError, PluginError, ProteaError, nearest
from protea.core.files import hold_lock, write_json, write_text
from protea.federation.record import Record
from protea.runs.directory import RunDirectory
from protea.runs.run import resume, run

FORMAT = 1
LOCK = ".lock"
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"


@dataclass(frozen=True)
class Source:
    """The experiment file."""

    path: Path
    content: str

    @classmethod
    def load(cls, path: Path) -> Source:
        try:
            content = path.read_text(encoding="utf-8")
            tomllib.loads(content)
        except (OSError, ValueError):
            load_experiment(path)  # says what is wrong with it
            raise
        return cls(path, content)

    @cached_property
    def table(self) -> Table:
        return tomllib.loads(self.content)


@dataclass(frozen=True)
class Entry:
    """One run of a sweep.  ``name`` is that of its directory."""

    name: str
    changes: tuple[str, ...]
    experiment: Experiment

    @cached_property
    def key(self) -> str:
        """Equal for equal experiments."""
        return experiment_to_toml(self.experiment)


@dataclass(frozen=True)
class Outcome:
    """What came of a run: its summary, or its error."""

    entry: Entry
    summary: dict[str, Any] | None
    error: str = ""


# A grid


@dataclass(frozen=True)
class Axis:
    """The values of one setting; ``method`` is the one whose runs have it, or empty for all."""

    key: str
    values: tuple[str, ...]
    method: str = ""

    @classmethod
    def parse(cls, argument: str) -> Axis:
        """``seed=1..5``, ``method.pull=1,10``, ``fedtgp:method.threshold=10,100``."""
        left, equals, text = argument.partition("=")
        method, _, key = left.rpartition(":")
        if not equals or not key:
            raise ConfigError(f"{argument!r} changes nothing.  Write setting=value or setting=a,b, such as seed=1..5.")
        pieces = split(text)
        if len(pieces) > 1 and not all(pieces):
            raise ConfigError(f"{argument!r} has an empty value between its commas.")
        return cls(key, tuple(value for piece in pieces for value in span(piece, argument)), method)

    def changes(self) -> list[str]:
        return [f"{self.key}={value}" for value in self.values]

    def fits(self, method: str) -> bool:
        return self.method in ("", method, base(method))


def split(text: str) -> list[str]:
    """The parts between commas that are outside quotes and brackets; what does not close is one part."""
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
    """``1..3`` is 1, 2, 3; anything else stands for itself."""
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
    """The method's name as it is written, with its variant."""
    default = to_table(Experiment())["method"]["name"]
    method = table.get("method", default)
    return str(method.get("name", default) if isinstance(method, dict) else method)


def base(method: str) -> str:
    """The name without its variant."""
    return method.partition("@")[0]


def grid(source: Source, arguments: Sequence[str]) -> list[Entry]:
    """All runs that the arguments ask for, each once, every one of them checked."""
    axes = [Axis.parse(argument) for argument in arguments]
    wanted = [(method_of(override(source.table, changes)), changes) for changes in combine(source.table, axes)]
    methods = list(dict.fromkeys(method for method, _ in wanted))
    for axis in axes:
        if not any(axis.fits(method) for method in methods):
            raise ConfigError(
                f"{axis.method}:{axis.key}=...: no run of this sweep has the method {axis.method!r}.  "
                f"{nearest(axis.method, methods)}"
            )
    varied = {axis.key for axis in axes if len(axis.values) > 1}
    found: dict[str, Entry] = {}
    for method, changes in wanted:
        entry = Entry("", changes, check(source, changes, methods))
        if entry.key not in found:
            name = title(method, changes, varied, entry.experiment.seed)
            found[entry.key] = replace(entry, name=unique(name, {other.name for other in found.values()}))
    return list(found.values())


def combine(table: Table, axes: Sequence[Axis]) -> Iterator[tuple[str, ...]]:
    """The changes of every run; settings of one method only are last, so they win."""
    shared = [axis for axis in axes if not axis.method]
    for changes in product(*(axis.changes() for axis in shared)):
        method = method_of(override(table, changes))
        own = [axis.changes() for axis in axes if axis.method and axis.fits(method)]
        for more in product(*own):
            yield (*changes, *more)


def check(source: Source, changes: Sequence[str], methods: Sequence[str]) -> Experiment:
    """The experiment, if it can run; where it has a setting of another method of the sweep, the error says so."""
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
    return {"name", *(f.name for f in fields(registry.find("methods", base(method))))}


def title(method: str, changes: Sequence[str], varied: set[str], seed: int) -> str:
    """``fedtgp-threshold=10-s1``: the method, what differs within the sweep, the seed."""
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
    count, found = 1, name
    while found in taken:
        count += 1
        found = f"{name}-{count}"
    return found


# The directory


@dataclass
class Sweep:
    """A sweep's directory, and what its sweep.json says."""

    path: Path
    source: Source
    arguments: list[str]
    entries: list[Entry]
    space: list[str] | None = None  # what a search may change; None for a grid

    @classmethod
    def read(cls, path: Path) -> Sweep:
        where = path / "sweep.json"
        try:
            content = json.loads(where.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ConfigError(f"{where} has format {content['format']}; this version of Protea reads {FORMAT}.")
            entries = [
                Entry(
                    each["directory"],
                    tuple(each["changes"]),
                    experiment_from_table(tomllib.loads(each["settings"]), str(where)),
                )
                for each in content["runs"]
            ]
            source = Source(Path(content["config"]["path"]), content["config"]["content"])
            return cls(path, source, content["arguments"], entries, content["search"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{where} cannot be read: {error!r}.  Choose another --out.") from error

    @property
    def call(self) -> str:
        """The settings as they were typed."""
        space = [word for each in self.space or [] for word in ("--for", each)]
        return shlex.join([str(self.source.path), *self.arguments, *space])

    def write(self) -> None:
        """Leave sweep.json behind."""
        runs = [{"directory": e.name, "changes": e.changes, "settings": e.key} for e in self.entries]
        about = {"path": str(self.source.path), "content": self.source.content}
        content = {"format": FORMAT, "config": about, "arguments": self.arguments, "search": self.space, "runs": runs}
        write_json(self.path / "sweep.json", content)

    def add(self, entry: Entry) -> Entry:
        """Keep the entry, in the directory of an equal run or in a new one."""
        same = next((other.name for other in self.entries if other.key == entry.key), None)
        name = same or unique(entry.name, {other.name for other in self.entries})
        self.entries.append(replace(entry, name=name))
        self.write()
        return self.entries[-1]


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Within, no other process may work on the sweep in this directory, which is made if need be."""
    ours = (path / "sweep.json").exists()
    if not ours and path.exists() and (not path.is_dir() or any(file.name != LOCK for file in path.iterdir())):
        raise ConfigError(f"{path} exists and is not a sweep: it has no sweep.json.  Choose another --out.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be made: {error.strerror}.  Choose another --out.") from error
    (path / LOCK).touch()
    with hold_lock(path / LOCK, f"{path} is being swept by another process.  Wait, or stop that one."):
        yield


def begin(wanted: Sweep) -> Sweep:
    """The sweep as it goes on in its directory: new, as it was, or, if nothing of it is lost, extended."""
    path = wanted.path
    if not (path / "sweep.json").exists():
        wanted.write()
        return wanted
    old = Sweep.read(path)
    again = f"Choose another --out, or repeat what it was made with: {old.call}"
    if old.space != wanted.space:
        kinds = [
            "a grid" if sweep.space is None else f"a search over {' '.join(sweep.space)}" for sweep in (old, wanted)
        ]
        raise ConfigError(f"{path} holds {kinds[0]}, and this is {kinds[1]}.  {again}")
    if old.space is not None:
        if override(old.source.table, old.arguments) != override(wanted.source.table, wanted.arguments):
            raise ConfigError(f"{path} holds a search with other settings.  {again}")
        return old
    known = {entry.key: entry for entry in old.entries}
    asked = {entry.key: entry for entry in wanted.entries}
    lost = [entry.name for key, entry in known.items() if key not in asked]
    if lost:
        raise ConfigError(
            f"{path} holds another sweep: {len(lost)} of its {len(known)} runs are not in this one, such as "
            f"{lost[0]}.\n  A sweep may grow, but not lose runs.  {again}"
        )
    new = [entry for key, entry in asked.items() if key not in known]
    for entry in new:
        old.entries.append(replace(entry, name=unique(entry.name, {other.name for other in old.entries})))
    if new:
        old.source, old.arguments = wanted.source, wanted.arguments
        old.write()
    return old


# Running


class Board(Protocol):
    """Who is told what happens."""

    def start(self, entry: Entry) -> None: ...

    def record(self, record: Record) -> None: ...

    def end(self, outcome: Outcome) -> None: ...


def play(path: Path, entry: Entry, board: Board) -> Outcome:
    """Start the run, go on with it, or just read what it gave; a failure is a value and a file."""
    directory = path / entry.name
    trouble = directory / "error.txt"
    summary, error = RunDirectory(directory).summary(), ""
    if summary is None:
        board.start(entry)
        trouble.unlink(missing_ok=True)
        try:
            if (directory / "config.toml").is_file():
                summary = resume(directory, entry.experiment, on_round=board.record).summary
            else:
                summary = run(entry.experiment, directory, on_round=board.record).summary
        except Exception as caught:  # whatever it is, the other runs go on
            error = str(caught) if isinstance(caught, ProteaError) else traceback.format_exc()
            directory.mkdir(exist_ok=True)
            write_text(trouble, error.rstrip() + "\n")
    outcome = Outcome(entry, summary, error)
    board.end(outcome)
    return outcome
