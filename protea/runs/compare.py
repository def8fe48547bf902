"""Methods side by side: the mean over seeds, and differences in pairs of runs with the same seed and split.

Everything here is computed from run directories alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protea.config.words import MEASURES
from protea.core.errors import ConfigError
from protea.core.shell import quoted
from protea.runs.compared_gains import LabelledRun, MethodGain, method_gains
from protea.runs.compared_number import ComparedNumber, choose_number, refuse_unknown
from protea.runs.compared_rules import RuleMeans, rule_means
from protea.runs.directory import RunDirectory
from protea.runs.gain import is_local
from protea.runs.inert import inert_pulls
from protea.runs.reader import RunReader, find, unwell
from protea.runs.settings_diff import (
    SAME,
    chosen,
    differing,
    labels,
    refuse_different,
    settings,
    shown,
    under,
    usual_settings,
    words_of,
)
from protea.runs.spread import Spread


@dataclass(frozen=True)
class Reached:
    """When runs came to the target: the first such round, mean over runs, where all did."""

    round: float | None
    runs: int  # how many did
    of: int  # how many runs there are


@dataclass(frozen=True)
class Row:
    """One method in one setting, over all its runs."""

    label: str
    method: str
    seeds: list[int]
    score: Spread
    difference: Spread | None  # to the row compared against; None where no pair has the same seed and split
    per_megabyte: float | None  # None where nothing is sent
    reached: Reached | None  # None where no target was asked for
    majority: float | None  # None for numbers that it is no yardstick for
    sent: float  # bytes up and down, all clients and rounds, mean over runs
    steps: float | None  # of SGD, of a client on its own samples, mean over runs; None where not all runs know
    differs: dict[str, tuple[str, str]]  # settings that should be the same: here, elsewhere


@dataclass(frozen=True)
class Comparison:
    """The table of methods, and what its caption must say."""

    choice: ComparedNumber
    rows: list[Row]  # best first
    against: str | None  # a label
    target: float | None
    data: str
    rounds: int
    seeds: list[int]
    notes: list[str]  # what was left out, and what else a reader must know
    warnings: list[str]  # of the runs, which look unwell
    gains: list[MethodGain]  # of each row but that compared against, best first; none where nobody trains alone
    by_rule: RuleMeans  # the number by every answering rule, if asked for


@dataclass(frozen=True)
class _Judged:
    run: RunReader
    value: float
    label: str

    @property
    def pair(self) -> tuple[int, str]:
        """Runs that differ in their method alone have the same."""
        return self.run.seed, self.run.partition


def compare(
    paths: Iterable[Path | str],
    *,
    rule: str | None = None,
    scope: str = "own",
    weighting: str | None = None,
    protocol: str | None = None,
    measure: str = "accuracy",
    target: float | None = None,
    against: str | None = None,
    anyway: bool = False,
    where: Sequence[str] = (),
    clients: bool = False,
    rules: bool = False,
) -> Comparison:
    """Compare the runs in ``paths`` that have the settings ``where``.

    With ``clients``, they are compared client by client too; with ``rules``, by every answering rule.  Raise
    :class:`ConfigError` where they do not compare, unless ``anyway``.
    """
    if target is not None and measure in MEASURES and not 0 < target <= 1:
        raise ConfigError(f"--target is {target:g}; expected is a share, such as --target 0.9 for 90 %.")
    notes: list[str] = []
    runs = chosen(_ended(paths, notes), where)
    if not anyway:
        refuse_different(runs)
    choice = choose_number(runs, rule, scope, weighting, protocol, measure, anyway)
    judged = _judge(runs, choice, notes)
    best_first = sorted(_grouped(judged).items(), key=lambda item: _order(item[1], choice))
    base = _base([(label, runs[0].run.method) for label, runs in best_first], against)
    usual = usual_settings([each.run for each in judged])
    others = {run.pair: run.value for run in judged if run.label == base}
    rows = [_row(label, runs, choice, {} if label == base else others, target, usual) for label, runs in best_first]
    seeds = sorted({seed for row in rows for seed in row.seeds})
    for row in rows:
        pairs = row.difference.count if row.difference else 0
        if base not in (None, row.label) and pairs < row.score.count:
            notes.append(
                f"{row.label}: {pairs} of {row.score.count} runs have the seed and the split of one of {base}."
            )
        if missing := [seed for seed in seeds if seed not in row.seeds]:
            notes.append(f"{row.label} has no run with seed {words_of(missing)}: its mean is over other seeds.")
    warnings = unwell({label: [each.run for each in runs] for label, runs in best_first})
    warnings += inert_pulls([each.run for each in judged])
    gains = _gains([(label, each.run) for label, runs in best_first for each in runs], base, choice, clients)
    by_rule = rule_means({label: [each.run for each in runs] for label, runs in best_first}, choice) if rules else {}
    return Comparison(
        choice, rows, base, target, _data(usual), int(usual["rounds"]), seeds, notes, warnings, gains, by_rule
    )


def _gains(runs: Sequence[LabelledRun], base: str | None, choice: ComparedNumber, clients: bool) -> list[MethodGain]:
    """The gains of the rows, where the number compared is one, and some run is of training alone or clients are asked.

    Rows that differ in their data, which may be there ``anyway``, have no pairs.
    """
    if not choice.of_samples:
        if clients:
            raise ConfigError(
                "--clients is of accuracies on the clients' own test samples, every sample counting once.  Leave out "
                "--scope, --measure and --weighting."
            )
        return []
    if not clients and not any(run.alone or is_local(run.method) for _, run in runs):
        return []
    return [each for each in method_gains(runs, base, choice.rounds, choice.rule) if each.known]


def _ended(paths: Iterable[Path | str], notes: list[str]) -> list[RunReader]:
    """The runs that have ended; ``notes`` says of the others why they are left out."""
    found = []
    for path in find(paths):
        summary = RunDirectory.open(path).summary()
        if summary is None:
            failed = path / "error.txt"  # of a sweep
            why = (
                f"it failed, see {failed}"
                if failed.is_file()
                else f"it has not ended.  To end it: protea resume {quoted(path)}"
            )
            notes.append(f"{path} is left out: {why}")
        elif "protocols" not in summary:
            notes.append(f"{path} is left out: its summary.json names no protocols.  It is of an earlier version.")
        else:
            found.append(RunReader.read(path, clients=False))
    if not found:
        raise ConfigError("There is no run to compare.\n  " + "\n  ".join(notes))
    return found


def _judge(runs: Sequence[RunReader], choice: ComparedNumber, notes: list[str]) -> list[_Judged]:
    """Each run's number.  A run without one is left out, and one that is there twice counts once."""
    found: dict[tuple[str, int, str], _Judged] = {}
    missing = []
    for run, label in zip(runs, labels(runs), strict=True):
        value = choice.reported(run)
        if value is None:
            missing.append(f"{run.path} ({run.method}) is left out: it has {_lack(run, choice)}")
            continue
        judged = _Judged(run, value, label)
        if (same := found.setdefault((label, *judged.pair), judged)) is not judged:
            notes.append(f"{run.path} is left out: it has the settings, the seed and the split of {same.run.path}.")
    if not found:
        raise ConfigError("No run has the number that was asked for.\n  " + "\n  ".join(missing))
    notes += missing
    return list(found.values())


