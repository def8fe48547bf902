"""The plan for a table of a paper: which experiments to run, at full size or scaled down."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from protea.config.experiment import Experiment, experiment_from_table
from protea.config.registry import name_of
from protea.config.sections import Evaluation
from protea.config.toml import to_table
from protea.core.errors import ConfigError, nearest
from protea.studies.papers import Preset

CONTROLS = ("local", "alone")  # what a method's gain is measured by
PLACE = ("engine", "device", "checkpoint")  # sections on where a run takes place, which change no number of it


@dataclass(frozen=True)
class Scale:
    """Options that scale a table down from the paper's size, and other changes to its experiments."""

    rounds: int | None = None
    fraction: float | None = None  # of the data
    seeds: int | None = None
    changes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise ConfigError(f"--fraction is {self.fraction}; it is a share of the data, above 0 and at most 1.")
        for name, value in (("rounds", self.rounds), ("seeds", self.seeds)):
            if value is not None and value < 1:
                raise ConfigError(f"--{name} is {value}; it must be 1 or more.")
        for change in self.changes:
            if change.partition("=")[0].partition(".")[0] in ("method", "seed"):
                raise ConfigError(
                    f"{change} would make all rows or seeds of the table the same.  Choose rows by --methods "
                    f"(variants too: --methods fedtgp@code), and the number of seeds by --seeds."
                )

    def of(self, full: Experiment) -> Experiment:
        """Scale an experiment down.  Fewer rounds are evaluated as many times; public samples shrink with the data."""
        rounds, data = min(self.rounds or full.rounds, full.rounds), full.data
        if self.fraction is not None and self.fraction < 1:
            samples = max(1, round(self.fraction * pool(data.source, data.pool)))
            data = replace(data, samples=samples, public=round(self.fraction * data.public))
        return replace(full, rounds=rounds, data=data, evaluation=closer(full.evaluation, rounds / full.rounds))

    def label(self, preset: Preset, full: Iterable[Experiment]) -> str:
        """Describe what is smaller than in the paper; empty if nothing is."""
        found = []
        if longer := sorted({each.rounds for each in full if each.rounds > (self.rounds or each.rounds)}):
            found.append(f"{self.rounds} of {' or '.join(map(str, longer))} rounds")
        if self.fraction is not None and self.fraction < 1:
            found.append(f"{100 * self.fraction:g} % of the data")
        if self.seeds is not None and self.seeds < preset.seeds:
            found.append(f"{self.seeds} of {preset.seeds} seeds")
        return ", ".join(found)


@dataclass(frozen=True)
class Planned:
    """One run of a table.  Equal experiments have the same directory, so they run once."""

    cell: str
    row: str
    seed: int
    experiment: Experiment
    path: Path

    @property
    def title(self) -> str:
        """The run as a display names it."""
        return f"{self.row}, {self.cell}, seed {self.seed}"

    @property
    def finished(self) -> bool:
        """Whether the run has ended and written its summary."""
        return (self.path / "summary.json").is_file()


@dataclass(frozen=True)
class Plan:
    """The part of a table that is asked for: its runs, and what cannot be run."""

    preset: Preset
    cells: Sequence[str]
    rows: Sequence[str]
    runs: Sequence[Planned]
    controls: Sequence[Planned]  # runs beside these, in no place of the table
    lacking: dict[tuple[str, str], str]  # by cell and row, why it cannot be run here
    warning: str  # how this is not the paper's setting; empty if it is

    @property
    def open(self) -> list[Planned]:
        """The runs that have not finished, each directory once."""
        return list({each.path: each for each in (*self.runs, *self.controls) if not each.finished}.values())


def plan(
    preset: Preset, cells: Sequence[str], methods: Sequence[str], scale: Scale, out: Path, beside: Sequence[str] = ()
) -> Plan:
    """Plan the runs for a table and check their experiments; ``beside`` them ``local`` or ``alone`` as controls.

    Nothing is trained; data are read only where a fraction of them is asked for.
    """
    chosen, lacking = chosen_runs(preset, cells, methods), {}
    full: dict[tuple[str, str], Experiment] = {}
    for (cell, row), variant in chosen.items():
        if (why := preset.lacking(cell, row)) is not None:
            lacking[cell, row] = why
        else:
            full[cell, row] = preset.experiment(cell, row, scale.changes, variant)
    refuse_missing(full.values())
    runs, controls = [], []
    for (cell, row), each in full.items():
        small = scale.of(each)
        named = {f"{row} beside {name}": control(small, name) for name in beside}
        for seed in range(1, (scale.seeds or preset.seeds) + 1):
            one = replace(small, seed=seed)
            runs.append(Planned(cell, row, seed, one, out / directory(one)))
            for label, other in named.items():
                one = replace(other, seed=seed)
                controls.append(Planned(cell, label, seed, one, out / directory(one)))
    paper = (preset.experiment(cell, row) for cell, row in full)
    return Plan(
        preset=preset,
        cells=[cell for cell in cells if any(cell == at for at, _ in chosen)],
        rows=[row for row in preset.rows if any(row == at for _, at in chosen)],
        runs=runs,
        controls=controls,
        lacking=lacking,
        warning=warning(scale.label(preset, paper), scale.changes, [name for name in methods if "@" in name]),
    )


