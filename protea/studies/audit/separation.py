"""How well scores tell members from other records: AUC, and true positives at 1 % false positives, with intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESAMPLES, FEWER = 1000, 200  # of the AUC, and of true positives, which take longer
FALSE_POSITIVES = 0.01
FEWEST = 3  # records on either side, for numbers that mean anything
MOST = 1000  # others that are compared; more change no digit that is shown


@dataclass(frozen=True)
class Separation:
    """How far the scores of members lie above those of others."""

    auc: float  # the chance that a member's score is above that of another record
    low: float
    high: float
    tpr: float  # the share of members that are found where 1 % of the others are taken for members
    tpr_low: float
    tpr_high: float
    members: int
    others: int


def separation(members: Floats, others: Floats, rng: np.random.Generator, groups: int = 1) -> Separation | None:
    """Measure how far members score above others; None if there are fewer than three of the latter, or no members.

    Intervals hold for ``groups`` such measurements together (Bonferroni).  In them, two imagined records stand beside
    the real ones on either side, one below and one above all: without these, one member of one would count as certain.
    """
    members, others = members[np.isfinite(members)], others[np.isfinite(others)]
    if not len(members) or len(others) < FEWEST:
        return None
    if len(others) > MOST:
        others = rng.choice(others, MOST, replace=False)
    level = 0.05 / groups / 2
    above, below = max(members.max(), others.max()) + 1, min(members.min(), others.min()) - 1
    both, more = np.append(members, [above, below]), np.append(others, [above, below])
    ways = compared(both, more)
    counts = rng.multinomial(len(both), np.full(len(both), 1 / len(both)), RESAMPLES) / len(both)
    weights = rng.multinomial(len(more), np.full(len(more), 1 / len(more)), RESAMPLES) / len(more)
    drawn = ((counts @ ways) * weights).sum(1)
    limits = np.array([limit(rng.choice(others, len(others))) for _ in range(FEWER)])
    found = (rng.choice(both, (FEWER, len(both))) > limits[:, None]).mean(1)
    auc, tpr = float(compared(members, others).mean()), true_positives(members, others)
    (low, high), (few, many) = np.quantile(drawn, [level, 1 - level]), np.quantile(found, [level, 1 - level])
    return Separation(
        auc, min(float(low), auc), max(float(high), auc), tpr, min(float(few), tpr), max(float(many), tpr),
        len(members), len(others),
    )  # fmt: skip


def compared(members: Floats, others: Floats) -> Floats:
    """Compare each member with each other record: 1 where it scores higher, one half where both score the same."""
    difference = members[:, None] - others[None, :]
    result: Floats = (difference > 0) + 0.5 * (difference == 0)
    return result


def true_positives(members: Floats, others: Floats) -> float:
    """Return the share of members that score above all but 1 % of the others.

    >>> true_positives(np.array([3.0, 0.5]), np.array([0.0, 1.0, 2.0]))
    0.5
    """
    return float(np.mean(members > limit(others)))


def limit(others: Floats) -> float:
    """Return the score above which 1 % of the others are, or fewer."""
    return float(np.sort(others)[::-1][int(FALSE_POSITIVES * len(others))])
