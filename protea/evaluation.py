"""How accuracy is measured.

Accuracy is a function of a rule (which scores answer), a part of the data, and a
weighting over clients.  One pass over a client's data computes features once and counts
the hits of every rule that applies; means are taken from these counts.

On the test set that all share, every client gives class probabilities, and the server,
which has the labels, finds how each client does and how all do together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor

from protea.client import LOOK, Client
from protea.data.samples import Samples
from protea.engines import Reply
from protea.method import Method
from protea.payload import Named
from protea.server import Server

Rule = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Evaluation:
    """``[evaluation]`` of an experiment."""

    every: PositiveInt = 1  # rounds; the last round is always evaluated
    when: Literal["after", "before"] = "after"  # the round's training
    shared: Literal["never", "last"] | PositiveInt = "last"  # every n rounds, all clients on the shared test set

    def due(self, round: int, rounds: int) -> bool:
        """Whether clients are judged on their own data in this round."""
        return round % self.every == 0 or round == rounds

    def shared_due(self, round: int, rounds: int) -> bool:
        """Whether they are judged on the shared test set too."""
        if isinstance(self.shared, str):
            return self.shared == "last" and round == rounds
        return round % self.shared == 0 or round == rounds


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


@torch.no_grad()
def answers(method: Method[Any, Any], client: Client, down: Any) -> Named:
    """Every rule's class probabilities for the shared test set, (samples, classes) each."""
    if client.shared_test is None:
        return {}
    found: dict[str, list[Tensor]] = {}
    client.rest()
    for x, _ in client.batches(client.shared_test):
        with client.model.remembering():
            for rule, answer in rules(method, client, down).items():
                found.setdefault(rule, []).append(probabilities(answer(x)))
    return {rule: torch.cat(parts) for rule, parts in found.items()}


def probabilities(scores: Tensor) -> Tensor:
    """Softmax of scores; where no class has a score at all, each is as likely."""
    return scores.masked_fill(scores.isneginf().all(1, keepdim=True), 0.0).softmax(1)


@torch.no_grad()
def serve(method: Method[Any, Any], server: Server, test: Samples) -> dict[str, float]:
    """Accuracy on the shared test set of the server's own model, if it has one, by rule."""
    model = method.server_model(server)
    if model is None:
        return {}
    model.eval()
    ways: dict[str, Rule] = {"head": model}
    if (known := method.prototypes(method.broadcast(server, 0))) is not None:
        ways["global_prototypes"] = lambda x: known.scores(model.features(x))
    hits = dict.fromkeys(ways, 0)
    for rows in torch.arange(len(test)).split(LOOK):
        x, y = test.batch(rows)
        with model.remembering():
            for rule, answer in ways.items():
                hits[rule] += int((answer(x).argmax(1) == y).sum())
    return {rule: count / len(test) for rule, count in hits.items()}


@dataclass(frozen=True)
class Score:
    """One accuracy, both ways of averaging it over clients."""

    weighted: float  # every test sample counts once
    uniform: float  # every client that has test samples counts once


@dataclass(frozen=True)
class Shared:
    """One rule's accuracy on the shared test set."""

    ensemble: float  # of all clients together: the class whose mean probability is largest
    clients: float  # of a client alone, mean over clients


@dataclass
class Judged:
    """What one evaluation found."""

    own: list[Reply] = field(default_factory=list)  # clients on their own data
    shared: Together | None = None  # and on the shared test set
    server: dict[str, float] = field(default_factory=dict)

    def scores(self, part: str) -> dict[str, Score]:
        return reduce(self.own, part)

    def clients(self) -> list[dict[str, Any]]:
        """Each client's numbers."""
        found = {reply.client: dict(reply.metrics) for reply in self.own if reply.error is None}
        for client, alone in (self.shared.alone if self.shared else {}).items():
            found.setdefault(client, {}).update({f"shared/{rule}": value for rule, value in alone.items()})
        return [{"client": client, **values} for client, values in sorted(found.items())]

    def failures(self) -> dict[int, str]:
        own = {reply.client: reply.error for reply in self.own if reply.error is not None}
        return own | (self.shared.failures if self.shared else {})


class Together:
    """Adds up what clients say of the shared test set, one after another."""

    def __init__(self, labels: Tensor) -> None:
        self.labels = labels
        self.chances: dict[str, Tensor] = {}  # by rule, the sum of all clients' probabilities
        self.alone: dict[int, dict[str, float]] = {}  # accuracy by client and rule
        self.failures: dict[int, str] = {}

    def add(self, reply: Reply) -> None:
        if reply.error is not None:
            self.failures[reply.client] = reply.error
            return
        for rule, chances in reply.up.items():
            self.chances[rule] = self.chances[rule] + chances if rule in self.chances else chances
        self.alone[reply.client] = {rule: self._accuracy(chances) for rule, chances in reply.up.items()}

    def scores(self) -> dict[str, Shared]:
        """Of every rule that all clients have."""
        found = {}
        for rule, chances in self.chances.items():
            alone = [of[rule] for of in self.alone.values() if rule in of]
            if len(alone) == len(self.alone):
                found[rule] = Shared(self._accuracy(chances), sum(alone) / len(alone))
        return found

    def _accuracy(self, chances: Tensor) -> float:
        return int((chances.argmax(1) == self.labels).sum()) / len(self.labels)


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
