"""The spirals on which ProtoNorm shows its features: points in the plane, one noisy arm per class."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveInt

from protea.core.rng import Streams
from protea.data.dataset import Dataset


@dataclass(frozen=True)
class Spiral:
    """Points on spirals: those of class k = 0, 1, ... have radius 1 to 10 and angle k pi/3 to 2 k pi/3, plus noise."""

    classes: PositiveInt = 6
    points: PositiveInt = 5000  # of each class
    noise: NonNegativeFloat = 1.0  # standard deviation of the angle
    seed: int = 0

    def load(self) -> Dataset:
        along = np.linspace(0, 1, self.points)
        arm = np.arange(self.classes)[:, None]
        radius = 1 + 9 * along
        random = Streams(self.seed).at("data").numpy("spiral")
        angle = arm * math.pi / 3 * (1 + along) + random.normal(0, self.noise, (self.classes, self.points))
        x = np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=-1).reshape(-1, 2)
        y = torch.arange(self.classes).repeat_interleave(self.points)
        return Dataset(torch.from_numpy(x.astype(np.float32)), y, tuple(map(str, range(self.classes))))
