"""Adapters, from the features of a body to the ``dim`` that all clients share, and heads, from these to classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from protea.config.families import AdapterKind


class Pool(nn.Module):
    """An adapter by average pooling to ``dim`` numbers, as in the reference codes; it has no parameters.

    Fewer features than ``dim`` are repeated, more are averaged over windows that may overlap.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, z: Tensor) -> Tensor:
        return z if z.shape[1] == self.dim else F.adaptive_avg_pool1d(z.unsqueeze(1), self.dim).squeeze(1)


class Projector(nn.Module):
    """FedPAGR's adapter g_k into the consensus space (its section 3.2): two layers, each with LayerNorm.

    Its features have a length of about the root of ``dim``.  Bringing them to length 1 (Eq. 1) is the method's step.
    """

    def __init__(self, width: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.resize = nn.Identity() if width == dim else nn.Linear(width, dim)
        self.layers = nn.Sequential(
            nn.Linear(dim, 2 * dim), nn.LayerNorm(2 * dim), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(2 * dim, dim), nn.LayerNorm(dim),
        )  # fmt: skip

    def forward(self, z: Tensor) -> Tensor:
        projected: Tensor = self.layers(self.resize(z))
        return projected


def make_adapter(kind: AdapterKind, width: int, dim: int, dropout: float) -> nn.Module:
    """Make the adapter from an architecture's ``width`` features to the ``dim`` shared ones."""
    if kind == "pool":
        return Pool(dim)
    return nn.Linear(width, dim) if kind == "linear" else Projector(width, dim, dropout)


def make_head(dim: int, hidden: Sequence[int], classes: int) -> nn.Module:
    """Make a linear classifier, after ``hidden`` layers of these widths if there are any.

    No ReLU follows the last layer: HtFLlib's HtC heads have one there, which cuts scores off at 0.
    """
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(dim, width), nn.ReLU()]
        dim = width
    last = nn.Linear(dim, classes)
    return nn.Sequential(*layers, last) if layers else last
