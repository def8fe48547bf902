"""Five networks of 10 to 100 thousand parameters, unlike each other, that train in seconds on a CPU.

They take images from 8x8 to 32x32 and larger, of any number of channels.  A sample of another
shape, such as a row of a table, is first mapped by a linear layer to an 8x8 image of one channel.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from protea.models.mlp import mlp


class Mean(nn.Module):
    """The mean over all places of a feature map."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def as_image(shape: tuple[int, ...]) -> tuple[list[nn.Module], tuple[int, int, int]]:
    """Return layers that turn a sample into an image, and the shape of that image."""
    if len(shape) == 3:
        return [], (shape[0], shape[1], shape[2])
    return [nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.Unflatten(1, (1, 8, 8))], (1, 8, 8)


def large_weights(module: nn.Module) -> nn.Module:
    """Set He's initial weights: torch's own have a sixth of their variance, and start slowly."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return module


def tiny_mlp(shape: tuple[int, ...]) -> nn.Module:
    """Two hidden layers of 96; images larger than 16x16 are halved before, to keep it small."""
    if len(shape) != 3 or max(shape[1:]) <= 16:
        return large_weights(mlp(shape, hidden=(96, 96)))
    smaller = (shape[0], math.ceil(shape[1] / 2), math.ceil(shape[2] / 2))
    return nn.Sequential(nn.AvgPool2d(2, ceil_mode=True), tiny_mlp(smaller))


def tiny_cnn(shape: tuple[int, ...]) -> nn.Module:
    """3x3 convolutions and 2x2 max pooling down to 4x4, then a hidden layer of 64."""
    layers, (channels, height, width) = as_image(shape)
    out = 16
    while height * width > 16:
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
        channels, height, width = out, math.ceil(height / 2), math.ceil(width / 2)
        out = 32
    return large_weights(nn.Sequential(*layers, mlp((channels, height, width), hidden=(64,))))


class Residual(nn.Module):
    """Two 3x3 convolutions with BatchNorm beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers(x) + self.shortcut(x))


def tiny_resnet(shape: tuple[int, ...]) -> nn.Module:
    """A residual network of three blocks, the ResNet-8 of the CIFAR literature."""
    layers, (channels, _, _) = as_image(shape)
    layers += [nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*layers, Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2), Mean())


def tiny_separable(shape: tuple[int, ...]) -> nn.Module:
    """Depthwise and pointwise convolutions in turn, as in MobileNet."""
    layers, (channels, _, _) = as_image(shape)
    layers += [nn.Conv2d(channels, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    for before, after, stride in ((32, 64, 2), (64, 128, 2)):
        layers += [
            nn.Conv2d(before, before, 3, stride, padding=1, groups=before, bias=False),
            nn.BatchNorm2d(before), nn.ReLU6(),
            nn.Conv2d(before, after, 1, bias=False),
            nn.BatchNorm2d(after), nn.ReLU6(),
        ]  # fmt: skip
    return nn.Sequential(*layers, Mean())


class Mixer(nn.Module):
    """One block of MLP-Mixer (Tolstikhin et al. 2021): across patches, then across features."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.across = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.within = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:  # (batch, patches, width)
        x = x + self.across(self.norm1(x).mT).mT
        out: Tensor = x + self.within(self.norm2(x))
        return out


class Patches(nn.Module):
    """A layer that cuts an image into 4x4 patches and maps each to ``width`` numbers."""

    def __init__(self, shape: tuple[int, int, int], width: int) -> None:
        super().__init__()
        channels, *size = shape
        height, breadth = (math.ceil(side / 4) for side in size)
        self.pad = nn.ZeroPad2d((0, 4 * breadth - size[1], 0, 4 * height - size[0]))
        self.embed = nn.Conv2d(channels, width, (height, breadth), stride=(height, breadth))

    def forward(self, x: Tensor) -> Tensor:
        patches: Tensor = self.embed(self.pad(x)).flatten(2).mT
        return patches


def tiny_mixer(shape: tuple[int, ...]) -> nn.Module:
    """16 patches, mixed twice; then a hidden layer of 64."""
    layers, size = as_image(shape)
    return nn.Sequential(*layers, Patches(size, 48), Mixer(16, 48), Mixer(16, 48), mlp((16, 48), hidden=(64,)))
