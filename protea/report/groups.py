"""Which runs are seeds of the same experiment, and in what the others differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protea.runs.past import Past

# Settings that do not change what a number means.
ASIDE = ("seed", "device", "engine", "checkpoint", "evaluation.snapshots")


def of(pasts: Sequence[Past]) -> list[dict[str, Any]]:
    """Runs that differ in their seed alone, together: ``{"label", "runs"}`` in order of appearance."""
    settings = [compared(past) for past in pasts]
    found: list[list[int]] = []
    for index, mine in enumerate(settings):
        for group in found:
            if settings[group[0]] == mine and pasts[group[0]].method == pasts[index].method:
                group.append(index)
                break
        else:
            found.append([index])
    firsts = [group[0] for group in found]
    return [{"label": label(group[0], firsts, settings, pasts), "runs": group} for group in found]


def label(index: int, others: Sequence[int], settings: Sequence[Mapping[str, Any]], pasts: Sequence[Past]) -> str:
    """The method, and the settings that set the group apart from others of this method; the run's name if many do."""
    same = [settings[other] for other in others if pasts[other].method == pasts[index].method]
    apart = [f"{name}={show(value)}" for name, value in settings[index].items() if not alike(name, same)]
    if len(apart) > 3:
        return f"{pasts[index].method} ({names(pasts)[index]})"
    return " ".join([pasts[index].method, *apart])


def names(pasts: Sequence[Past]) -> list[str]:
    """What readers call the runs: their folders' names, with as many folders above as it takes to tell them apart."""
    parts = [past.path.resolve().parts for past in pasts]
    depth = 1
    while len({part[-depth:] for part in parts}) < len(set(parts)):
        depth += 1
    return ["/".join(part[-depth:]) for part in parts]


def differences(pasts: Sequence[Past]) -> list[dict[str, Any]]:
    """Notices: what besides method and seed differs between runs, so that their numbers may not compare."""
    settings, called, found = [compared(past) for past in pasts], names(pasts), []
    for name in dict.fromkeys(name for mine in settings for name in mine):
        if not name.startswith("method.") and not alike(name, settings):
            found.append(warning(f"The runs differ in {name}", [show(mine.get(name)) for mine in settings], called))
    ended = {n: str(p.summary["made"]["protocol"]) for n, p in zip(called, pasts, strict=True) if p.summary is not None}
    if len(set(ended.values())) > 1:
        found.append(warning("The runs differ in protocol used", list(ended.values()), list(ended)))
    for seed in dict.fromkeys(past.seed for past in pasts):
        together = {
            name: f"split {past.partition[:4]}"
            for name, past in zip(called, pasts, strict=True)
            if past.seed == seed and (past.path / "partition.json").is_file()
        }
        if len(set(together.values())) > 1:
            what = f"Runs of seed {seed} have different samples at their clients"
            found.append(warning(what, list(together.values()), list(together)))
    top = {"kind": "warning", "text": "These runs differ in more than method and seed: their numbers may not compare."}
    return [top, *found] if found else []


def warning(what: str, values: Sequence[str], called: Sequence[str]) -> dict[str, Any]:
    """``what: validation (a, b); best (c).``"""
    owners: dict[str, list[str]] = {}
    for value, name in zip(values, called, strict=True):
        owners.setdefault(value, []).append(name)
    each = "; ".join(f"{value} ({', '.join(some)})" for value, some in owners.items())
    return {"kind": "warning", "text": f"{what}: {each}."}


def alike(name: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    return len({show(mine.get(name)) for mine in settings}) < 2


def compared(past: Past) -> dict[str, Any]:
    """The settings that decide what a run's numbers mean, by dotted name."""
    aside = (*ASIDE, "data.seed")
    every = flat(past.config).items()
    return {name: value for name, value in every if not any(name == a or name.startswith(f"{a}.") for a in aside)}


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def show(value: Any) -> str:
    return "not set" if value is None else str(value)