def control(experiment: Experiment, name: str) -> Experiment:
    """Return the experiment that a row's gain is measured by: of ``local``, or of the method with clients ``alone``."""
    if name not in CONTROLS:
        raise ConfigError(f"--beside is {name!r}.  {nearest(name, CONTROLS)}")
    changed = {"alone": True} if name == "alone" else {"method": name}
    return experiment_from_table({**to_table(experiment), **changed}, f"--beside {name}")


def warning(label: str, changes: Sequence[str], variants: Sequence[str]) -> str:
    """Describe how a table differs from the paper's.  Device, engine and checkpoints make no difference."""
    parts = [f"Scaled down: {label}."] if label else []
    changed = [change for change in changes if change.partition("=")[0].partition(".")[0] not in PLACE]
    parts += [f"Changed: {', '.join([*changed, *variants])}."] if changed or variants else []
    return " ".join([*parts, "Not the paper's setting: the numbers do not compare."]) if parts else ""


def chosen_runs(preset: Preset, cells: Sequence[str], methods: Sequence[str]) -> dict[tuple[str, str], str | None]:
    """Choose the cells and rows whose row or method is named in ``methods``, or all if none is named.

    The values are the methods with their variant, such as ``fedtgp@code``; None where no variant is named.
    """
    every = [(cell, row) for cell in cells for row in preset.rows]
    if not methods:
        return dict.fromkeys(every)
    wanted = {name.partition("@")[0].lower(): name.partition("@")[2] for name in methods}
    if len(wanted) < len(methods):
        raise ConfigError("--methods names a row twice.  Run the other variant with another --out.")
    found: dict[tuple[str, str], str | None] = {}
    known: set[str] = set()
    for cell, row in every:
        needy = any(word in preset.needs for word in (*cell.split("/"), row))
        method = "" if needy else preset.method(cell, row)
        for key in (row.lower(), method):
            known.add(key)
            if key in wanted:
                found[cell, row] = f"{method.partition('@')[0]}@{wanted[key]}" if wanted[key] else None
    if unknown := wanted.keys() - known:
        name = min(unknown)
        raise ConfigError(f"{preset.name} has no row or method {name!r}.  {nearest(name, filter(None, known))}")
    return found


def refuse_missing(experiments: Iterable[Experiment]) -> None:
    """Raise if data sets are not on this machine, and name all of them with the commands that download them."""
    lacking = {}
    for each in experiments:
        files = getattr(each.data.source, "files", None)
        if files is not None and files.folder() is None:
            lacking[name_of("sources", type(each.data.source))] = files
    if lacking:
        lines = [
            f"  {name}: python -c \"from protea.config.registry import find; find('sources', '{name}').files.find()\"\n"
            f"    or put {', '.join(files.files)} into {files.places[0]}"
            for name, files in lacking.items()
        ]
        raise ConfigError("Data are not on this machine.  This downloads them from their authors:\n" + "\n".join(lines))


def closer(evaluation: Evaluation, part: float) -> Evaluation:
    """Shorten the interval of evaluations to a ``part`` of it, so that a shorter run has as many."""
    shared = evaluation.shared if isinstance(evaluation.shared, str) else max(1, round(evaluation.shared * part))
    return replace(evaluation, every=max(1, round(evaluation.every * part)), shared=shared)


@cache
def pool(source: Any, which: str) -> int:
    """Count the samples of a source that are split among clients: all, or those of its training part."""
    data = source.load()
    return len(data) - (data.tests if which == "train" else 0)


def directory(experiment: Experiment) -> str:
    """Name a run's directory, such as ``cifar10-fedtgp-s1-4f2a9c1e``: equal experiments have the same name."""
    source = name_of("sources", type(experiment.data.source)).rpartition(":")[2].lower()
    table = to_table(experiment)
    del table["checkpoint"]  # checkpoints change no number; of the engine, only threads do
    text = json.dumps({**table, "engine": experiment.engine.threads}, sort_keys=True)
    mark = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{source}-{experiment.label.replace(' ', '-')}-s{experiment.seed}-{mark}"
