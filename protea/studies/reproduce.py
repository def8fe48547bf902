"""A paper's table run again: estimate its cost, run it, and collect our numbers."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from protea.config.experiment import Experiment, experiment_to_toml
from protea.config.words import SCOPES
from protea.core.errors import ClientError
from protea.core.rng import Streams
from protea.evaluation.protocols import best_round
from protea.federation.record import Record
from protea.methods.local import Local
from protea.models.architectures import count_parameters
from protea.runs.compared_gains import MethodGain, method_gains
from protea.runs.gain import is_local
from protea.runs.observers import Observer
from protea.runs.prepare import prepare
from protea.runs.reader import RunReader, unwell
from protea.runs.run import Run
from protea.runs.settings_diff import differing, settings
from protea.studies import preview
from protea.studies.papers import Measure, Number
from protea.studies.papers.plan import Plan, Planned

MEASURES: dict[Measure, str] = {
    "test": f"Accuracy in % on the {SCOPES['own']}, every sample counting once",
    "ensemble": "Accuracy in % of all clients together on the shared test set",
    "server": "Accuracy in % of the server's model on the shared test set",
    "numbers": "Millions of numbers that travel in a round",
    "honest": "Accuracy in % of honest clients on their own test samples, every sample counting once",
}
RunScreen = Callable[[Planned], AbstractContextManager[Observer]]


@dataclass(frozen=True)
class RunCost:
    """The estimated cost of one run: seconds of training and evaluation, and bytes of its checkpoints."""

    seconds: float
    bytes: int


def costs(runs: Sequence[Planned]) -> dict[Path, RunCost]:
    """Estimate the cost of each run, by directory.  Runs that differ only in method and seed are measured once."""
    known: dict[str, RunCost] = {}
    found = {}
    for each in runs:
        common = replace(each.experiment, method=Local(), seed=1)
        key = experiment_to_toml(common)
        if key not in known:
            known[key] = cost(common)
        found[each.path] = known[key]
    return found


def cost(each: Experiment) -> RunCost:
    """Estimate the cost of a run; the work of the server and of the method itself is not counted."""
    factory = prepare(each)
    with Streams(each.seed).default("preview"):
        models = [factory.make(member) for member in factory.members]
    sizes = [4 * sum(count_parameters(model).values()) for model in models]
    seconds = each.rounds * preview.seconds(each, factory, models)
    models_of_all = sum(sizes[client % len(sizes)] for client in range(each.clients))
    return RunCost(seconds, each.checkpoint.keep * models_of_all)


def run_all(runs: Sequence[Planned], screen: RunScreen, keep: bool = False) -> dict[Path, str]:
    """Run or resume each run; one that fails does not stop the others.  Return why runs failed, by directory.

    The checkpoints of a finished run are deleted unless ``keep``: those of a table of large models would fill the disk.
    """
    failed = {}
    for each in runs:
        try:
            with screen(each) as show:
                Run(each.experiment, each.path, observers=[show]).finish()
        except ClientError as error:
            failed[each.path] = str(error).splitlines()[0]
            continue
        if not keep:
            shutil.rmtree(each.path / "checkpoints")
    return failed


# From runs to numbers


@dataclass(frozen=True)
class OurNumber:
    """Our counterpart of one number of the paper: a value for each seed that has finished."""

    values: Sequence[float]

    @property
    def mean(self) -> float | None:
        """The mean over seeds; None if no run has finished."""
        return statistics.fmean(self.values) if self.values else None

    def __str__(self) -> str:
        if self.mean is None:
            return "-"
        deviation = f"±{statistics.pstdev(self.values):.2f}" if len(self.values) > 1 else ""
        return f"{self.mean:.2f}{deviation}"

    def beside(self, paper: Number) -> str:
        """Return by how much ours is higher than the paper's, such as ``+0.12``."""
        return "-" if self.mean is None or paper.mean is None else f"{self.mean - paper.mean:+.2f}"


def value(reader: RunReader, measure: Measure, protocol: str, rule: str = "method") -> float | None:
    """Return the number of a run that corresponds to the paper's, in % or millions; None where it has none."""
    if measure == "numbers":
        last = reader.rounds[-1]
        return float(last.bytes_up + last.bytes_down) / 4e6
    reported = reader.ended.get("protocols", {}).get(protocol)
    if measure == "honest":
        rounds = reported["rounds"] if reported else []
        honest = [each.honest for each in reader.rounds if each.round in rounds and each.honest is not None]
        return 100 * statistics.fmean(honest) if honest else None
    if measure == "test":
        score = reported["test"].get(rule) if reported else None
        return None if score is None else 100 * float(score["weighted"])
    scores = partial(shared_accuracy, measure=measure, rule=rule)
    records = [record for record in reader.rounds if scores(record) is not None]
    if protocol == "best":
        best = best_round(records, scores, of_all=False)
        records = [] if best is None else [best]
    elif protocol == "validation":
        return None
    else:
        records = records[-5:] if protocol == "last5" else records[-1:]
    found = [score for record in records if (score := scores(record)) is not None]
    return 100 * statistics.fmean(found) if found else None


