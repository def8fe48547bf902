"""Models as a user may bring them, good and bad; named in tests as ``own_models:...``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from protea.config.families import AdapterKind, Member, Models
from protea.core.split_model import SplitModel
from protea.models.maker import ModelMaker


class Backwards(nn.Module):
    """A classifier whose head is registered first and whose first layer is registered last."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, classes)
        self.norm = nn.BatchNorm1d(width)
        self.first = nn.Linear(inputs, width)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(self.first(x.flatten(1))).relu())
        return scores


def backwards(shape: tuple[int, ...], classes: int, width: int = 24) -> nn.Module:
    return Backwards(math.prod(shape), width, classes)


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(math.prod(shape), classes)


def body(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 30), nn.Tanh())


def lazy(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, classes))


def split(shape: tuple[int, ...], classes: int, width: int = 8, scores: int | None = None) -> nn.Module:
    return SplitModel(body(shape, classes), nn.Linear(30, width), nn.Linear(width, scores or classes))


def softmax(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(backwards(shape, classes), nn.Softmax(1))


def clipped(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ReLU in place gives the linear layer's own output on, changed."""
    return nn.Sequential(backwards(shape, classes), nn.ReLU(inplace=True))


def convolution(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A classifier that ends in a convolution, as SqueezeNet does."""
    return nn.Sequential(nn.Conv2d(shape[0], classes, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def maps(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Conv2d(shape[0], 5, 3)


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


def pair(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Pair()


class Needy(nn.Module):
    """Reads a number from its weights, which tensors without numbers refuse."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, classes)
        self.scale = float(torch.linspace(1, 2, 3)[1])

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(x.flatten(1) * self.scale)
        return scores


def needy(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Needy(math.prod(shape), classes)


def nothing(shape: tuple[int, ...], classes: int) -> Any:
    return "a model"


def build(
    member: Member,
    *,
    shape: tuple[int, ...],
    classes: int,
    dim: int,
    adapter: AdapterKind = "pool",
    dropout: float = 0.1,
) -> SplitModel:
    """A model of a member, for samples of that shape."""
    return ModelMaker(Models(dim=dim, adapter=adapter, dropout=dropout), shape, classes).build(member)


def smallest(
    members: Sequence[Member], *, shape: tuple[int, ...], classes: int, dim: int, adapter: AdapterKind = "pool"
) -> Member:
    """The member with the fewest parameters."""
    maker = ModelMaker(Models(dim=dim, adapter=adapter), shape, classes)
    vars(maker)["members"] = tuple(members)
    return maker._smallest
