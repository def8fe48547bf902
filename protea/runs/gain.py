"""By how much a run is better than another on the same test samples: over all clients, and for each.

Both runs answer the same samples, so they are compared sample by sample: what makes a sample hard is hard for both, and
drops out.  See docs/comparing.md for what the intervals mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from protea.core.errors import ConfigError
from protea.runs.answers import ClientAnswers, RunAnswers
from protea.runs.bootstrap import Differences, client_interval, overall_interval
from protea.runs.spread import LEAST

Verdict = Literal["better", "worse", "neither"]


@dataclass(frozen=True)
class ClientGain:
    """One client in two runs, or in two groups of runs of several seeds."""

    client: int
    samples: int
    accuracy: float
    reference: float  # the other run's accuracy
    low: float  # ends of the 95 % interval of the difference
    high: float
    seed: int | None = None  # None unless there are several splits, each with clients of its own
    name: str | None = None  # None for clients that have only numbers

    @property
    def mean(self) -> float:
        """The difference of the accuracies."""
        return self.accuracy - self.reference

    @property
    def verdict(self) -> Verdict:
        """Whether the interval lies above 0, below, or around it."""
        return "better" if self.low > LEAST else "worse" if self.high < -LEAST else "neither"


@dataclass(frozen=True)
class Gain:
    """By how much runs are better than others on the clients' own test samples, every sample counting once."""

    mean: float
    low: float  # ends of the 95 % interval of the mean
    high: float
    paired: bool  # by answers to single samples; else from counts alone, with wider intervals
    clients: list[ClientGain] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)  # clients without test samples, or not evaluated in both runs
    pairs: int = 1  # of runs with the same seed and split

    @property
    def better(self) -> int:
        """The number of clients that gain: their interval lies above 0."""
        return self._count("better")

    @property
    def worse(self) -> int:
        """The number of clients that lose: their interval lies below 0."""
        return self._count("worse")

    @property
    def neither(self) -> int:
        """The number of clients whose interval holds 0."""
        return self._count("neither")

    def _count(self, verdict: Verdict) -> int:
        return sum(client.verdict == verdict for client in self.clients)

    def client(self, id: int, seed: int | None = None) -> ClientGain:
        """Give one client; where every seed has a split of its own, that of a seed."""
        for each in self.clients:
            if each.client == id and seed in (None, each.seed):
                return each
        raise ConfigError(f"There is no gain of client {id}: it has no test samples, or there is none.")

    def in_points(self) -> str:
        """Format the mean and its interval in points of accuracy: ``+1.20 [+0.3, +2.1]``."""
        return f"{100 * self.mean:+.2f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"

    def plain(self) -> dict[str, Any]:
        """Return the gain as it stands in ``summary.json``."""
        return {
            "mean": self.mean,
            "low": self.low,
            "high": self.high,
            "better": self.better,
            "worse": self.worse,
            "neither": self.neither,
            "paired": self.paired,
            "left_out": self.left_out,
            "clients": [{"mean": each.mean, **_without_none(asdict(each))} for each in self.clients],
        }

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Gain:
        """Rebuild the gain from what :meth:`plain` gave."""
        clients = [
            ClientGain(**{name: value for name, value in each.items() if name != "mean"}) for each in plain["clients"]
        ]
        return cls(plain["mean"], plain["low"], plain["high"], plain["paired"], clients, list(plain["left_out"]))


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if value is not None}


def is_local(method: str) -> bool:
    """Whether a method's name, with or without a variant, is that of training without any federation."""
    return method.partition(" ")[0].partition("@")[0] == "local"


def is_alone_of(other: str, method: str) -> bool:
    """Whether one name is that of the other method with every client alone: ``fedproto alone`` of ``fedproto``."""
    return {*other.split()} == {*method.split(), "alone"} != {*method.split()}


