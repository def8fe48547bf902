"""Many runs from one experiment file, in one directory: a grid of settings, or a search for good ones.

    sweep.json   the file, the arguments, and every run's settings and directory; written before a run starts
    NAME/        one run directory each; a run that failed has its error in error.txt
    best.toml    after a search: the experiment that is best on validation samples

The files in the directory decide what is left to do, so the same command typed again goes on where the last stopped.
"""

from __future__ import annotations

import json
import shlex
import tomllib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from protea.config.experiment import (
    experiment_from_table,
)
from protea.config.toml import override
from protea.core.errors import ConfigError, ProteaError
from protea.core.files import hold_lock, write_json, write_text
from protea.federation.record import Record
from protea.runs.directory import RunDirectory
from protea.runs.run import Run
from protea.studies.grid import SweepRun, SweepSource, unique

FORMAT = 1
LOCK = ".lock"


@dataclass(frozen=True)
class SweepOutcome:
    """The result of one run of a sweep: its summary, or its error."""

    entry: SweepRun
    summary: dict[str, Any] | None
    error: str = ""


@dataclass
class Sweep:
    """A sweep: its directory, and the content of its ``sweep.json``."""

    path: Path
    source: SweepSource
    arguments: list[str]
    entries: list[SweepRun]
    space: list[str] | None = None  # what a search may change; None for a grid

    @classmethod
    def read(cls, path: Path) -> Sweep:
        """Read the sweep in a directory; raise :class:`ConfigError` if that cannot be done."""
        where = path / "sweep.json"
        try:
            content = json.loads(where.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ConfigError(f"{where} has format {content['format']}; this version of Protea reads {FORMAT}.")
            entries = [
                SweepRun(
                    each["directory"],
                    tuple(each["changes"]),
                    experiment_from_table(tomllib.loads(each["settings"]), str(where)),
                )
                for each in content["runs"]
            ]
            source = SweepSource(Path(content["config"]["path"]), content["config"]["content"])
            return cls(path, source, content["arguments"], entries, content["search"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{where} cannot be read: {error!r}.  Choose another --out.") from error

    @property
    def call(self) -> str:
        """The arguments as they were typed, for a message."""
        space = [word for each in self.space or [] for word in ("--for", each)]
        return shlex.join([str(self.source.path), *self.arguments, *space])

    def write(self) -> None:
        """Write ``sweep.json``."""
        runs = [{"directory": e.name, "changes": e.changes, "settings": e.key} for e in self.entries]
        about = {"path": str(self.source.path), "content": self.source.content}
        content = {"format": FORMAT, "config": about, "arguments": self.arguments, "search": self.space, "runs": runs}
        write_json(self.path / "sweep.json", content)

    def add(self, entry: SweepRun) -> SweepRun:
        """Add a run and write ``sweep.json``.  A run equal to an earlier one shares its directory."""
        same = next((other.name for other in self.entries if other.key == entry.key), None)
        name = same or unique(entry.name, {other.name for other in self.entries})
        self.entries.append(replace(entry, name=name))
        self.write()
        return self.entries[-1]


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock of a sweep's directory, so that no other process works on it; make the directory if need be."""
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
    """Start a sweep, or continue the one in its directory; a grid may have new runs.

    Raise :class:`ConfigError` if the directory holds another sweep.
    """
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


class SweepBoard(Protocol):
    """The display of a sweep, told when a run starts, after each of its rounds, and when it ends."""

    def start(self, entry: SweepRun) -> None: ...

    def record(self, record: Record) -> None: ...

    def end(self, outcome: SweepOutcome) -> None: ...


def play(path: Path, entry: SweepRun, board: SweepBoard) -> SweepOutcome:
    """Run or resume one run of a sweep, or read the summary if it has ended.

    An error is written to ``error.txt`` and returned in the outcome, so that the other runs go on.
    """
    directory = path / entry.name
    trouble = directory / "error.txt"
    summary, error = RunDirectory(directory).summary(), ""
    if summary is None:
        board.start(entry)
        trouble.unlink(missing_ok=True)
        try:
            summary = Run(entry.experiment, directory, observers=[board.record]).finish().summary
        except Exception as caught:  # whatever it is, the other runs go on
            error = str(caught) if isinstance(caught, ProteaError) else traceback.format_exc()
            directory.mkdir(exist_ok=True)
            write_text(trouble, error.rstrip() + "\n")
    outcome = SweepOutcome(entry, summary, error)
    board.end(outcome)
    return outcome
