"""FedUV: uniformity and variance for heterogeneous federated learning.

Son, Kim, Chung, Huang, Liu.  CVPR 2024, https://arxiv.org/abs/2402.18372

FedAvg, and two terms let every client behave as if it had samples of all classes, evenly: its
answers vary over a batch as those to one sample of each class would, its features spread out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from protea import Client, Weights
from protea.core.client import Loss
from protea.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedUV(FedAvg):
    """``variance`` is the paper's mu, ``uniformity`` its lambda.  Both 0 is FedAvg, to the bit."""

    variance: NonNegativeFloat = 2.5
    uniformity: NonNegativeFloat = 0.5

    variants = {}

    def loss(self, client: Client, down: Weights) -> Loss:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = client.model.features(x)
            scores = client.model.head(z)
            value = F.cross_entropy(scores, y)
            if self.variance and len(y) > 1:  # one sample neither varies nor spreads
                value = value + self.variance * sameness(scores)
            if self.uniformity and len(y) > 1:
                value = value + self.uniformity * crowding(z)
            return value

        return loss


def sameness(scores: Tensor) -> Tensor:
    """Return how much less each class's probability varies over the batch than with one sample of each class."""
    even = scores.shape[1] ** -0.5  # standard deviation of a column of the identity
    spread = scores.softmax(1).var(0).clamp(min=1e-30).sqrt()  # the slope of a root near 0 has no end
    return F.relu(even - spread).mean()


def crowding(z: Tensor) -> Tensor:
    """Return exp(-squared distance / width), mean over pairs of features; the width is the median squared distance.

    As in the authors' code, features keep their length and the width has a gradient.
    """
    squares = F.pdist(z).square()
    apart = squares[squares > 1e-30]
    width = apart.median() if len(apart) else torch.ones_like(squares[0])
    return (-squares / width).exp().mean()