def shared_accuracy(record: Record, measure: Measure, rule: str) -> float | None:
    """Return the accuracy on the shared test set of the server's model or of all clients together.

    None in rounds without that evaluation.
    """
    if measure == "server":
        return record.server.get("head")
    return record.shared[rule].ensemble if rule in record.shared else None


def differing_settings(one: RunReader, other: RunReader) -> set[str]:
    """Name the sections and top-level settings in which two runs differ, but for seeds and what moves no number."""
    return {name.partition(".")[0] for name in differing([settings(one), settings(other)])}


class TableResults:
    """The results of a plan: its finished runs, read from disk once, and why others failed."""

    def __init__(self, plan: Plan, failed: dict[Path, str]) -> None:
        self.plan, self.failed = plan, failed
        every = (*plan.runs, *plan.controls)
        self.readers = {each.path: RunReader.read(each.path) for each in every if each.finished}

    @property
    def protocol(self) -> str:
        """The protocol by which the table chooses the rounds that it reports."""
        return self.plan.runs[0].experiment.evaluation.protocol if self.plan.runs else "final"

    def of(self, cell: str, row: str) -> list[tuple[Planned, RunReader]]:
        """Return the finished runs of a place in the table."""
        runs = (each for each in self.plan.runs if (each.cell, each.row) == (cell, row))
        return [(each, self.readers[each.path]) for each in runs if each.path in self.readers]

    def ours(
        self, cell: str, row: str, measure: Measure, protocol: str | None = None, rule: str = "method"
    ) -> OurNumber:
        """Return our number for a place in the table, over its finished runs."""
        found = (value(reader, measure, protocol or self.protocol, rule) for _, reader in self.of(cell, row))
        return OurNumber([each for each in found if each is not None])

    def pairs(self, measure: Measure) -> list[tuple[str, str, Number, OurNumber]]:
        """List cell, row, the paper's number and ours, column by column."""
        rows = self.plan.preset.numbers[measure]
        return [
            (cell, row, rows[row][cell], self.ours(cell, row, measure))
            for cell in self.plan.cells
            for row in self.plan.rows
            if row in rows
        ]

    @cached_property
    def gains(self) -> dict[tuple[str, str], MethodGain]:
        """Where rows gain over Local, by cell and row, for those that have finished runs of Local or alone beside them.

        A row's runs and those beside it are compared in pairs of the same seed and split.
        """
        found: dict[tuple[str, str], MethodGain] = {}
        for cell in self.plan.cells:
            here = {each.path for each in (*self.plan.runs, *self.plan.controls) if each.cell == cell}
            readers = [reader for path, reader in self.readers.items() if path in here]
            for row in self.plan.rows:
                members = [reader for _, reader in self.of(cell, row)]
                if members and not is_local(members[0].method):
                    each = self._gain(row, members, readers)
                    found |= {(cell, row): each} if each.known else {}
        return found

    def _gain(self, row: str, members: Sequence[RunReader], here: Sequence[RunReader]) -> MethodGain:
        """The gain of a row over the runs of Local with the same settings, or else over any in its cell."""
        every = [reader for reader in here if is_local(reader.method)]
        same = [reader for reader in every if differing_settings(reader, members[0]) <= {"method"}] or every
        runs = [(row, reader) for reader in members]
        runs += [("alone", reader) for reader in here if reader.alone] + [("local", reader) for reader in same]
        return method_gains(runs, "local" if same else None, self.rounds)[0]

    def rounds(self, reader: RunReader) -> list[int]:
        """Return the rounds that a run reports by the table's protocol."""
        reported = reader.ended.get("protocols", {}).get(self.protocol)
        return list(reported["rounds"]) if reported else []

    @property
    def warnings(self) -> list[str]:
        """The warnings in the summaries of runs, once for each place of the table."""
        places = dict.fromkeys((each.cell, each.row) for each in self.plan.runs)
        return unwell({f"{row}, {cell}": [reader for _, reader in self.of(cell, row)] for cell, row in places})

    def majority(self, cell: str) -> float | None:
        """Return the accuracy in % of always answering a client's commonest class; None where it is not known."""
        runs = (reader.summary for row in self.plan.rows for _, reader in self.of(cell, row))
        found: list[float] = [one["majority"] for one in runs if one and one["majority"] is not None]
        return 100 * found[0] if found else None


# The file
