"""How accuracy is measured.

Accuracy is a function of a rule (which scores answer), a part of the data, and a
weighting over clients.  One pass over a client's data computes features once and counts
the hits of every rule that applies; means are taken from these counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor

from protea.client import Client
from protea.engines import Reply
from protea.method import Method

Rule = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Evaluation:
    """``[evaluation]`` of an experiment."""

    every: PositiveInt = 1  # rounds; the last round is always evaluated
    when: Literal["after", "before"] = "after"  # the round's training


def rules(method: Method[Any, Any], client: Client, down: Any) -> dict[str, Rule]:
    """Every way to answer that applies: the method's own, the head, the nearest global prototype."""
    model = client.model
    ways: dict[str, Rule] = {"method": lambda x: method.predict(client, x, down), "head": model}
    if (known := method.prototypes(down)) is not None:
        own = known.only(client.own)
        ways["global_prototypes"] = lambda x: known.scores(model.features(x))
        ways["global_prototypes_own"] = lambda x: own.scores(model.features(x))
    return ways


@torch.no_grad()
def correct(method: Method[Any, Any], client: Client, down: Any) -> dict[str, float]:
    """Hits of every rule and number of samples, for the client's test and validation part."""
    counts: dict[str, float] = {}
    client.rest()
    ways = rules(method, client, down)
    for part, data in (("test", client.test), ("validation", client.validation)):
        if data is None:
            continue
        counts[f"{part}/samples"] = len(data)
        counts |= {f"{part}/{rule}": 0.0 for rule in ways}
        for x, y in client.batches(data):
            with client.model.remembering():
                for rule, answer in ways.items():
                    counts[f"{part}/{rule}"] += float((answer(x).argmax(1) == y).sum())
    return counts


@dataclass(frozen=True)
class Score:
    """One accuracy, both ways of averaging it over clients."""

    weighted: float  # every test sample counts once
    uniform: float  # every client that has test samples counts once


def reduce(replies: Sequence[Reply], part: str) -> dict[str, Score]:
    """Accuracy of every rule over clients; none for a part that no client has samples of."""
    found: list[Mapping[str, float]] = [r.metrics for r in replies if r.metrics.get(f"{part}/samples")]
    if not found:
        return {}
    total = sum(m[f"{part}/samples"] for m in found)
    shared = set.intersection(*(set(m) for m in found))
    names = sorted(name for name in shared if name.startswith(f"{part}/") and not name.endswith("/samples"))
    return {
        name.removeprefix(f"{part}/"): Score(
            weighted=sum(m[name] for m in found) / total,
            uniform=sum(m[name] / m[f"{part}/samples"] for m in found) / len(found),
        )
        for name in names
    }
