"""Several prototypes for one class: the mean features of clusters of its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from protea.core.errors import PayloadError
from protea.core.first_neighbours import Level, cluster_means, clusters_of
from protea.core.message import Named, first_names
from protea.core.payload import Payload
from protea.core.prototypes import LARGEST, MOST, Prototypes

PER_CLASS = 32  # rows that one class may have: filters look at each of them beside those of others


@dataclass(frozen=True)
class Clusters(Payload):
    """The mean features of clusters: any number of rows, each of a class.  Rows of a class need not be neighbours.

    >>> z = torch.tensor([[1.0, 0.0], [3.0, 0.3], [0.0, 1.0], [0.1, 1.0], [5.0, 0.0]])
    >>> found = Clusters.of(z, torch.tensor([0, 0, 0, 0, 1]))
    >>> found.classes.tolist(), found.counts.tolist()
    ([0, 0, 1], [2.0, 2.0, 1.0])
    """

    vectors: Tensor  # (rows, dim)
    classes: Tensor  # (rows,) the class of each, int64
    counts: Tensor  # (rows,) number of samples behind each vector; 1 or more

    counting = ("counts",)

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, level: Level = "last", most: int = PER_CLASS) -> Self:
        """Cluster the features (n, dim) of each class by their first neighbours; ``most`` clusters of a class."""
        parts = []
        for label in labels.unique().tolist():
            own = features[labels == label]
            vectors, sizes = cluster_means(own, clusters_of(own, level, most))
            parts.append(cls(vectors, labels.new_full((len(sizes),), label), sizes))
        return cls.joined(parts) if parts else cls.none(features.shape[1])

    @classmethod
    def none(cls, dim: int) -> Self:
        """Return clusters of no class at all."""
        return cls(torch.zeros(0, dim), torch.zeros(0, dtype=torch.int64), torch.zeros(0))

    @classmethod
    def of_prototypes(cls, prototypes: Prototypes) -> Self:
        """Return one cluster for each class that is present: all of its samples."""
        here = prototypes.present
        return cls(prototypes.vectors[here], here.nonzero().squeeze(1), prototypes.counts[here])

    @classmethod
    def joined(cls, parts: Sequence[Clusters]) -> Self:
        """Return the rows of all parts."""
        return cls(
            torch.cat([part.vectors for part in parts]),
            torch.cat([part.classes for part in parts]),
            torch.cat([part.counts for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.classes)

    def only(self, rows: Tensor) -> Clusters:
        """Return some of the rows: a bool for each, or their numbers."""
        return Clusters(self.vectors[rows], self.classes[rows], self.counts[rows])

    def filled(self, earlier: Clusters | None) -> Clusters:
        """Return these rows, and the earlier ones of classes that are absent here."""
        if earlier is None:
            return self
        return Clusters.joined([self, earlier.only(~torch.isin(earlier.classes, self.classes))])

    def means(self, classes: int, by_count: bool = False) -> Prototypes:
        """Return one prototype for each class: the mean of its rows, each counted once or by its samples.

        >>> two = Clusters(torch.tensor([[2.0], [8.0]]), torch.tensor([1, 1]), torch.tensor([1.0, 5.0]))
        >>> two.means(2).vectors.tolist(), two.means(2, by_count=True).vectors.tolist()
        ([[0.0], [5.0]], [[0.0], [7.0]])
        """
        weights = self.counts if by_count else torch.ones_like(self.counts)
        sums = self.vectors.new_zeros(classes, self.vectors.shape[1])
        sums.index_add_(0, self.classes, self.vectors * weights.unsqueeze(1))
        shares = weights.new_zeros(classes).index_add_(0, self.classes, weights)
        counts = self.counts.new_zeros(classes).index_add_(0, self.classes, self.counts)
        return Prototypes(sums / shares.clamp(min=1).unsqueeze(1), counts)

    def cosines(self, features: Tensor) -> Tensor:
        """Return the cosine of features (n, dim) to each row, ``(n, rows)``."""
        # shorter features stay shorter, or else their gradient would explode
        return F.normalize(features, dim=1, eps=1e-4) @ F.normalize(self.vectors, dim=1).T

    def scores(self, features: Tensor, classes: int) -> Tensor:
        """Return for each class the largest cosine to one of its rows, ``(n, classes)``; -inf for absent classes."""
        near = self.cosines(features)
        return near.new_full((len(near), classes), -torch.inf).scatter_reduce(
            1, self.classes.expand_as(near), near, "amax"
        )

    def to(self, device: torch.device | str) -> Clusters:
        """Return these rows on a device."""
        return Clusters(self.vectors.to(device), self.classes.to(device), self.counts.to(device))

    @classmethod
    def from_flat(cls, named: Named) -> Self:
        if named.keys() != {"vectors", "classes", "counts"}:
            raise PayloadError(f"Clusters hold vectors, classes and counts; found {first_names(named) or 'nothing'}.")
        vectors, classes, counts = named["vectors"], named["classes"], named["counts"]
        if vectors.ndim != 2 or classes.shape != vectors.shape[:1] or counts.shape != vectors.shape[:1]:
            raise PayloadError(
                f"Clusters: {tuple(vectors.shape)} vectors do not fit {tuple(classes.shape)} classes and "
                f"{tuple(counts.shape)} counts."
            )
        if vectors.numel() > LARGEST:
            raise PayloadError(f"Clusters of {vectors.numel()} numbers arrived; they may hold {LARGEST} at most.")
        return cls(vectors, classes, counts)

    def check(self, classes: int, dim: int) -> None:
        if self.vectors.shape[1] != dim:
            raise PayloadError(
                f"Clusters in {self.vectors.shape[1]} dimensions arrived; this federation has {classes} classes in "
                f"{dim} dimensions."
            )
        kinds = (self.vectors.dtype, self.classes.dtype, self.counts.dtype)
        if kinds != (torch.float32, torch.int64, torch.float32):
            raise PayloadError(f"Clusters of {', '.join(map(str, kinds))} arrived, not of float32, int64, float32.")
        super().check(classes, dim)
        if ((self.classes < 0) | (self.classes >= classes)).any():
            raise PayloadError(f"Clusters of a class arrived that is not among the {classes} of this federation.")
        if len(self) and int(torch.bincount(self.classes).max()) > PER_CLASS:
            raise PayloadError(f"More than {PER_CLASS} clusters of one class arrived.")
        if (self.counts < 1).any() or (self.counts != self.counts.round()).any() or (self.counts > MOST).any():
            raise PayloadError(f"Clusters with a count arrived that is no whole number from 1 to {MOST:g}.")
