"""FedSAF: clients match how classes lie to each other, not where they lie.

Wu, Niu, Zhu, Liu and others.  2026, https://arxiv.org/abs/2605.05959

Pulling features to a global prototype does two things: it orders the classes, and it forces the
axes of all models to be the same.  Here only the order is asked for.  A client compares the
similarities, or distances, between its own classes with those between the global prototypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from protea import Client, Method, Needs, Prototypes, Server, Upload
from protea.core.method import Reveals
from protea.core.prototypes import Weighting

Structure = Literal["cosine", "distance", "cka"]


@dataclass(frozen=True)
class FedSAF(Method[Prototypes, Prototypes]):
    """``pull`` is the weight of the structural term, ``structure`` what is compared: see :func:`mismatch`."""

    pull: NonNegativeFloat = 1.0
    structure: Structure = "cosine"
    points: Literal["classes", "samples"] = "classes"  # of a batch, whose structure is compared
    average: Weighting = "uniform"  # over clients
    missing: Literal["keep", "drop"] = "keep"  # prototypes of classes that nobody reported this round
    answer: Literal["head", "local", "global"] = "head"  # or the nearest prototype of the client, or of all

    family = "class vectors"
    exchanges = "prototypes"
    variants = {"distance": {"structure": "distance"}, "cka": {"structure": "cka"}}

    @property
    def reveals(self) -> frozenset[Reveals]:
        return frozenset({"means"})

    @property
    def needs(self) -> Needs:
        return Needs(sums=self.average)

    def broadcast(self, server: Server, client: int) -> Prototypes | None:
        return server.memory.get("prototypes")

    def local_update(self, client: Client, down: Prototypes | None) -> Prototypes:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = client.model.features(x)
            value = F.cross_entropy(client.model.head(z), y)
            if down is not None and self.pull:
                value = value + self.pull * self.structural(z, y, down)
            return value

        client.fit(loss)
        local = client.prototypes()
        if self.answer == "local":
            client.memory["prototypes"] = local
        return local

    def structural(self, z: Tensor, y: Tensor, prototypes: Prototypes) -> Tensor:
        """Return how far the structure of a batch is from that of the global prototypes of the same classes."""
        if self.points == "samples":
            known = prototypes.present[y]
            return mismatch(z[known], prototypes.vectors[y[known]], self.structure)
        means = Prototypes.of(z, y, len(prototypes.counts))
        both = means.present & prototypes.present
        return mismatch(means.vectors[both], prototypes.vectors[both], self.structure)

    def aggregate(self, server: Server, uploads: Sequence[Upload[Prototypes]]) -> None:
        mean = Prototypes.mean([u.payload for u in uploads], self.average)
        server.memory["prototypes"] = mean.filled(server.memory.get("prototypes") if self.missing == "keep" else None)

    def predict(self, client: Client, x: Tensor, down: Prototypes | None) -> Tensor:
        """The classifier: a client's features need not lie near any global prototype."""
        known = client.memory.get("prototypes") if self.answer == "local" else down
        if known is None or self.answer == "head":
            return super().predict(client, x, down)
        return known.scores(client.model.features(x))


def mismatch(own: Tensor, wanted: Tensor, structure: Structure) -> Tensor:
    """Return how much the structure of points ``own`` (n, dim) differs from that of ``wanted`` (n, any dim).

    ``cosine``: the squared difference of cosines, mean over pairs.  ``distance``: that of distances, each divided
    by the mean distance of its side.  ``cka``: 1 - CKA, the linear one.  None of them changes if all points are
    rotated or made longer by one factor, nor, but for ``cosine``, if they are moved.  One point has no structure:
    0.  Two have none but their cosine: ``distance`` and ``cka`` are 0 for any two pairs of unequal points.

    >>> corner, line = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[2.0, 0.0], [6.0, 0.0]])
    >>> [round(mismatch(corner, line, structure).item(), 4) for structure in ("cosine", "distance", "cka")]
    [1.0, 0.0, 0.0]
    """
    if len(own) < 2:
        return own.new_zeros(())
    if structure == "cosine":
        return (pair_cosines(own) - pair_cosines(wanted)).square().mean()
    if structure == "distance":
        return (relative_distances(own) - relative_distances(wanted)).square().mean()
    first, second = inner_products(own), inner_products(wanted)
    return 1 - (first * second).sum()


def pair_cosines(points: Tensor) -> Tensor:
    """Return the cosines of all pairs of points, each pair once."""
    unit = F.normalize(points, dim=1, eps=1e-4)  # shorter ones stay shorter, or their gradient would explode
    i, j = torch.triu_indices(len(points), len(points), 1, device=points.device)
    return (unit[i] * unit[j]).sum(1)


def relative_distances(points: Tensor) -> Tensor:
    """Return the distances of all pairs of points, each pair once, in units of their mean."""
    away = torch.pdist(points)  # its gradient at distance 0 is 0
    return away / away.mean().clamp(min=1e-6)


def inner_products(points: Tensor) -> Tensor:
    """Return the inner products (n, n) of points about their centre, at length 1 as one long vector."""
    centred = points - points.mean(0)
    products = centred @ centred.T
    size: Tensor = torch.linalg.vector_norm(products)
    return products / size.clamp(min=1e-6)
