"""Random crops and flips of a batch of images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt
from torch import Generator, Tensor

BLACK = -1.0  # the value of a black pixel in a normalised image


@dataclass(frozen=True)
class Augment:
    """``[data.augment]``: random changes of the images of a training batch, drawn anew for each batch."""

    crop: NonNegativeInt = 0  # pixels by which an image is moved at most; black comes in at its border
    flip: bool = False  # mirror each image left to right with probability 1/2

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """Return a changed copy of the batch (n, c, h, w)."""
        if self.crop:
            x = random_crop(x, self.crop, generator)
        return random_flip(x, generator) if self.flip else x


def random_crop(x: Tensor, padding: int, generator: Generator, fill: float = BLACK) -> Tensor:
    """Move each image of the batch (n, c, h, w) by up to ``padding`` pixels up or down, and left or right.

    >>> random_crop(torch.ones(2, 1, 4, 4), 1, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 1, 4, 4])
    """
    n, channels, height, width = x.shape
    padded = F.pad(x, (padding,) * 4, value=fill)
    offsets = torch.randint(2 * padding + 1, (2, n, 1), generator=generator).to(x.device)
    rows = offsets[0] + torch.arange(height, device=x.device)
    columns = offsets[1] + torch.arange(width, device=x.device)
    image = torch.arange(n, device=x.device)[:, None, None, None]
    channel = torch.arange(channels, device=x.device)[:, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def random_flip(x: Tensor, generator: Generator) -> Tensor:
    """Mirror each image of the batch (n, c, h, w) left to right with probability 1/2."""
    mirrored = torch.rand(len(x), generator=generator).to(x.device) < 0.5
    return torch.where(mirrored[:, None, None, None], x.flip(3), x)
