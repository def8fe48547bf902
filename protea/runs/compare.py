"""Methods side by side: the mean over seeds, and differences in pairs.

Everything here is worked out from run directories alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from protea.core.errors import ConfigError, nearest
from protea.runs.directory import RunDirectory
from protea.runs.reader import Line, Past, find, unwell
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
    who,
    words_of,
)

SCOPES = ("own", "ensemble", "shared", "server")
WEIGHTINGS = ("weighted", "uniform")
PROTOCOLS = ("validation", "final", "last5", "best")
MEASURES = ("accuracy", "balanced", "macro_f1", "calibration")
LEAST = 1e-12  # differences that vary by less are the same but for rounding


@dataclass(frozen=True)
class Choice:
    """Which of a run's numbers is compared: see docs/evaluation.md."""

    rule: str
    scope: str
    weighting: str  # over clients; only accuracy on their own samples has a choice
    protocol: str
    measure: str

    def of(self, line: Line) -> float | None:
        """The number in a round's line, if it is there."""
        found = line[self.part].get(self.rule)
        if found is None or self.scope == "server":
            return None if found is None else float(found)
        own = self.weighting if self.measure == "accuracy" else self.measure
        return float(found[{"own": own, "ensemble": "ensemble", "shared": "clients"}[self.scope]])

    @property
    def part(self) -> str:
        """Of a round's line, where the number is."""
        return {"own": "test", "server": "server"}.get(self.scope, "shared")

    def rounds(self, past: Past) -> list[int]:
        """Those that the protocol reports.  Where it looks for the best one, it goes by the method's own rule."""
        found = (past.summary or {})["protocols"].get(self.protocol)
        return found["rounds"] if found else []

    def reported(self, past: Past) -> float | None:
        """The run's number: the mean over the reported rounds; None if one of them has none."""
        chosen = self.rounds(past)
        values = [value for line in past.rounds if line["round"] in chosen and (value := self.of(line)) is not None]
        return math.fsum(values) / len(values) if values and len(values) == len(chosen) else None

    @property
    def lower_is_better(self) -> bool:
        return self.measure == "calibration"

    def reaches(self, value: float, target: float) -> bool:
        return value <= target if self.lower_is_better else value >= target


@dataclass(frozen=True)
class Spread:
    """A mean over seeds; how far it is to be trusted, where there are at least two."""

    count: int
    mean: float
    deviation: float | None = None  # standard deviation of one seed
    margin: float | None = None  # the 95 % interval is mean - margin .. mean + margin

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        from scipy import stats  # type: ignore[import-untyped]  # slow to import, and no other command needs it

        count, mean = len(values), math.fsum(values) / len(values)
        if count < 2:
            return cls(count, mean)
        deviation = statistics.stdev(values)
        return cls(count, mean, deviation, float(stats.t.ppf(0.975, count - 1)) * deviation / math.sqrt(count))

    @property
    def low(self) -> float | None:
        return None if self.margin is None else self.mean - self.margin

    @property
    def high(self) -> float | None:
        return None if self.margin is None else self.mean + self.margin

    @property
    def p(self) -> float | None:
        """Of the t test, two-sided, that the mean is zero; None where values do not vary, and it says nothing."""
        from scipy import stats

        if self.deviation is None or self.deviation < LEAST:
            return None
        return float(2 * stats.t.sf(abs(self.mean) / (self.deviation / math.sqrt(self.count)), self.count - 1))


@dataclass(frozen=True)
class Reached:
    """When runs came to the target: the first such round, mean over runs, where all did."""

    round: float | None
    runs: int  # that did
    of: int


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
    differs: dict[str, tuple[str, str]]  # settings that should be the same: here, elsewhere


@dataclass(frozen=True)
class Comparison:
    """The table and what its caption must say."""

    choice: Choice
    rows: list[Row]  # best first
    against: str | None  # a label
    target: float | None
    data: str
    rounds: int
    seeds: list[int]
    notes: list[str]  # what was left out, and what else a reader must know
    warnings: list[str]  # of the runs, which look unwell


