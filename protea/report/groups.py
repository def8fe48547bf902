"""Which runs belong together: seeds of one experiment, runs on the same data; and what differs that should not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from protea.runs.reader import RunReader
from protea.runs.settings_diff import SAME, differing, labels, settings, shown, under

LONGEST = 60  # characters of a label; beyond that the run's name says more


def of(runs: Sequence[RunReader]) -> list[dict[str, Any]]:
    """Group runs that differ in their seed alone: ``{"label", "runs"}`` in order of appearance.

    The protocol is no setting that makes other numbers, but numbers by two protocols have no common mean.  What stands
    behind the name of a method, such as ``alone``, makes another experiment.
    """
    found = together([[settings(run), protocol(run), run.method.partition(" ")[2]] for run in runs])
    # A run that goes on does not know its variant yet; a seed of the same experiment that has ended does.
    firsts = [next((index for index in group if runs[index].summary is not None), group[0]) for group in found]
    all_labels, called = labels(runs), names(runs)
    often = Counter(all_labels[first] for first in firsts)
    result = []
    for group, first in zip(found, firsts, strict=True):
        label = all_labels[first]
        label += f" protocol={protocol(runs[first])}" if often[label] > 1 else ""
        short = label if len(label) <= LONGEST else f"{runs[first].method} ({called[first]})"
        result.append({"label": short, "runs": group})
    return result


def data_sets(runs: Sequence[RunReader]) -> list[dict[str, Any]]:
    """Group runs on the same data, shared out in the same way; a label has what tells them apart, if anything."""
    tables = [
        {name: value for name, value in settings(run).items() if under(name, ("data", "clients"))} for run in runs
    ]
    found = together(tables)
    firsts = [tables[group[0]] for group in found]
    names = sorted(differing(firsts), key=lambda name: not name.endswith(".kind"))  # the kind says most
    told = [[said(table, names[:count]) for table in firsts] for count in range(len(names) + 1)]
    fewest = next((each for each in told if len(set(each)) == len(found)), told[-1])
    return [{"label": label, "runs": group} for label, group in zip(fewest, found, strict=True)]


def said(table: Mapping[str, Any], names: Sequence[str]) -> str:
    """``digits, alpha 0.1``: some of the settings, as far as the table has them."""
    known = [(name, shown(table[name])) for name in names if name in table]
    return ", ".join(value if name.endswith(".kind") else f"{name.rpartition('.')[2]} {value}" for name, value in known)


def together(marks: Sequence[Any]) -> list[list[int]]:
    """Lists of the places of equal marks, in order of appearance."""
    found: dict[str, list[int]] = {}
    for index, mark in enumerate(marks):
        found.setdefault(json.dumps(mark, sort_keys=True, default=str), []).append(index)
    return list(found.values())


def protocol(run: RunReader) -> str:
    """The protocol that a run was asked to report by; the one it did report by is known at its end only."""
    return str(run.config.get("evaluation", {}).get("protocol", "validation"))


def names(runs: Sequence[RunReader]) -> list[str]:
    """What readers call the runs: their folders' names, with as many folders above as it takes to tell them apart."""
    parts = [run.path.resolve().parts for run in runs]
    depth = 1
    while len({part[-depth:] for part in parts}) < len(set(parts)):
        depth += 1
    return ["/".join(part[-depth:]) for part in parts]


def differences(runs: Sequence[RunReader]) -> list[dict[str, Any]]:
    """What differs that must be the same in runs that compare: ``{"name", "values": [{"value", "runs"}]}``."""
    tables, called = [settings(run) for run in runs], names(runs)
    found = [
        difference(name, [shown(table.get(name)) for table in tables], called)
        for name in differing(tables)
        if under(name, SAME)
    ]
    ended = {n: str(p.summary["made"]["protocol"]) for n, p in zip(called, runs, strict=True) if p.summary is not None}
    if len(set(ended.values())) > 1:
        found.append(difference("evaluation.protocol, as used", list(ended.values()), list(ended)))
    return found or splits(runs, called)


def splits(runs: Sequence[RunReader], called: Sequence[str]) -> list[dict[str, Any]]:
    """Runs of one seed whose clients have different samples, though all settings of the data are the same."""
    found = []
    for seed in dict.fromkeys(run.seed for run in runs):
        marks = {
            name: run.partition
            for name, run in zip(called, runs, strict=True)
            if run.seed == seed and (run.path / "partition.json").is_file()
        }
        if len(set(marks.values())) > 1:
            what = f"who has which samples, with seed {seed}"
            found.append(difference(what, [f"split {mark[:6]}" for mark in marks.values()], list(marks)))
    return found


def difference(name: str, values: Sequence[str], called: Sequence[str]) -> dict[str, Any]:
    """One setting that differs: each of its values, with the names of the runs that have it."""
    owners: dict[str, list[str]] = {}
    for value, run in zip(values, called, strict=True):
        owners.setdefault(value, []).append(run)
    return {"name": name, "values": [{"value": value, "runs": runs} for value, runs in owners.items()]}