def gain(pairs: Sequence[tuple[RunAnswers, RunAnswers]]) -> Gain | None:
    """Give the gain of the first of each pair of runs over the second; None where no client has answers in both.

    Both runs of a pair have the same split, else :class:`ConfigError` is raised.  Pairs of other seeds may have the
    same split, and then their answers are averaged for each client, or each its own.
    """
    splits = [split for some in _by_split(pairs) if (split := _Split.of(some)).clients]
    if not splits:
        return None
    clients = [client for split in splits for client in split.gains(several=len(splits) > 1)]
    found = [list(split.clients.values()) for split in splits]
    seeds = [mean for each in found for mean in _means(each)]
    low, high = overall_interval(found)
    return Gain(
        mean=float(np.mean(seeds)),
        low=low,
        high=high,
        paired=all(client.paired for each in found for client in each),
        clients=clients,
        left_out=sorted({client for split in splits for client in split.left_out}),
        pairs=len(seeds),
    )


@dataclass(frozen=True)
class _Split:
    """Pairs of runs, of one or several seeds, whose clients have the same samples."""

    pairs: Sequence[tuple[RunAnswers, RunAnswers]]
    clients: dict[int, Differences]  # those that have answers in all runs
    left_out: list[int]

    @classmethod
    def of(cls, pairs: Sequence[tuple[RunAnswers, RunAnswers]]) -> _Split:
        runs = [run for pair in pairs for run in pair]
        everyone = sorted({client for run in runs for client in run.clients})
        there = [client for client in everyone if all(run.clients.get(client) is not None for run in runs)]
        clients = {client: _differences(pairs, client) for client in there}
        return cls(pairs, clients, [client for client in everyone if client not in clients])

    def gains(self, several: bool) -> list[ClientGain]:
        """The gain of each client; named with its seed where there are several splits."""
        seed, found = self.pairs[0][0].seed, []
        for client, differences in self.clients.items():
            ours, theirs = (
                float(np.mean([_answers(pair[side], client).accuracy for pair in self.pairs])) for side in (0, 1)
            )
            low, high = client_interval(differences, seed, client)
            named = seed if several else None
            name = self.pairs[0][0].names.get(client)
            found.append(ClientGain(client, differences.samples, ours, theirs, low, high, named, name))
        return found


def _by_split(pairs: Sequence[tuple[RunAnswers, RunAnswers]]) -> list[list[tuple[RunAnswers, RunAnswers]]]:
    """Group pairs whose clients have the same samples; one whose answers are known as counts stands for itself."""
    found: dict[tuple[str, str], list[tuple[RunAnswers, RunAnswers]]] = {}
    for place, (ours, theirs) in enumerate(pairs):
        ours.refuse_other_split(theirs)
        single = all(
            answers is None or answers.right is not None for run in (ours, theirs) for answers in run.clients.values()
        )
        key = next(iter(ours.marks.items()), None) if single else None
        found.setdefault(key or ("pair", str(place)), []).append((ours, theirs))
    return list(found.values())


def _answers(run: RunAnswers, client: int) -> ClientAnswers:
    found = run.clients[client]
    assert found is not None  # those that lack answers were left out
    return found


def _differences(pairs: Sequence[tuple[RunAnswers, RunAnswers]], client: int) -> Differences:
    """The differences of a client: sample by sample where all runs tell, else from the accuracies of the one pair."""
    both = [(_answers(ours, client), _answers(theirs, client)) for ours, theirs in pairs]
    rows = [ours.right - theirs.right for ours, theirs in both if ours.right is not None and theirs.right is not None]
    if len(rows) == len(both):
        return Differences.of(np.stack(rows, axis=1))
    ours, theirs = both[0]
    return Differences.from_accuracies(ours.accuracy, theirs.accuracy, ours.samples)


def _means(clients: Sequence[Differences]) -> list[float]:
    """The mean difference in each seed, every sample counting once."""
    weights = [client.samples for client in clients]
    found: list[float] = np.average([client.means for client in clients], axis=0, weights=weights).tolist()
    return found
