"""A round's scores as plain numbers: what records hold and reports read.  Nothing here needs torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

from protea.evaluation.counts import Tally


@dataclass(frozen=True)
class Score:
    """One rule on one part of all clients' data."""

    weighted: float  # accuracy, every sample counting once
    uniform: float  # accuracy, every client that has samples counting once
    balanced: float  # over all clients' samples: mean of the accuracies on each class
    macro_f1: float
    calibration: float  # error; 0 is best

    @classmethod
    def of(cls, tallies: Sequence[Tally]) -> Self:
        everything = sum(tallies[1:], start=tallies[0])
        return cls(
            everything.accuracy,
            sum(tally.accuracy for tally in tallies) / len(tallies),
            everything.balanced,
            everything.macro_f1,
            everything.calibration,
        )

    @classmethod
    def mean(cls, scores: Sequence[Score]) -> Self:
        rows = [asdict(score) for score in scores]
        return cls(**{name: sum(row[name] for row in rows) / len(rows) for name in rows[0]})


@dataclass(frozen=True)
class Shared:
    """One rule's accuracy on the shared test set."""

    ensemble: float  # of all clients together: the class whose mean probability is largest
    clients: float  # of a client alone, mean over clients


@dataclass(frozen=True)
class Geometry:
    """Where prototypes lie.  A class that is not there has the margin 0."""

    margins: list[float]  # of the global prototypes: each class to the nearest other; empty if there are none
    widest: list[float]  # the same of whichever client has the largest
    shrinkage: float | None  # global margins as a share of the widest, mean over classes that have both
    apart: float | None  # how far the farthest global prototype is from the first one
    inter: float | None  # distance of two prototypes of a client, mean over pairs and clients
    intra: float | None  # distance of a client's test samples to their prototype, mean over clients


def finite(value: float) -> float | None:
    """None for what JSON has no number for."""
    return value if math.isfinite(value) else None
