"""The mean of a number over seeds, and how far it is to be trusted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEAST = 1e-12  # differences that vary by less are the same but for rounding


@dataclass(frozen=True)
class Spread:
    """A mean over seeds; how far it is to be trusted, where there are at least two."""

    count: int
    mean: float
    deviation: float | None = None  # standard deviation of one seed
    margin: float | None = None  # the 95 % interval is mean - margin .. mean + margin

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of one value for each seed."""
        from scipy import stats  # slow to import, and no other command needs it

        count, mean = len(values), math.fsum(values) / len(values)
        if count < 2:
            return cls(count, mean)
        deviation = statistics.stdev(values)
        return cls(count, mean, deviation, float(stats.t.ppf(0.975, count - 1)) * deviation / math.sqrt(count))

    @property
    def low(self) -> float | None:
        """The lower end of the 95 % interval of the mean; None where there is none."""
        return None if self.margin is None else self.mean - self.margin

    @property
    def high(self) -> float | None:
        """The upper end of the 95 % interval of the mean; None where there is none."""
        return None if self.margin is None else self.mean + self.margin

    @property
    def p(self) -> float | None:
        """The p value of the two-sided t test that the mean is zero; None where values do not vary, so it has none."""
        from scipy import stats

        if self.deviation is None or self.deviation < LEAST:
            return None
        return float(2 * stats.t.sf(abs(self.mean) / (self.deviation / math.sqrt(self.count)), self.count - 1))
