"""A head that answers by nearness to prototypes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protea.core.prototypes import Metric, Prototypes
from protea.core.split_model import SplitModel


class Nearest(nn.Module):
    """Scores of features are their nearness to a vector per class, times ``scale``.

    For methods that classify by prototypes and have no other classifier.  Vectors and scale
    learn only where they are said to; a class with ``counts == 0`` is never answered.
    """

    counts: Tensor

    def __init__(
        self, vectors: Tensor, metric: Metric, *, learns: bool = False, scale: float = 1.0, scale_learns: bool = False
    ) -> None:
        super().__init__()
        self.metric: Metric = metric
        self.vectors = nn.Parameter(vectors.clone(), requires_grad=learns)
        self.scale = nn.Parameter(torch.tensor(scale, device=vectors.device), requires_grad=scale_learns)
        self.register_buffer("counts", vectors.new_ones(len(vectors)))

    def forward(self, features: Tensor) -> Tensor:
        known = Prototypes(self.vectors, torch.ones_like(self.counts))  # scaled before classes are left out
        return (self.scale * known.scores(features, self.metric)).masked_fill(self.counts <= 0, -torch.inf)

    @property
    def prototypes(self) -> Prototypes:
        return Prototypes(self.vectors, self.counts)

    @torch.no_grad()
    def set(self, prototypes: Prototypes) -> None:
        """Take over other vectors, in place: an optimizer that is made later must find them."""
        self.vectors.copy_(prototypes.vectors)
        self.counts.copy_(prototypes.counts)


def nearest_head(model: SplitModel) -> Nearest:
    """The head of a model that a method's ``start_client`` or ``start_server`` has given one."""
    assert isinstance(model.head, Nearest)
    return model.head
