"""South: arrays, split by the hospital itself, and a network of its own."""

from pathlib import Path

import numpy as np
from torch import Tensor, nn

HERE = Path(__file__).parent


class Gated(nn.Module):
    """Says for each measurement how much it matters here, then looks at all of them.

    A whole classifier: Protea splits it at its last linear layer.
    """

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(inputs, inputs), nn.Sigmoid())
        self.mix = nn.Sequential(nn.Linear(inputs, 48), nn.LayerNorm(48), nn.GELU())
        self.classify = nn.Linear(48, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.mix(x * self.gate(x)))


def model(classes):
    return Gated(inputs=30, classes=len(classes))


def data():
    with np.load(HERE / "data.npz") as arrays:
        x, y = arrays["x"], arrays["y"]  # labels count through the task's classes
    tests = len(x) // 4
    return x[tests:], y[tests:], x[:tests], y[:tests]  # as measured; site.toml says standardise
