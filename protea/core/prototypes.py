"""Class prototypes: one mean feature vector for each class a client has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from protea.core.errors import PayloadError
from protea.core.message import Named, first_names
from protea.core.payload import Payload

Weighting = Literal["uniform", "count", "literal"]
DistanceMetric = Literal["euclidean", "cosine"]

LARGEST = 1 << 26  # numbers that arriving prototypes may have: 100,000 classes in 512 dimensions are fewer
MOST = 1e9  # samples that a class may have
SLACK = 1e-6  # a vector that was shortened may be longer by rounding, and is not shortened again


@dataclass(frozen=True)
class Prototypes(Payload):
    """The mean feature of each class.  A class with ``counts == 0`` is absent; its vector is zero.

    >>> found = Prototypes.of(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([1, 1]), classes=2)
    >>> found.vectors.tolist(), found.counts.tolist(), found.present.tolist()
    ([[0.0, 0.0], [2.0, 0.0]], [0.0, 2.0], [False, True])
    """

    vectors: Tensor  # (classes, dim)
    counts: Tensor  # (classes,) number of samples behind each vector

    counting = ("counts",)

    @classmethod
    def absent(cls, classes: int, dim: int) -> Self:
        """Return prototypes of no class at all."""
        return cls(torch.zeros(classes, dim), torch.zeros(classes))

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, classes: int) -> Self:
        """Return the mean of features (n, dim) over the samples of each class: Eq. 3 of FedProto."""
        counts = torch.bincount(labels, minlength=classes).to(features.dtype)
        sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
        return cls(sums / counts.clamp(min=1).unsqueeze(1), counts)

    @classmethod
    def mean(cls, parts: Sequence[Prototypes], weights: Weighting = "uniform") -> Self:
        """Return the mean over clients; a client counts only for the classes it has.

        ``uniform`` counts each such client once, as all reference codes do; ``count`` by its
        samples of the class; ``literal`` is Eq. 6 of FedProto as printed, which weighs by
        samples and then divides by the number of clients once more.

        >>> one = Prototypes(torch.tensor([[2.0]]), torch.tensor([1.0]))
        >>> other = Prototypes(torch.tensor([[8.0]]), torch.tensor([5.0]))
        >>> [Prototypes.mean([one, other], weights).vectors.item() for weights in ("uniform", "count", "literal")]
        [5.0, 7.0, 3.5]
        """
        vectors = torch.stack([part.vectors for part in parts])  # (clients, classes, dim)
        counts = torch.stack([part.counts for part in parts])  # (clients, classes)
        present = (counts > 0).to(vectors.dtype)
        each = present if weights == "uniform" else counts.to(vectors.dtype)
        divisor = each.sum(0)
        if weights == "literal":
            divisor = divisor * present.sum(0)
        sums = (each.unsqueeze(2) * vectors).sum(0)
        return cls(sums / divisor.clamp(min=1).unsqueeze(1), counts.sum(0))

    @staticmethod
    def points(parts: Sequence[Prototypes]) -> tuple[Tensor, Tensor]:
        """Return the present vectors of all parts, ``(points, dim)``, and the class of each, like samples."""
        points = torch.cat([part.vectors[part.present] for part in parts])
        return points, torch.cat([part.present.nonzero().squeeze(1) for part in parts])

    @property
    def present(self) -> Tensor:
        """Which classes there are: a bool per class, ``(classes,)``."""
        return self.counts > 0

    def filled(self, earlier: Prototypes | None) -> Prototypes:
        """Return these prototypes with the earlier ones for classes that are absent here."""
        if earlier is None:
            return self
        here = self.present
        return Prototypes(
            torch.where(here.unsqueeze(1), self.vectors, earlier.vectors),
            torch.where(here, self.counts, earlier.counts),
        )

    def only(self, classes: Tensor) -> Prototypes:
        """Return the prototypes of these ``classes`` (a bool per class); the others become absent."""
        keep = self.present & classes
        return Prototypes(self.vectors * keep.unsqueeze(1), self.counts * keep)

    def scores(self, features: Tensor, metric: DistanceMetric = "euclidean") -> Tensor:
        """Return the nearness of features to each prototype, ``(batch, classes)``: minus the distance, or the cosine.

        Absent classes have ``-inf``.
        """
        if metric == "euclidean":
            near = -torch.cdist(features, self.vectors)
        else:
            # shorter features stay shorter, or else their gradient would explode
            near = F.normalize(features, dim=1, eps=1e-4) @ F.normalize(self.vectors, dim=1).T
        return near.masked_fill(~self.present, -torch.inf)

    def to(self, device: torch.device | str) -> Prototypes:
        """Return these prototypes on a device."""
        return Prototypes(self.vectors.to(device), self.counts.to(device))

    # Only vectors of present classes travel; the counts say which these are.

    def flat(self) -> Named:
        return {"vectors": self.vectors[self.present], "counts": self.counts}

    @classmethod
    def from_flat(cls, named: Named) -> Self:
        if named.keys() != {"vectors", "counts"}:
            raise PayloadError(f"Prototypes hold vectors and counts; found {first_names(named) or 'nothing'}.")
        rows, counts = named["vectors"], named["counts"]
        present = counts > 0
        if rows.ndim != 2 or counts.ndim != 1 or len(rows) != int(present.sum()):
            raise PayloadError(
                f"Prototypes: {tuple(rows.shape)} vectors do not fit counts that name {int(present.sum())} classes."
            )
        if len(counts) * rows.shape[1] > LARGEST:  # absent ones are not sent, but take their place here
            raise PayloadError(
                f"Prototypes of {len(counts)} classes in {rows.shape[1]} dimensions arrived; they may hold {LARGEST} "
                f"numbers at most."
            )
        vectors = rows.new_zeros(len(counts), rows.shape[1])
        vectors[present] = rows
        return cls(vectors, counts)

    def check(self, classes: int, dim: int) -> None:
        if self.vectors.shape != (classes, dim) or self.counts.shape != (classes,):
            raise PayloadError(
                f"Prototypes of shape {tuple(self.vectors.shape)} arrived; this federation has "
                f"{classes} classes in {dim} dimensions."
            )
        if self.vectors.dtype != torch.float32 or self.counts.dtype != torch.float32:
            raise PayloadError(f"Prototypes of {self.vectors.dtype} and {self.counts.dtype} arrived, not of float32.")
        super().check(classes, dim)
        if (self.counts < 0).any():
            raise PayloadError("Prototypes with a negative count arrived.")
        if (self.counts != self.counts.round()).any() or (self.counts > MOST).any():
            raise PayloadError(f"Prototypes with a count arrived that is no whole number, or above {MOST:g}.")


class Collector:
    """Running sums of features per class, gathered batch by batch while a model trains.

    >>> collector = Collector(classes=2)
    >>> collector.add(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]))
    >>> collector.prototypes().vectors.tolist()
    [[2.0], [0.0]]
    """

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.sums: Tensor | None = None
        self.counts: Tensor | None = None

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Add a batch of features (n, dim), without their gradients."""
        features = features.detach()
        if self.sums is None or self.counts is None:
            self.sums = features.new_zeros(self.classes, features.shape[1])
            self.counts = features.new_zeros(self.classes)
        self.sums.index_add_(0, labels, features)
        self.counts.index_add_(0, labels, torch.ones_like(labels, dtype=features.dtype))

    def prototypes(self) -> Prototypes:
        """Return the mean of all features that were added, per class."""
        if self.sums is None or self.counts is None:
            raise ValueError("no batch was added")
        return Prototypes(self.sums / self.counts.clamp(min=1).unsqueeze(1), self.counts)


def shortened(rows: Tensor, norm: float) -> Tensor:
    """The rows, those that are longer than ``norm`` scaled down to it.

    >>> shortened(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    if not rows.is_floating_point():
        return rows
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return torch.where(lengths > norm * (1 + SLACK), rows * (norm / lengths), rows)
