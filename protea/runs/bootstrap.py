"""Intervals by the bootstrap: samples, clients and seeds are drawn again and again, with replacement.

A client's test samples are of few kinds: those that only one of two runs answers right, and those that both or neither
do.  To draw samples anew is to draw how many there are of each kind, so it costs the same for ten samples and for a
million.  Every draw is from a fixed stream: equal runs have equal intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESAMPLES = 4000
LEVELS = (0.025, 0.975)  # ends of the 95 % interval
STREAM = 21  # of all draws here, with the numbers of seed and client
MOST = 4_000_000  # numbers in memory at once while samples are drawn


@dataclass(frozen=True)
class Differences:
    """By how much one run answers the test samples of a client better than another, in one or several seeds."""

    kinds: Floats  # (kinds, seeds) the differences that a sample can have, from -1 to 1
    counts: Floats  # (kinds,) how many samples have them; not whole where they follow from accuracies alone
    paired: bool  # known sample by sample

    @classmethod
    def of(cls, rows: Floats) -> Differences:
        """Count the kinds among differences ``(samples, seeds)``."""
        kinds, counts = np.unique(rows, axis=0, return_counts=True)
        return cls(kinds, counts.astype(float), True)

    @classmethod
    def from_accuracies(cls, ours: float, theirs: float, samples: int) -> Differences:
        """Give the kinds that two accuracies have if who answers a sample right is independent of the other.

        The sum of drawn differences is then that of two binomial numbers, as for runs on different samples.
        """
        better, worse = ours * (1 - theirs), theirs * (1 - ours)
        counts = samples * np.array([better, worse, 1 - better - worse])
        return cls(np.array([[1.0], [-1.0], [0.0]]), counts, False)

    @property
    def samples(self) -> int:
        """The number of test samples."""
        return round(float(self.counts.sum()))

    @property
    def means(self) -> Floats:
        """The difference of the accuracies in each seed ``(seeds,)``."""
        found: Floats = self.counts @ self.kinds / self.counts.sum()
        return found

    def sums(self, times: int, rng: np.random.Generator) -> Floats:
        """Draw as many samples as there are, so many times; the sums of their differences ``(times, seeds)``."""
        shares, step = self.counts / self.counts.sum(), max(1, MOST // len(self.counts))
        parts = [min(step, times - start) for start in range(0, times, step)]
        return np.concatenate([rng.multinomial(self.samples, shares, part) @ self.kinds for part in parts])

    def cautious(self) -> Differences:
        """Add two imagined samples, one that only either run answers right, unless the runs answer all alike.

        Without them four samples of fifty that only one run answers right would count as certain, and one of one too.
        Bonett and Price (2012, https://doi.org/10.3102/1076998611411915) so adjust the interval of paired proportions.
        """
        if self.paired and not self.kinds.any():
            return self
        ends = np.ones((1, self.kinds.shape[1]))
        return Differences(np.concatenate([self.kinds, ends, -ends]), np.append(self.counts, [1.0, 1.0]), self.paired)


def stream(*numbers: int) -> np.random.Generator:
    """Give the stream of random numbers for one purpose."""
    return np.random.default_rng([STREAM, *numbers])


def client_interval(found: Differences, *numbers: int) -> tuple[float, float]:
    """The 95 % interval of a client's difference: samples are drawn anew, and seeds where there are several."""
    rng, drawn = stream(*numbers), found.cautious()
    return _interval(drawn.sums(RESAMPLES, rng) / drawn.samples, rng)


def overall_interval(splits: Sequence[Sequence[Differences]]) -> tuple[float, float]:
    """The 95 % interval of the mean difference over all samples: seeds, clients and their samples are drawn anew.

    ``splits`` has the clients of each split of the data.  Seeds that share a split share the clients that are drawn.
    """
    rng = stream()
    return _interval(np.concatenate([_drawn_means(clients, rng) for clients in splits], axis=1), rng)


def _drawn_means(clients: Sequence[Differences], rng: np.random.Generator) -> Floats:
    """Draw clients, and samples of each: the mean differences ``(RESAMPLES, seeds)``, every sample counting once."""
    chosen = rng.integers(len(clients), size=(RESAMPLES, len(clients)))
    sizes = np.array([client.samples for client in clients])
    sums = np.zeros((RESAMPLES, clients[0].kinds.shape[1]))
    for place, client in enumerate(clients):
        rows = np.nonzero(chosen == place)[0]
        np.add.at(sums, rows, client.sums(len(rows), rng))
    means: Floats = sums / sizes[chosen].sum(1, keepdims=True)
    return means


def _interval(means: Floats, rng: np.random.Generator) -> tuple[float, float]:
    """Draw seeds from means ``(RESAMPLES, seeds)``, and give the ends of the interval of their mean."""
    seeds = means.shape[1]
    if seeds > 1:
        means = np.take_along_axis(means, rng.integers(seeds, size=means.shape), axis=1)
    low, high = np.quantile(means.mean(1), LEVELS)
    return float(low), float(high)
