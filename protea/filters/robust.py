"""Class vectors of all clients side by side: the common part of filters that guard a server against bad parties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from protea.config import registry
from protea.core.clusters import Clusters
from protea.core.errors import ConfigError
from protea.core.method import Method
from protea.core.payload import Payload, declares, places_of
from protea.core.prototypes import Prototypes
from protea.filters.base import Filter, Gathering, Received
from protea.filters.side_by_side import SideBySide, clusters_in_turns

STEPS, CLOSE = 100, 1e-7  # of Weiszfeld's algorithm: at most so many, until it moves by less than this share
NEAREST = 1e-12  # share of the typical distance that a point is at least away: one at the centre would pull infinitely


class RobustFilter(Filter):
    """A filter on the server that sees the class vectors of all clients of a round, and changes those it doubts.

    Uploads stay what the method declares: vectors change, but no class, count, or upload is dropped.
    """

    def robust(self, sent: SideBySide, place: str, at: Gathering) -> Tensor:
        """Return the vectors ``(clients, classes, dim)`` that the method gets in place of those that were sent.

        ``place`` is where in the uploads they are; empty for uploads that are prototypes and nothing else.
        """
        raise NotImplementedError

    def check(self, method: Method[Any, Any], name: str, filters: Sequence[Filter], participants: int) -> None:
        sent = method.up
        if issubclass(sent, Payload) and not declares(Prototypes, sent) and not declares(Clusters, sent):
            # who sends nothing needs no filter
            own = registry.name_of("filters", type(self))
            raise ConfigError(
                f"the filter {own} compares vectors of classes, and clients of {name} send none.  Remove it, or "
                f"choose a method of the family class vectors: protea list methods."
            )

    def together(self, uploads: Sequence[Received], at: Gathering) -> Sequence[Received]:
        places = [places_of(Prototypes, at.kind, each.up) for each in uploads]
        found = list(uploads)
        for place in dict.fromkeys(place for each in places for place in each):
            rows = [row for row, each in enumerate(places) if place in each]
            parts = [_prototypes(uploads[row], place) for row in rows]
            sent = SideBySide(  # on the CPU: not all devices have float64
                tuple(uploads[row].client for row in rows),
                torch.stack([part.vectors.cpu().double() for part in parts]),
                torch.stack([part.present.cpu() for part in parts]),
            )
            for row, part, vectors in zip(rows, parts, self.robust(sent, place, at), strict=True):
                new = vectors.to(part.vectors.dtype).to(part.vectors.device)
                if not torch.equal(new, part.vectors):
                    name = f"{place}.vectors".lstrip(".")
                    found[row] = Received(found[row].client, {**found[row].up, name: new[part.present]})
        return clusters_in_turns(found, at, lambda sent, place: self.robust(sent, place, at))


def _prototypes(upload: Received, place: str) -> Prototypes:
    """Return the prototypes in one place of an upload."""
    return Prototypes.from_flat({name: upload.up[f"{place}.{name}".lstrip(".")] for name in ("vectors", "counts")})


def lengths_of(vectors: Tensor) -> Tensor:
    """Return the length of each vector, along the last axis."""
    found: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return found


def pulled_within(points: Tensor, centre: Tensor, radius: float) -> Tensor:
    """Return the points ``(n, dim)``, those farther from the centre than the radius moved toward it, onto the radius.

    >>> pulled_within(torch.tensor([[4.0, 0.0], [0.5, 0.0]]), torch.zeros(2), 1.0).tolist()
    [[1.0, 0.0], [0.5, 0.0]]
    """
    away = points - centre
    far = lengths_of(away).unsqueeze(1)
    return torch.where(far > radius, centre + away * (radius / far.clamp(min=torch.finfo(far.dtype).tiny)), points)


def geometric_median(points: Tensor) -> Tensor:
    """Return the point with the least sum of distances to all points ``(n, dim)``, by Weiszfeld's algorithm.

    Fewer than half of the points cannot move it far, wherever they are.

    >>> geometric_median(torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1e6, 1e6]]).double()).abs().max() < 1
    tensor(True)
    """
    centre = points.median(0).values
    for _ in range(STEPS):
        far = lengths_of(points - centre)
        typical = far.median()
        if typical == 0:  # most points are the centre
            return centre
        weights = 1 / far.clamp(min=float(typical) * NEAREST)
        following = (points * weights.unsqueeze(1)).sum(0) / weights.sum()
        moved = lengths_of(following - centre)
        centre = following
        if moved <= CLOSE * typical:
            break
    return centre
