from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from night import by_night
from own_models import build
from sklearn.datasets import load_digits

from protea.config.families import FAMILIES, Member
from protea.models.architectures import count_parameters as size

NAMES = [member.architecture for member in FAMILIES["tiny5"]]


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (1, 28, 28), (3, 32, 32), (64,)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_is_small(name, shape):
    with torch.device("meta"):
        body = size(build(Member(name), shape=shape, classes=10, dim=512))["body"]
    assert 10_000 < body < 100_000


@pytest.mark.parametrize("shape", [(3, 30, 17), (1, 5, 5), (2, 3), (7,), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_takes_any_shape(name, shape):
    model = build(Member(name), shape=shape, classes=3, dim=16)
    model.eval()
    model(torch.randn(2, *shape)).sum().backward()


@dataclass(frozen=True)
class Recipe:
    """Plain SGD."""

    epochs: int = 3
    lr: float = 0.03
    batch: int = 10


QUICK = Recipe(epochs=2, lr=0.1, batch=20)  # enough for all but the plainest


@pytest.mark.parametrize(
    ("name", "recipe", "flat"),
    [
        *(("tiny_mlp", Recipe(), False), ("tiny_cnn", Recipe(), True), ("tiny_resnet", QUICK, False)),
        *by_night(("tiny_cnn", Recipe(), False), ("tiny_mixer", QUICK, False), ("tiny_separable", QUICK, False)),
        *by_night(*((name, Recipe(), False) for name in NAMES[2:])),
    ],
)
def test_learns_digits(name: str, recipe: Recipe, flat: bool) -> None:
    """Above 90 % on held out digits after three epochs at most; also from pixels without their places."""
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    y = torch.tensor(digits.target)
    if flat:
        x = x.flatten(1)
    torch.manual_seed(0)
    model = build(Member(name), shape=tuple(x.shape[1:]), classes=10, dim=512)
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.lr)
    train, test = torch.randperm(len(x)).split([1297, 500])
    for _ in range(recipe.epochs):
        for rows in train[torch.randperm(len(train))].split(recipe.batch):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        assert (model(x[test]).argmax(1) == y[test]).float().mean() > 0.9