@dataclass(frozen=True)
class _Judged:
    past: Past
    value: float
    label: str

    @property
    def pair(self) -> tuple[int, str]:
        """Runs that differ in their method alone have the same."""
        return self.past.seed, self.past.partition


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
) -> Comparison:
    """Compare the runs in ``paths`` that have the settings ``where``.

    Raise :class:`ConfigError` where they do not compare, unless ``anyway``.
    """
    if target is not None and not 0 < target <= 1:
        raise ConfigError(f"--target is {target:g}; expected is a share, such as --target 0.9 for 90 %.")
    notes: list[str] = []
    pasts = chosen(_ended(paths, notes), where)
    if not anyway:
        refuse_different(pasts)
    choice = choose(pasts, rule, scope, weighting, protocol, measure, anyway)
    judged = _judge(pasts, choice, notes)
    best_first = sorted(_grouped(judged).items(), key=lambda item: _order(item[1], choice))
    base = _base([(label, runs[0].past.method) for label, runs in best_first], against)
    usual = usual_settings([run.past for run in judged])
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
    warnings = unwell({label: [run.past for run in runs] for label, runs in best_first})
    return Comparison(choice, rows, base, target, _data(usual), int(usual["rounds"]), seeds, notes, warnings)


def choose(
    pasts: Sequence[Past],
    rule: str | None,
    scope: str,
    weighting: str | None,
    protocol: str | None,
    measure: str,
    anyway: bool = False,
) -> Choice:
    """The number to compare; what was not asked for is as in the runs' own headline."""
    known(scope, SCOPES, "--scope")
    known(measure, MEASURES, "--measure")
    if weighting is not None:
        known(weighting, WEIGHTINGS, "--weighting")
    if protocol is not None:
        known(protocol, PROTOCOLS, "--protocol")
    if scope != "own" and measure != "accuracy":
        raise ConfigError(f"--scope {scope} has the accuracy alone, not {measure}.  Leave out --measure.")
    if weighting == "uniform" and (scope != "own" or measure != "accuracy"):
        what = f"--scope {scope}" if scope != "own" else f"--measure {measure}"
        raise ConfigError(f"{what} is not weighted over clients.  Leave out --weighting.")
    if protocol is None:
        # Clients answer the shared test set in the last round, and in others only if they were told to.
        protocol = "final" if scope in ("ensemble", "shared") else _headline(pasts, anyway)
    return Choice(
        rule or ("head" if scope == "server" else "method"), scope, weighting or "weighted", protocol, measure
    )


def known(value: str, names: Iterable[str], option: str) -> None:
    """Refuse a value that an option does not have."""
    names = list(names)
    if value not in names:
        raise ConfigError(f"{option} is {value!r}.  {nearest(value, names)}")


def _ended(paths: Iterable[Path | str], notes: list[str]) -> list[Past]:
    """Runs that have ended.  Their clients' lines, which are many, are not kept."""
    found = []
    for path in find(paths):
        summary = RunDirectory.open(path).summary()
        if summary is None:
            failed = path / "error.txt"  # of a sweep
            why = (
                f"it failed, see {failed}"
                if failed.is_file()
                else f"it has not ended.  To end it: protea resume {path}"
            )
            notes.append(f"{path} is left out: {why}")
        elif "protocols" not in summary:
            notes.append(f"{path} is left out: its summary.json names no protocols.  It is of an earlier version.")
        else:
            found.append(replace(Past.read(path), clients=[]))
    if not found:
        raise ConfigError("There is no run to compare.\n  " + "\n  ".join(notes))
    return found


def _headline(pasts: Sequence[Past], anyway: bool) -> str:
    """The protocol that all runs report by; ``anyway``, the first one that all have numbers of."""
    found = [str((past.summary or {})["made"]["protocol"]) for past in pasts]
    if len(set(found)) == 1:
        return found[0]
    common = [name for name in PROTOCOLS if all(name in (past.summary or {})["protocols"] for past in pasts)]
    if anyway and common:
        return common[0]
    raise ConfigError(
        f"The runs report by different protocols: {who(found, pasts)}.\n"
        f"  All have numbers of these.  Choose one: --protocol {'|'.join(common)}"
    )