def _lack(run: RunReader, choice: ComparedNumber) -> str:
    """Why a run has no such number, and what would help."""
    rounds = choice.rounds(run)
    if not rounds:
        return f"nothing to report by --protocol {choice.protocol}: no samples were held out for it."
    if not choice.built_in:
        return f"no metric {choice.measure!r} in round {words_of(rounds)}."
    parts = [choice.rules(record) for record in run.rounds if record.round in rounds]
    rules = [rule for rule in parts[0] if all(rule in part for part in parts)]
    if rules:
        return f"no rule {choice.rule!r} here.  It has {', '.join(rules)}."
    if choice.scope == "server":
        return "no model on the server."
    return (
        f"no answers on the shared test set in round {words_of(rounds)}.  Try --protocol final, or run it with "
        f"evaluation.shared=1."
    )


def _grouped(judged: Sequence[_Judged]) -> dict[str, list[_Judged]]:
    found: dict[str, list[_Judged]] = {}
    for run in judged:
        found.setdefault(run.label, []).append(run)
    return found


def _order(runs: Sequence[_Judged], choice: ComparedNumber) -> tuple[float, str]:
    mean = math.fsum(run.value for run in runs) / len(runs)
    return (mean if choice.lower_is_better else -mean), runs[0].label


def _base(rows: Sequence[tuple[str, str]], against: str | None) -> str | None:
    """The label that others are compared with: as asked, else local training, else the first row.

    Rows come best first: where there is no plain ``local`` but variants of it, the best of these is the one to beat.
    """
    if against is None:
        if len(rows) == 1:
            return None
        local = [(method != "local", label) for label, method in rows if is_local(method)]
        return min(local, key=lambda each: each[0])[1] if local else rows[0][0]
    exact = [label for label, _ in rows if label == against]
    found = exact or [label for label, method in rows if method == against]
    if not found:
        refuse_unknown(against, [label for label, _ in rows], "--against")
    if len(found) > 1:
        each = " or ".join(f"--against {label!r}" for label in found)
        raise ConfigError(f"--against {against} may be any of {len(found)} rows.  Write {each}.")
    return found[0]


