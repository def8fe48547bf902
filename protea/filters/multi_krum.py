"""Multi-Krum, for each class: vectors that have few close neighbours are replaced by the mean of the others.

Blanchard, El Mhamdi, Guerraoui, Stainer.  NeurIPS 2017, https://arxiv.org/abs/1703.02757
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from protea.core.ranges import Minority
from protea.filters.base import Gathering
from protea.filters.robust import RobustFilter
from protea.filters.side_by_side import SideBySide

LEAST = 4  # vectors of a class, of which one may be bad: it needs two neighbours to be judged by


@dataclass(frozen=True)
class MultiKrum(RobustFilter):
    """Replaces the vectors of a class that lie farthest from their nearest neighbours; ``share`` of them may be bad.

    Of n vectors f are replaced: ``share`` of n, at least one, and less than half of the n - 2.  The score of a vector
    is the sum of squared distances to its n - f - 2 nearest neighbours.  Classes that fewer than four clients have stay
    as they are.
    """

    share: Minority = 0.2

    def robust(self, sent: SideBySide, place: str, at: Gathering) -> Tensor:
        return sent.each_class(self.without_outliers, LEAST)

    def without_outliers(self, points: Tensor) -> Tensor:
        """Return the vectors ``(n, dim)`` with the f worst replaced by the mean of the others."""
        count = len(points)
        bad = min(max(1, int(self.share * count)), max(1, (count - 3) // 2))
        squares = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
        near = squares.sort(1).values[:, 1 : count - bad - 1]  # the nearest is the vector itself
        worst = near.sum(1).argsort(descending=True, stable=True)[:bad]
        good = torch.ones(count, dtype=torch.bool, device=points.device)
        good[worst] = False
        return torch.where(good.unsqueeze(1), points, points[good].mean(0))