def _judge(pasts: Sequence[Past], choice: Choice, notes: list[str]) -> list[_Judged]:
    """Each run's number.  A run without one is left out, and one that is there twice counts once."""
    found: dict[tuple[str, int, str], _Judged] = {}
    missing = []
    for past, label in zip(pasts, labels(pasts), strict=True):
        value = choice.reported(past)
        if value is None:
            missing.append(f"{past.path} ({past.method}) is left out: it has {_lack(past, choice)}")
            continue
        run = _Judged(past, value, label)
        if (same := found.setdefault((label, *run.pair), run)) is not run:
            notes.append(f"{past.path} is left out: it has the settings, the seed and the split of {same.past.path}.")
    if not found:
        raise ConfigError("No run has the number that was asked for.\n  " + "\n  ".join(missing))
    notes += missing
    return list(found.values())


def _lack(past: Past, choice: Choice) -> str:
    """Why a run has no such number, and what would help."""
    rounds = choice.rounds(past)
    if not rounds:
        return f"nothing to report by --protocol {choice.protocol}: no samples were held out for it."
    parts = [line[choice.part] for line in past.rounds if line["round"] in rounds]
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


def _order(runs: Sequence[_Judged], choice: Choice) -> tuple[float, str]:
    mean = math.fsum(run.value for run in runs) / len(runs)
    return (mean if choice.lower_is_better else -mean), runs[0].label


def _base(rows: Sequence[tuple[str, str]], against: str | None) -> str | None:
    """The label that others are compared with: as asked, else local training, else the first row."""
    if against is None:
        if len(rows) == 1:
            return None
        return next((label for label, method in rows if method == "local"), rows[0][0])
    exact = [label for label, _ in rows if label == against]
    found = exact or [label for label, method in rows if method == against]
    if not found:
        known(against, [label for label, _ in rows], "--against")
    if len(found) > 1:
        each = " or ".join(f"--against {label!r}" for label in found)
        raise ConfigError(f"--against {against} may be any of {len(found)} rows.  Write {each}.")
    return found[0]


def _row(
    label: str,
    runs: Sequence[_Judged],
    choice: Choice,
    others: Mapping[tuple[int, str], float],
    target: float | None,
    usual: Mapping[str, Any],
) -> Row:
    summaries = [run.past.summary or {} for run in runs]
    sent = [summary["bytes_up"] + summary["bytes_down"] for summary in summaries]
    differences = [run.value - others[run.pair] for run in runs if run.pair in others]
    yardstick = choice.scope == "own" and choice.measure == "accuracy" and choice.weighting == "weighted"
    majority = [summary["majority"] for summary in summaries if yardstick and summary["majority"] is not None]
    efficient = all(sent) and not choice.lower_is_better
    gain = [run.value / (count / 1e6) for run, count in zip(runs, sent, strict=True)] if efficient else []
    own = settings(runs[0].past)
    return Row(
        label=label,
        method=runs[0].past.method,
        seeds=sorted({run.past.seed for run in runs}),
        score=Spread.of([run.value for run in runs]),
        difference=Spread.of(differences) if differences else None,
        per_megabyte=statistics.mean(gain) if gain else None,
        reached=None if target is None else _reached([run.past for run in runs], choice, target),
        majority=statistics.mean(majority) if majority else None,
        sent=statistics.mean(sent),
        differs={
            name: (shown(own.get(name)), shown(usual.get(name)))
            for name in differing([own, usual])
            if under(name, SAME)
        },
    )


def _reached(pasts: Sequence[Past], choice: Choice, target: float) -> Reached:
    firsts = []
    for past in pasts:
        values = ((line["round"], choice.of(line)) for line in past.rounds)
        first = next((round for round, value in values if value is not None and choice.reaches(value, target)), None)
        if first is not None:
            firsts.append(first)
    everyone = len(firsts) == len(pasts)
    return Reached(statistics.mean(firsts) if everyone else None, len(firsts), len(pasts))


def _data(usual: Mapping[str, Any]) -> str:
    """``digits, dirichlet alpha=0.1, 10 clients``."""

    def one(group: str) -> str:
        named = {name.removeprefix(f"{group}."): value for name, value in usual.items() if under(name, (group,))}
        rest = [f"{name}={shown(value)}" for name, value in named.items() if name != "kind"]
        return " ".join([str(named.get("kind", "")), *rest]).strip()

    return f"{one('data.source')}, {one('data.partition')}, {usual['clients']} clients"
