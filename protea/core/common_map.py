"""Maps that every client computes alike, whatever its model: random features given by a seed.

The numbers of a map are drawn as whole numbers from a stream that is the same on every machine and in every version, so
that parties who never met have the same map.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

FILTERS = 128  # of images
WIDTH = 2048  # random features of vectors shorter than dim, before they are projected
GRID = 4  # images keep the place of an answer on a grid of 4 x 4


class CommonMap(nn.Module):
    """A map phi from inputs of one shape to ``dim`` numbers, the last of which is 1.

    The 1 makes affine functions of the others linear.  The weights are buffers that never train.
    """

    weights: Tensor
    biases: Tensor
    projection: Tensor  # random signs

    def __init__(self, shape: tuple[int, ...], dim: int, seed: int) -> None:
        super().__init__()
        if dim < 2:
            raise ValueError(f"a common map to {dim} numbers has no room beside its constant; at least 2 are needed")
        stream = np.random.PCG64(seed)
        self.pixels = len(shape) == 3 and min(shape[1:]) >= 3
        if self.pixels:
            side, size = min(shape[1:]), 6 if min(shape[1:]) >= 20 else 3
            self.stride, self.grid = (2 if size == 6 else 1), min(GRID, side - size + 1)
            weights = uniform(stream, FILTERS, shape[0], size, size)
            weights = weights - weights.mean((1, 2, 3), keepdim=True)  # a flat patch has no answer but the bias
            weights = weights / weights.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            biases, width = -(uniform(stream, FILTERS) + 1) / 2, FILTERS * self.grid**2  # thresholds from 0 to 1
        else:
            inputs = max(1, math.prod(shape))
            width = WIDTH if inputs < dim else 0  # long vectors are projected as they are
            weights = uniform(stream, width, inputs) * (3 / inputs) ** 0.5  # variance 1 for inputs of variance 1
            biases, width = uniform(stream, width), width or inputs
        self.register_buffer("weights", weights)
        self.register_buffer("biases", biases)
        self.register_buffer("projection", uniform(stream, width, dim - 1).sign() / width**0.5)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Return phi of a batch, ``(batch, dim)``."""
        answers = self.images(x) if self.pixels else self.vectors(x)
        return F.pad(answers @ self.projection, (0, 1), value=1.0)

    def images(self, x: Tensor) -> Tensor:
        """Return what random filters answer on a grid of places: the root of the mean of what exceeds a threshold."""
        answers = F.conv2d(x, self.weights, self.biases, self.stride).relu()
        return F.adaptive_avg_pool2d(answers, self.grid).flatten(1).sqrt()

    def vectors(self, x: Tensor) -> Tensor:
        """Return random features of short vectors, and long ones as they are.

        ``asinh`` tames columns of large scale, without a look at the data.
        """
        if not len(self.weights):
            return x.float().flatten(1)
        return F.linear(x.float().flatten(1).asinh(), self.weights, self.biases).relu()


def uniform(stream: np.random.PCG64, *shape: int) -> Tensor:
    """Draw numbers from -1 to 1, multiples of 2^-23: the same everywhere, as the raw stream is."""
    raw = stream.random_raw(math.prod(shape)) >> np.uint64(40)  # 24 bits
    return torch.from_numpy((raw.astype(np.float64) / 2**23 - 1).astype(np.float32)).view(shape)


@cache
def common_map(shape: tuple[int, ...], dim: int, seed: int, device: torch.device) -> CommonMap:
    """Return the map of these settings on a device, made once in each process."""
    return CommonMap(shape, dim, seed).to(device)
