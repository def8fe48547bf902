"""Gaussian noise on what a client says of its classes: their sums, their counts, and which there are."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from protea.core.accounting import Budget, Event
from protea.core.clusters import Clusters
from protea.core.errors import ConfigError
from protea.core.message import Named
from protea.core.method import Method
from protea.core.payload import declares, places_of
from protea.core.prototypes import Prototypes, shortened
from protea.filters.base import Filter, Passage

COUNTS = 3.0  # noise of counts over noise of vectors, where it is not given: a tenth of what a release costs
LEAST = 2.0  # standard deviations of a count, below which a class is held to be absent


@dataclass(frozen=True)
class Noise(Filter):
    """Sends, for every class, a noisy mean: (sum + noise) / (count + noise), or nothing where the count is too small.

    One record adds a vector of length ``clip`` at most to one sum, and 1 to one count.  All classes get noise, also
    those that a client does not have; which of them are sent is decided by their noisy counts alone.

    Where a class has several clusters, each of these gets the same noise.  That is no formal guarantee: which samples
    are in a cluster, and how many clusters there are, depends on all samples.
    """

    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0  # C, the longest feature of a record
    noise: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0  # of each number of a sum, in multiples of clip
    counts: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # of a count, in records; None: 3 * noise
    least: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = (
        None  # noisy count from which on a class is sent; None: twice the noise of counts
    )
    budget: Budget = field(default_factory=Budget)  # of each client, over all rounds

    summable = True

    def __post_init__(self) -> None:
        for name in ("clip", "noise", "counts"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"filters: {name} of noise is {value}; it must be above 0, and finite.")

    def check(self, method: Method[Any, Any], name: str, filters: Sequence[Filter], participants: int) -> None:
        if not declares(Prototypes, method.up) and not declares(Clusters, method.up):
            raise ConfigError(
                f"the filter noise is for class vectors, and {name} sends none.  Where weights or answers of a model "
                f"leave, training.dp protects: training.dp={{noise=1.0, clip=1.0}}."
            )
        if sum(isinstance(each, Noise) for each in filters) > 1:
            raise ConfigError(
                "filters: noise is there twice.  Only the first would count, in what is claimed and in the budget; set "
                "its noise higher instead."
            )

    @property
    def count_noise(self) -> float:
        """The standard deviation of the noise of a count."""
        return COUNTS * self.noise if self.counts is None else self.counts

    @property
    def mu(self) -> float:
        """How far one record moves a release, in standard deviations of the noise: sums and counts together."""
        return math.hypot(1 / self.noise, 1 / self.count_noise)

    def event(self, releases: int = 1) -> Event:
        """Return what sending prototypes so many times costs."""
        return 1 / self.mu, 1.0, releases

    def leave(self, up: Named, at: Passage) -> Named:
        found = dict(up)
        for place in places_of(Prototypes, at.kind, up):
            prefix = f"{place}." if place else ""
            own = Prototypes.from_flat({name: up[prefix + name] for name in ("vectors", "counts")})
            found |= {prefix + name: tensor for name, tensor in self.noisy(own, at, place).flat().items()}
        for place in places_of(Clusters, at.kind, up):
            prefix = f"{place}." if place else ""
            rows = Clusters.from_flat({name: up[prefix + name] for name in ("vectors", "classes", "counts")})
            means, counts = self.noisy_means(rows.vectors, rows.counts, at, place)
            noisy = Clusters(means, rows.classes, counts).only(counts > 0)
            found |= {prefix + name: tensor for name, tensor in noisy.flat().items()}
        return found

    def noisy(self, own: Prototypes, at: Passage, place: str = "") -> Prototypes:
        """Return the noisy prototypes of a client, in float32."""
        return Prototypes(*self.noisy_means(own.vectors, own.counts, at, place))

    def noisy_means(self, vectors: Tensor, counts: Tensor, at: Passage, place: str) -> tuple[Tensor, Tensor]:
        """Return noisy means and counts, both 0 where the noisy count is too small.

        All but the first two lines sees noisy numbers only.
        """
        counts = counts.double()
        sums = shortened(vectors.double(), self.clip) * counts.unsqueeze(1)
        sums = sums + self.noise * self.clip * gaussian(sums.shape, at, f"vectors/{place}")
        counts = (counts + self.count_noise * gaussian(counts.shape, at, f"counts/{place}")).round()
        least = LEAST * self.count_noise if self.least is None else self.least
        sent = counts >= max(1.0, least)
        means = shortened(sums / counts.clamp(min=1).unsqueeze(1), self.clip)
        return (means * sent.unsqueeze(1)).float(), (counts * sent).float()


def gaussian(shape: torch.Size, at: Passage, purpose: str) -> Tensor:
    """Draw standard normal numbers in float64: from a named stream, or where it must, from the operating system."""
    if not at.system_randomness:
        return torch.randn(shape, generator=at.rng.generator(f"noise/{purpose}"), dtype=torch.float64)
    numbers = shape.numel()
    raw = np.frombuffer(os.urandom(16 * numbers), dtype=np.uint64).reshape(2, numbers) >> np.uint64(11)
    radius, angle = (raw.astype(np.float64) + 0.5) / 2**53  # in (0, 1); Box and Muller
    drawn = np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)
    return torch.from_numpy(drawn).reshape(shape)
