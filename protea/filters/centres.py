"""Robust centres: every vector of a class is replaced by one that few bad clients cannot move far.

Whatever a method does with the uploads, a mean, training on each of them, or sending each to all, it then works with
that centre alone.  Classes that fewer than three clients have stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from protea.core.ranges import Minority
from protea.filters.base import Gathering
from protea.filters.robust import RobustFilter, geometric_median
from protea.filters.side_by_side import SideBySide


class Centred(RobustFilter):
    """A filter that gives all clients of a class the same vector, its :meth:`centre`."""

    def centre(self, points: Tensor) -> Tensor:
        """Return the centre ``(dim,)`` of the vectors ``(n, dim)`` of one class."""
        raise NotImplementedError

    def robust(self, sent: SideBySide, place: str, at: Gathering) -> Tensor:
        return sent.each_class(lambda points: self.centre(points).expand_as(points))


@dataclass(frozen=True)
class Median(Centred):
    """The median of each coordinate; of an even number the mean of the two in the middle."""

    def centre(self, points: Tensor) -> Tensor:
        return points.quantile(0.5, dim=0)


@dataclass(frozen=True)
class Trimmed(Centred):
    """The mean of each coordinate without its smallest and largest values, ``share`` of the clients at either end.

    At least one value is cut off at either end, and at least one is left.
    """

    share: Minority = 0.2

    def centre(self, points: Tensor) -> Tensor:
        cut = min(max(1, int(self.share * len(points))), (len(points) - 1) // 2)
        return points.sort(0).values[cut : len(points) - cut].mean(0)


@dataclass(frozen=True)
class GeometricMedian(Centred):
    """The point with the least sum of distances to all vectors of the class."""

    def centre(self, points: Tensor) -> Tensor:
        return geometric_median(points)
