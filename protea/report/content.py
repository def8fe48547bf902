"""From run directories to the plain values that a report draws: every number in it comes from here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from protea.report import compared, groups, words
from protea.report.space import space
from protea.runs.directory import RunDirectory
from protea.runs.reader import Line, Past

Plain = dict[str, Any]
Say = Callable[[str], None]

PARTS = ("test", "validation")
SCORES = ("weighted", "uniform", "balanced", "macro_f1", "calibration")


def silent(message: str) -> None: ...


def content(pasts: Sequence[Past], say: Say = silent) -> Plain:
    """All that a report of these runs shows.

    Every run has its totals; clients, classes and prototypes are there for the first run of each group, which
    keeps the page small however many seeds there are.
    """
    found, names = groups.of(pasts), groups.names(pasts)
    runs = [{"name": name, **totals(past)} for name, past in zip(names, pasts, strict=True)]
    for group in found:
        first = group["runs"][0]
        say(f"{pasts[first].path}: prototypes are laid out on a map")
        runs[first]["details"] = details(pasts[first])
        group |= compared.scores([pasts[index] for index in group["runs"]])
    differ = groups.differences(pasts)
    if differ:
        say(f"Beware: {compared.apart(differ)} The page says which run has which.")
    return {
        "title": words.title(pasts),
        "question": words.question(pasts),
        "notices": words.notices(pasts, found),
        "differences": differ,
        "comparison": compared.comparison(pasts, differ),
        "majorities": compared.majorities(pasts, [run["majority"] for run in runs]),
        "groups": found,
        "runs": runs,
    }


def totals(past: Past) -> Plain:
    """A run's settings, headline and course over the rounds."""
    return {
        "method": past.method,
        "seed": past.seed,
        "planned": past.config.get("rounds"),
        "config": flat(past.config),
        "environment": flat(environment(past)),
        "summary": past.summary,
        "majority": majority(past),
        "rules": rules(past),
        "rounds": [line["round"] for line in past.rounds],
        "scores": {part: course(past, part) for part in PARTS},
        "bytes": [line["bytes_up"] + line["bytes_down"] for line in past.rounds],
        "cost": {
            name: [rounded(line["cost"]["seconds"].get(name)) for line in past.rounds]
            for name in dict.fromkeys(name for line in past.rounds for name in line["cost"]["seconds"])
        },
        "failures": sum(len(line["failures"]) for line in past.rounds),
    }


def details(past: Past) -> Plain:
    """A run's clients, classes and prototypes."""
    return {
        "classes": past.data["classes"],
        "clients": past.data["clients"],
        "accuracies": {part: clients(past, part) for part in PARTS},
        "by_class": [by_class(line["classes"]) for line in past.rounds],
        "geometry": [rounded(line["geometry"]) for line in past.rounds],
        "space": space(RunDirectory(past.path).snapshots()),
    }


def rules(past: Past) -> list[str]:
    """Every rule that some round has, the method's own first."""
    return list(dict.fromkeys(["method", *(rule for line in past.scored for rule in line["test"])]))


def course(past: Past, part: str) -> Plain:
    """By rule and score, a value for each round; None in rounds without evaluation."""
    return {
        rule: {name: [rounded(line[part].get(rule, {}).get(name)) for line in past.rounds] for name in SCORES}
        for rule in rules(past)
    }


def clients(past: Past, part: str) -> Plain:
    """By rule, for each client its accuracy in each round."""
    at = {line["round"]: index for index, line in enumerate(past.rounds)}
    numbers = [client["client"] for client in past.data["clients"]]
    found: Plain = {rule: {number: [None] * len(at) for number in numbers} for rule in rules(past)}
    for line in past.clients:
        samples = line.get(f"{part}/samples")
        for rule in found if samples and line["round"] in at else ():
            if (hits := line.get(f"{part}/{rule}")) is not None:
                found[rule][line["client"]][at[line["round"]]] = rounded(hits / samples)
    return {rule: list(by_client.values()) for rule, by_client in found.items()}


def by_class(counted: Mapping[str, Sequence[int]]) -> list[float | None] | None:
    """The accuracy on each class by the method's own rule."""
    if not counted:
        return None
    pairs = zip(counted["hits"], counted["samples"], strict=True)
    return [rounded(hits / samples) if samples else None for hits, samples in pairs]


def majority(past: Past) -> float | None:
    """The accuracy of always answering a client's commonest training class; also known while a run goes on."""
    if past.summary is not None:
        return None if past.summary["majority"] is None else float(past.summary["majority"])
    right = sum(client["test"][commonest(client["train"])] for client in past.data["clients"])
    samples = sum(sum(client["test"]) for client in past.data["clients"])
    return right / samples if samples else None


def commonest(counts: Sequence[int]) -> int:
    return max(range(len(counts)), key=counts.__getitem__)


def environment(past: Past) -> Plain:
    path = past.path / "environment.json"
    found: Plain = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def flat(table: Mapping[str, Any], prefix: str = "") -> Plain:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    found: Plain = {}
    for name, value in table.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def rounded(value: Any) -> Any:
    """Numbers to five digits, which no plot shows more of; None for what is not a number."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, list):
        return [rounded(each) for each in value]
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return value


def read(paths: Sequence[Path]) -> list[Past]:
    return [Past.read(path) for path in paths]


__all__ = ["Line", "Plain", "content", "read"]
