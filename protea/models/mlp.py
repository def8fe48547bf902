"""Fully connected networks; they take samples of any shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(shape: tuple[int, ...], *, hidden: Sequence[int] = (200, 200)) -> nn.Module:
    """Make FedPAGR's MLP; the features are its last hidden layer.

    That paper does not give the layers.  We take those of McMahan et al. 2017, as for its ``cnn``.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise((math.prod(shape), *hidden)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


def mlp5(shape: tuple[int, ...], *, hidden: int = 128, width: int = 2) -> nn.Module:
    """Make ProtoNorm's network for its spirals: five layers with the head, and features of 2 numbers, to be drawn.

    The width of the hidden layers is ours.  No ReLU follows the features, so that they can
    point in every direction.
    """
    return nn.Sequential(mlp(shape, hidden=(hidden,) * 3), nn.Linear(hidden, width))


class RandomFeatures(nn.Module):
    """A layer whose weights are drawn once and never trained: ``relu(weights x + biases)``, ``width`` numbers."""

    weights: Tensor
    biases: Tensor

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.register_buffer("weights", torch.randn(width, inputs) * (2 / inputs) ** 0.5)  # keeps the mean square
        self.register_buffer("biases", torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.flatten(1), self.weights, self.biases).relu()


def random_features(shape: tuple[int, ...], *, width: int = 1024) -> nn.Module:
    """Make a random projection that does not train, a different one for each client; the adapter and the head learn.

    Features of ``width`` numbers need ``models.adapter="linear"``, or they are pooled to ``models.dim``.
    """
    return RandomFeatures(math.prod(shape), width)
