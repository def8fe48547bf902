"""A head that classifies by nearness to prototypes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protea.core.prototypes import DistanceMetric, Prototypes
from protea.core.split_model import SplitModel


class Nearest(nn.Module):
    """A head whose scores are the nearness of features to a vector per class, times ``scale``.

    It is for methods that classify by prototypes alone.  Vectors and scale train only if ``learns``
    and ``scale_learns`` say so; a class with ``counts == 0`` is never answered.
    """

    counts: Tensor

    def __init__(
        self,
        vectors: Tensor,
        metric: DistanceMetric,
        *,
        learns: bool = False,
        scale: float = 1.0,
        scale_learns: bool = False,
    ) -> None:
        super().__init__()
        self.metric: DistanceMetric = metric
        self.vectors = nn.Parameter(vectors.clone(), requires_grad=learns)
        self.scale = nn.Parameter(torch.tensor(scale, device=vectors.device), requires_grad=scale_learns)
        self.register_buffer("counts", vectors.new_ones(len(vectors)))

    def forward(self, features: Tensor) -> Tensor:
        known = Prototypes(self.vectors, torch.ones_like(self.counts))  # scaled before classes are left out
        return (self.scale * known.scores(features, self.metric)).masked_fill(self.counts <= 0, -torch.inf)

    @property
    def prototypes(self) -> Prototypes:
        """The vectors and counts."""
        return Prototypes(self.vectors, self.counts)

    @torch.no_grad()
    def set(self, prototypes: Prototypes) -> None:
        """Copy other vectors into these, in place: an optimizer that is made later must find them."""
        self.vectors.copy_(prototypes.vectors)
        self.counts.copy_(prototypes.counts)


def nearest_head(model: SplitModel) -> Nearest:
    """Return the head of a model whose method has set it to a :class:`Nearest`."""
    assert isinstance(model.head, Nearest)
    return model.head