def _row(
    label: str,
    runs: Sequence[_Judged],
    choice: ComparedNumber,
    others: Mapping[tuple[int, str], float],
    target: float | None,
    usual: Mapping[str, Any],
) -> Row:
    summaries = [each.run.ended for each in runs]
    sent = [summary["bytes_up"] + summary["bytes_down"] for summary in summaries]
    steps = [summary["steps"] for summary in summaries if summary.get("steps") is not None]
    differences = [run.value - others[run.pair] for run in runs if run.pair in others]
    yardstick = choice.scope == "own" and choice.measure == "accuracy" and choice.weighting == "weighted"
    majority = [summary["majority"] for summary in summaries if yardstick and summary["majority"] is not None]
    efficient = all(sent) and not choice.lower_is_better
    gain = [run.value / (count / 1e6) for run, count in zip(runs, sent, strict=True)] if efficient else []
    own = settings(runs[0].run)
    return Row(
        label=label,
        method=runs[0].run.method,
        seeds=sorted({each.run.seed for each in runs}),
        score=Spread.of([run.value for run in runs]),
        difference=Spread.of(differences) if differences else None,
        per_megabyte=statistics.mean(gain) if gain else None,
        reached=None if target is None else _reached([each.run for each in runs], choice, target),
        majority=statistics.mean(majority) if majority else None,
        sent=statistics.mean(sent),
        steps=statistics.mean(steps) if len(steps) == len(runs) else None,
        differs={
            name: (shown(own.get(name)), shown(usual.get(name)))
            for name in differing([own, usual])
            if under(name, SAME)
        },
    )


def _reached(runs: Sequence[RunReader], choice: ComparedNumber, target: float) -> Reached:
    firsts = []
    for run in runs:
        values = ((record.round, choice.of(record)) for record in run.rounds)
        first = next((round for round, value in values if value is not None and choice.reaches(value, target)), None)
        if first is not None:
            firsts.append(first)
    everyone = len(firsts) == len(runs)
    return Reached(statistics.mean(firsts) if everyone else None, len(firsts), len(runs))


def _data(usual: Mapping[str, Any]) -> str:
    """``digits, dirichlet alpha=0.1, 10 clients``."""

    def one(group: str) -> str:
        named = {name.removeprefix(f"{group}."): value for name, value in usual.items() if under(name, (group,))}
        rest = [f"{name}={shown(value)}" for name, value in named.items() if name != "kind"]
        return " ".join([str(named.get("kind", "")), *rest]).strip()

    return f"{one('data.source')}, {one('data.partition')}, {usual['clients']} clients"
