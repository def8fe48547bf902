"""Means over seeds, and methods side by side, as ``protea compare`` has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from protea.config.words import PROTOCOLS
from protea.core.errors import ConfigError
from protea.report import groups
from protea.runs.compare import Row, compare
from protea.runs.compared_gains import MethodGain
from protea.runs.reader import RunReader
from protea.runs.spread import Spread

Plain = dict[str, Any]


def comparison(runs: Sequence[RunReader], differ: Sequence[Plain]) -> Plain | None:
    """The table of methods, best first, or a sentence ``why`` there is none; None of a single run."""
    if len(runs) < 2:
        return None
    if differ:
        return {"why": "There is no table of methods compared: " + apart(differ)}
    try:
        found = compare([run.path for run in runs])
    except ConfigError as error:
        return {"why": f"There is no table of methods compared. {str(error).splitlines()[0]}"}
    return {
        "protocol": found.choice.protocol,
        "against": found.against,
        "rows": [row(each) for each in found.rows],
        "gains": [gains(each) for each in found.gains],
        "notes": found.notes,
    }


def apart(differ: Sequence[Plain]) -> str:
    """The sentence that says that runs do not compare."""
    some = ", ".join(each["name"] for each in differ[:3]) + (f" and {len(differ) - 3} more" if len(differ) > 3 else "")
    return f"these runs do not compare, since they differ in {some}."


def row(found: Row) -> Plain:
    """A row of the table as plain values."""
    return {
        "label": found.label,
        "score": plain(found.score),
        "difference": None if found.difference is None else {**plain(found.difference), "p": found.difference.p},
        "majority": found.majority,
        "steps": found.steps,
        "sent": found.sent,
    }


def gains(found: MethodGain) -> Plain:
    """The gains of a method; and each client of its first seed, the largest gain first, here and in the reference."""
    clients = found.over.clients if found.over else []
    first = sorted((each for each in clients if each.seed == clients[0].seed), key=lambda each: -each.mean)
    kinds = {kind: {**one.plain(), "clients": None} for kind, one in found.known.items()}
    return {
        "label": found.label,
        **kinds,
        "seed": first[0].seed if first else None,
        "clients": [{"mean": each.mean, "verdict": each.verdict, **asdict(each)} for each in first],
    }


def plain(spread: Spread) -> Plain:
    """A spread as plain values; the 95 % interval is mean - margin .. mean + margin."""
    return {"count": spread.count, "mean": spread.mean, "deviation": spread.deviation, "margin": spread.margin}


def scores(runs: Sequence[RunReader]) -> Plain:
    """The headline accuracy of a group, and that by each protocol, over its runs that have ended."""
    ended: dict[tuple[int, str], RunReader] = {}
    for run in runs:
        if run.summary is not None and run.summary["accuracy"] is not None:
            ended.setdefault((run.seed, run.partition), run)  # a run that is there twice counts once
    summaries = [run.ended for run in ended.values()]
    found = {}
    for name in PROTOCOLS:
        values = [s["protocols"][name]["test"]["method"]["weighted"] for s in summaries if name in s["protocols"]]
        if values:
            found[name] = plain(Spread.of(values))
    headline = [summary["accuracy"] for summary in summaries]
    return {"headline": plain(Spread.of(headline)) if headline else None, "protocols": found}


def majorities(runs: Sequence[RunReader], each: Sequence[float | None]) -> list[Plain]:
    """For each data set the accuracy of the majority class, mean over its splits: runs of one seed share theirs."""
    result = []
    for group in groups.data_sets(runs):
        known = {(runs[index].seed, value) for index in group["runs"] if (value := each[index]) is not None}
        if known:
            result.append({**group, "value": fmean(value for _, value in sorted(known))})
    return result
