"""Random crops and flips of a batch of images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt
from torch import Generator, Tensor

BLACK = -1.0  # of a normalised image


@dataclass(frozen=True)
class Augment:
    """``crop`` moves each image by up to so many pixels, black coming in; ``flip`` mirrors half of them."""

    crop: NonNegativeInt = 0
    flip: bool = False

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        if self.crop:
            x = random_crop(x, self.crop, generator)
        return random_flip(x, generator) if self.flip else x


def random_crop(x: Tensor, padding: int, generator: Generator, fill: float = BLACK) -> Tensor:
    """Each image of the batch (n, c, h, w) moved by up to ``padding`` pixels each way."""
    n, channels, height, width = x.shape
    padded = F.pad(x, (padding,) * 4, value=fill)
    offsets = torch.randint(2 * padding + 1, (2, n, 1), generator=generator).to(x.device)
    rows = offsets[0] + torch.arange(height, device=x.device)
    columns = offsets[1] + torch.arange(width, device=x.device)
    image = torch.arange(n, device=x.device)[:, None, None, None]
    channel = torch.arange(channels, device=x.device)[:, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def random_flip(x: Tensor, generator: Generator) -> Tensor:
    """Each image mirrored left to right, or not, with even chances."""
    mirrored = torch.rand(len(x), generator=generator).to(x.device) < 0.5
    return torch.where(mirrored[:, None, None, None], x.flip(3), x)
