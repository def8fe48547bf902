"""Residual networks, from 4 to 152 layers.

He, Zhang, Ren, Sun.  CVPR 2016, https://arxiv.org/abs/1512.03385

Layers, names and first weights are torchvision's, so that its checkpoints load.  The small
ones (4 to 10) have one block per stage and fewer stages, as in the federated literature.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from protea.core.errors import ConfigError
from protea.models.shapes import image_shape

WIDTHS = (64, 128, 256, 512)


def conv3x3(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    """Make a 3x3 convolution without bias."""
    return nn.Conv2d(before, after, 3, stride, padding=1, bias=False)


def conv1x1(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    """Make a 1x1 convolution without bias."""
    return nn.Conv2d(before, after, 1, stride, bias=False)


class Basic(nn.Module):
    """A block of two 3x3 convolutions beside a shortcut."""

    growth = 1

    def __init__(self, before: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(before, width, stride), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = conv3x3(width, width), nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        out: Tensor = self.relu(self.bn2(self.conv2(y)) + shortcut)
        return out


class Bottleneck(nn.Module):
    """A block of 1x1, 3x3 and 1x1 convolutions beside a shortcut; the stride is at the 3x3 one."""

    growth = 4

    def __init__(self, before: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv1x1(before, width), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv3x3(width, width, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = conv1x1(width, 4 * width), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        out: Tensor = self.relu(self.bn3(self.conv3(y)) + shortcut)
        return out


class ResNet(nn.Module):
    """A residual network: ImageNet's first layers, one stage per entry of ``blocks``, then the mean over places."""

    def __init__(self, channels: int, kind: type[Basic] | type[Bottleneck], blocks: Sequence[int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        before = 64
        self.stages = [f"layer{number}" for number in range(1, len(blocks) + 1)]
        for name, width, count in zip(self.stages, WIDTHS, blocks, strict=False):
            after, stage = width * kind.growth, nn.Sequential()
            for number in range(count):
                stride = 2 if number == 0 and width > WIDTHS[0] else 1
                change = before != after or stride > 1
                shortcut = nn.Sequential(conv1x1(before, after, stride), nn.BatchNorm2d(after)) if change else None
                stage.append(kind(before, width, stride, shortcut))
                before = after
            self.add_module(name, stage)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = self.get_submodule(name)(x)
        return x.mean((2, 3))


def resnet(shape: tuple[int, ...], *, blocks: Sequence[int], bottleneck: bool = False) -> nn.Module:
    """Make a residual network; its features are 64 to 512 wide, by the number of stages; times 4 with bottlenecks."""
    if not 1 <= len(blocks) <= len(WIDTHS):
        raise ConfigError(f"blocks is {list(blocks)}; it must have one to four entries, one for each stage.")
    return ResNet(image_shape(shape)[0], Bottleneck if bottleneck else Basic, blocks)


resnet4 = partial(resnet, blocks=(1,))
resnet6 = partial(resnet, blocks=(1, 1))
resnet8 = partial(resnet, blocks=(1, 1, 1))
resnet10 = partial(resnet, blocks=(1, 1, 1, 1))
resnet18 = partial(resnet, blocks=(2, 2, 2, 2))
resnet34 = partial(resnet, blocks=(3, 4, 6, 3))
resnet50 = partial(resnet, blocks=(3, 4, 6, 3), bottleneck=True)
resnet101 = partial(resnet, blocks=(3, 4, 23, 3), bottleneck=True)
resnet152 = partial(resnet, blocks=(3, 8, 36, 3), bottleneck=True)
