"""Where the gain of a method comes from: from its own training, or from the others.

A method's advantage over Local is split in two by a run of the same method in which every client is alone: *what its
training does* is alone minus Local, *what the others give* is the method minus alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protea.runs.answers import RunAnswers
from protea.runs.gain import Gain, gain, is_alone_of, is_local
from protea.runs.reader import RunReader
from protea.runs.settings_diff import settings

LabelledRun = tuple[str, RunReader]  # the label of its row, and the run


@dataclass(frozen=True)
class MethodGain:
    """What one row of a comparison gains, and where it comes from; None where the runs for it are missing."""

    label: str
    over: Gain | None  # over the row that all are compared against
    training: Gain | None  # its method alone over Local: what its training does
    others: Gain | None  # over its method alone: what the others give

    @property
    def known(self) -> dict[str, Gain]:
        """The gains that there are, by name."""
        named = {"over": self.over, "training": self.training, "others": self.others}
        return {name: one for name, one in named.items() if one is not None}


def method_gains(
    runs: Sequence[LabelledRun],
    base: str | None,
    rounds: Callable[[RunReader], Sequence[int]],
    rule: str = "method",
) -> list[MethodGain]:
    """Give the gains of each row but ``base``, in the order of the runs, best first.

    ``rounds`` are those that a run reports.  Without a row of Local, alone runs have nothing to be compared with.
    """
    rows: dict[str, list[RunReader]] = {}
    for label, run in runs:
        rows.setdefault(label, []).append(run)
    over, local = _Comparing(rounds, rule), _local_row(rows, base)
    found = []
    for label, members in rows.items():
        if label != base:
            alone = _alone_runs(members[0], [run for _, run in runs])
            found.append(
                MethodGain(
                    label,
                    over=None if base is None else over(members, rows[base]),
                    training=None if local is None else over(alone, rows[local]),
                    others=over(members, alone),
                )
            )
    return found


class _Comparing:
    """Compares groups of runs in pairs of the same seed and split; what a run answered is read once."""

    def __init__(self, rounds: Callable[[RunReader], Sequence[int]], rule: str) -> None:
        self.rounds, self.rule = rounds, rule
        self.known: dict[Path, RunAnswers] = {}

    def __call__(self, ours: Sequence[RunReader], theirs: Sequence[RunReader]) -> Gain | None:
        """Give the gain of some runs over others; None where there is no pair."""
        others = {(run.seed, run.partition): run for run in theirs}
        pairs = [(run, others[pair]) for run in ours if (pair := (run.seed, run.partition)) in others]
        return gain([(self.answers(run), self.answers(other)) for run, other in pairs]) if pairs else None

    def answers(self, run: RunReader) -> RunAnswers:
        if run.path not in self.known:
            self.known[run.path] = RunAnswers.read(run, self.rounds(run), self.rule)
        return self.known[run.path]


def _local_row(rows: Mapping[str, Sequence[RunReader]], base: str | None) -> str | None:
    """The row of training without federation: the one compared against if it is such, else the best."""
    found = [label for label, runs in rows.items() if is_local(runs[0].method)]
    return base if base in found else next(iter(found), None)


def _alone_runs(run: RunReader, runs: Sequence[RunReader]) -> list[RunReader]:
    """The runs of the same method in the same setting with every client alone; none for such a run itself."""
    own = _but_alone(run)
    return [other for other in runs if is_alone_of(other.method, run.method) and _but_alone(other) == own]


def _but_alone(run: RunReader) -> dict[str, Any]:
    return {name: value for name, value in settings(run).items() if name != "alone"}
