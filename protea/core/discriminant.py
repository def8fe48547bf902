"""Linear discriminants from class means alone, and how far to trust them.

A row is the mean ``m`` of ``n`` samples of one class.  Its own scatter around the mean ``mu`` of the class tells how
samples scatter, ``E[n (m - mu)(m - mu)^T] = Sigma``, so that a server which sees nothing but means can estimate
the covariance within classes, and with it Fisher's discriminant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from protea.core.prototypes import Prototypes

SCALES = (0.0, *(0.005 * 1.3**step for step in range(24)))  # 0 for no trust at all; 1 for scores taken at their word
LEAST_SHRINKAGE = 1e-3  # so that the condition number stays below about 1,000 times the dimension


@dataclass(frozen=True)
class Moments:
    """What a discriminant needs to know of rows, in float64; those of two sets of rows add up."""

    sums: Tensor  # (classes, dim): sum of n m over the rows of a class
    counts: Tensor  # (classes,): sum of n
    second: Tensor  # (dim, dim): sum of n m m^T over all rows
    rows: int

    @classmethod
    def of(cls, means: Tensor, labels: Tensor, counts: Tensor, classes: int) -> Self:
        """Return the moments of rows ``means`` (rows, dim) of these classes, each of ``counts`` samples.

        >>> Moments.of(torch.tensor([[1.0], [4.0]]), torch.tensor([0, 0]), torch.tensor([2.0, 1.0]), classes=2).sums
        tensor([[6.],
                [0.]], dtype=torch.float64)
        """
        means, counts = means.double(), counts.double()
        weighted = counts.unsqueeze(1) * means
        sums = means.new_zeros(classes, means.shape[1]).index_add_(0, labels, weighted)
        each = counts.new_zeros(classes).index_add_(0, labels, counts)
        return cls(sums, each, weighted.T @ means, len(means))

    @classmethod
    def of_samples(cls, features: Tensor, labels: Tensor, classes: int) -> Self:
        """Return the moments of samples, each of which is a row of its own."""
        return cls.of(features, labels, features.new_ones(len(features)), classes)

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.sums + other.sums, self.counts + other.counts, self.second + other.second, self.rows + other.rows
        )

    def means(self) -> Tensor:
        """Return the mean of each class, ``(classes, dim)``; 0 for a class without rows."""
        return self.sums / self.counts.clamp(min=1).unsqueeze(1)

    def covariance(self) -> Tensor:
        """Return the covariance within classes, shrunk towards a multiple of the identity, ``(dim, dim)``.

        The scatter around class means over the degrees of freedom, rows minus classes, is unbiased.  The shrinkage is
        OAS (Chen, Wiesel, Eldar, Hero 2010, Eq. 23), which assumes normal rows; means are closer to that than samples.
        Without scatter, as with one row for each class, the answer is the identity.
        """
        dim, means = self.sums.shape[1], self.means()
        identity = torch.eye(dim, dtype=means.dtype, device=means.device)
        free = self.rows - int((self.counts > 0).sum())
        scatter = self.second - (self.counts.unsqueeze(1) * means).T @ means
        trace = float(scatter.trace())
        if free < 1 or trace <= 1e-9 * float(self.second.trace()):  # rounding, no scatter
            return identity
        return oas(scatter / free, free)


def oas(covariance: Tensor, free: int) -> Tensor:
    """Shrink an unbiased covariance of ``free`` degrees of freedom towards the identity times its mean variance."""
    dim = len(covariance)
    trace, squares = float(covariance.trace()), float(covariance.square().sum())
    apart = (free + 1 - 2 / dim) * (squares - trace**2 / dim)  # 0 for a multiple of the identity
    share = 1.0 if apart <= 0 else ((1 - 2 / dim) * squares + trace**2) / apart
    share = min(1.0, max(LEAST_SHRINKAGE, share))
    shrunk = (1 - share) * covariance
    shrunk.diagonal().add_(share * trace / dim)
    return shrunk


def discriminant(moments: Moments) -> Prototypes:
    """Return Fisher's linear discriminant of equally likely classes, one row ``(w_c, b_c)`` for each class.

    The score ``w_c . z + b_c`` is the log-likelihood of ``z`` up to a term that all classes share:
    ``w_c = S^-1 (m_c - m)`` and ``b_c = -(m_c - m) . w_c / 2 - m . w_c`` with the centre ``m`` of the class means.
    """
    known, means = moments.counts > 0, moments.means()
    if not known.any():
        return Prototypes(F.pad(means, (0, 1)), known.to(means.dtype))
    centre = means[known].mean(0)
    away = (means - centre) * known.unsqueeze(1)
    factor = torch.linalg.cholesky(moments.covariance())
    weights = torch.cholesky_solve(away.T, factor).T
    biases = -0.5 * (away * weights).sum(1) - weights @ centre
    return Prototypes(torch.cat([weights, biases.unsqueeze(1)], 1), known.to(means.dtype))


def each_without(
    owners: Sequence[int], moments: Callable[[Sequence[int]], Moments], others: Moments
) -> Iterator[tuple[int, Moments]]:
    """Yield each owner with the moments of all other owners together, and of the ``others`` given.

    ``moments`` gives those of several owners.  By halves, so that each row is summed ``log(owners)`` times, and nothing
    of an owner is ever in its own result: not even the rounding of a sum from which it was subtracted.
    """
    if len(owners) == 1:
        yield owners[0], others
    elif owners:
        middle = len(owners) // 2
        first, second = owners[:middle], owners[middle:]
        yield from each_without(first, moments, others + moments(second))
        yield from each_without(second, moments, others + moments(first))


def likelihoods(features: Tensor, discriminant: Prototypes, scale: float) -> Tensor:
    """Return scaled scores ``(batch, classes)`` of features whose last number is 1.

    A class without a row is as likely as the mixture of those that have one: nothing is known for or against it.
    """
    return likelihoods_by(discriminant, scale)(features)


def likelihoods_by(discriminant: Prototypes, scale: float) -> Callable[[Tensor], Tensor]:
    """Return the function from features to :func:`likelihoods`; which classes have a row is looked up once."""
    vectors, known = discriminant.vectors, discriminant.present
    if known.all() or not known.any():
        return lambda features: scale * (features @ vectors.T)

    def scores_and_mixture(features: Tensor) -> Tensor:
        scores = scale * (features @ vectors.T)
        mixture = scores.masked_fill(~known, -torch.inf).logsumexp(1, keepdim=True) - known.sum().log()
        return torch.where(known, scores, mixture)

    return scores_and_mixture


def calibrate(parts: Sequence[tuple[Tensor, Tensor, Prototypes, Tensor]]) -> float:
    """Return the scale by which held-out labels are likeliest, the smallest of ``SCALES`` if several are.

    Each part has features, labels, a discriminant that has not seen them, and the log-probabilities ``(n, classes)`` by
    what else is known.
    """

    def surprise(scale: float) -> float:
        return sum(
            float(F.cross_entropy(likelihoods(z, rows, scale) + given, y, reduction="sum"))
            for z, y, rows, given in parts
        )

    return min(SCALES, key=surprise)
