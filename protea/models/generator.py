"""A generator of features from noise, for methods whose server has no samples."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Generator(nn.Module):
    """A network that maps noise and a class to features: two linear layers, BatchNorm and ReLU between them."""

    def __init__(self, classes: int, noise: int, hidden: int, dim: int) -> None:
        super().__init__()
        self.classes, self.noise = classes, noise
        self.layers = nn.Sequential(
            nn.Linear(noise + classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, dim)
        )

    def forward(self, labels: Tensor) -> Tensor:
        """Return new features of these classes, ``(labels, dim)``."""
        return self.both(labels)[0]

    def both(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return new features, and the noise they were made from."""
        noise = torch.rand(len(labels), self.noise, device=labels.device)
        features: Tensor = self.layers(torch.cat([noise, F.one_hot(labels, self.classes).to(noise.dtype)], 1))
        return features, noise


def likeness(features: Tensor, noise: Tensor) -> Tensor:
    """Return FedGen's diversity loss: near 1 if features are equal though noise differs, near 0 if both differ."""
    apart = (features.unsqueeze(0) - features.unsqueeze(1)).abs().mean(2)
    return (-(apart * torch.cdist(noise, noise).square() / noise.shape[1])).mean().exp()
