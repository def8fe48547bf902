"""A round's scores as plain numbers: what records hold and reports read.  Nothing here needs torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Score:
    """One rule on one part of all clients' data.

    The last three are over the clients that tell more than how many answers were right; None where none does.
    """

    weighted: float  # accuracy, every sample counting once
    uniform: float  # accuracy, every client that has samples counting once
    balanced: float | None  # mean of the accuracies on each class, over the samples of all clients
    macro_f1: float | None
    calibration: float | None  # expected calibration error; 0 is best

    @classmethod
    def mean(cls, scores: Sequence[Score]) -> Self:
        """The mean of each number over several rounds."""
        rows: list[dict[str, Any]] = [asdict(score) for score in scores]
        return cls(**{name: mean_of_known([row[name] for row in rows]) for name in rows[0]})  # type: ignore[arg-type]


@dataclass(frozen=True)
class MetricScore:
    """One of the user's own metrics over all clients that have samples."""

    weighted: float  # mean over clients, each counting by its samples
    uniform: float  # mean over clients, each counting once


@dataclass(frozen=True)
class Shared:
    """One rule's accuracy on the shared test set."""

    ensemble: float  # of all clients together: the class whose mean probability is largest
    clients: float  # of a client alone, mean over clients


@dataclass(frozen=True)
class Geometry:
    """Where prototypes lie.  A class that is not there has the margin 0."""

    margins: list[float]  # of the global prototypes: each class to the nearest other; empty if there are none
    widest: list[float]  # for each class the largest margin that any client has between its own prototypes
    shrinkage: float | None  # global margins divided by the widest, mean over classes that have both
    apart: float | None  # largest distance of a global prototype to the first one
    inter: float | None  # distance of two prototypes of a client, mean over pairs and clients
    intra: float | None  # distance of a client's test samples to their prototype, mean over clients


@dataclass(frozen=True)
class PartRecord:
    """What one client answered on one part of its samples, as counts."""

    samples: int
    classes: dict[int, tuple[int, int]]  # hits and samples of each class there is, by the method's own rule
    hits: dict[str, int]  # samples answered right, by rule
    metrics: dict[str, float] = field(default_factory=dict)  # the user's own metrics, by name
    right: str | None = None  # test samples that the method's own rule answers right: bits, the first highest, as hex

    @property
    def right_samples(self) -> list[bool] | None:
        """For each sample whether the method's own rule answers it right; None where that is not known.

        >>> PartRecord(3, {0: (2, 3)}, {"method": 2}, right="a0").right_samples
        [True, False, True]
        """
        if self.right is None:
            return None
        return [bool(byte >> place & 1) for byte in bytes.fromhex(self.right) for place in range(7, -1, -1)][
            : self.samples
        ]

    def accuracy(self, rule: str = "method") -> float | None:
        """The share of samples that a rule answers right; None where the client does not have the rule."""
        return self.hits[rule] / self.samples if rule in self.hits else None


@dataclass(frozen=True)
class ClientScores:
    """What one evaluation found about one client."""

    parts: dict[str, PartRecord] = field(default_factory=dict)  # "test" and "validation", where it has samples
    shared: dict[str, float] = field(default_factory=dict)  # accuracy on the shared test set, by rule
    inter: float | None = None  # mean distance of two of its prototypes
    intra: float | None = None  # mean distance of its test samples to the prototype of their class
    gain: float | None = None  # accuracy minus that of a model trained alone; of sites that tell it
    pull: float | None = None  # gradient of the method's pull beside that of cross entropy; of simulations


def finite(value: float) -> float | None:
    """The value, or None for nan and infinities, which JSON has no numbers for."""
    return value if math.isfinite(value) else None


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """The mean, or None if one of the values is not known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def mean_or_none(values: Sequence[float]) -> float | None:
    """The mean, or None of nothing."""
    return sum(values) / len(values) if values else None
