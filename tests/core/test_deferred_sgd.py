"""Steps under plain SGD equal those of autograd and torch.optim, whatever a loss does with a large layer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from protea.config.families import Models
from protea.core.steps.deferred_sgd import LARGE, descend
from protea.core.training import Training
from protea.models.maker import ModelMaker

LR, STEPS = 0.05, 5
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(300, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def twice(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y) + F.mse_loss(model(x + 1), model(x.flip(0)))


def regularised(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y) + 0.01 * sum(p.norm() for p in model.parameters())  # norm keeps the weight


def attacked(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A backward pass of the loss's own: it must change nothing."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(model(x), y), x)
    return F.cross_entropy(model((x + 0.1 * slope.sign()).detach()), y)


def penalised(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A gradient in the loss, which is then differentiated once more."""
    x = x.clone().requires_grad_()
    value = F.cross_entropy(model(x), y)
    (slope,) = torch.autograd.grad(value, x, create_graph=True)
    return value + slope.square().sum()


def own_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """As methods do that look at the gradients of weights."""
    slopes = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    return F.cross_entropy(model(x), y) * (1 + sum(s.norm() for s in slopes))


def borrowed(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The model with half of its weights, and without gradients, beside itself."""
    with torch.no_grad():
        teacher = model(x)
    halves = {name: p / 2 for name, p in model.named_parameters()}
    return F.cross_entropy(functional_call(model, halves, x), y) + F.mse_loss(model(x), teacher + 1)


def sequences(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x.view(4, 5, 300)).flatten(0, 1), y)


def one_by_one(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(torch.stack([model(row) for row in x]), y)


LOSSES = [
    cross_entropy, twice, regularised, attacked, penalised, own_gradient, borrowed, sequences, one_by_one,
]  # fmt: skip


def batch(step: int, shape: tuple[int, ...] = (300,), classes: int = 4) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(step)
    return torch.randn(20, *shape, generator=g), torch.randint(classes, (20,), generator=g)


def plainly(model: nn.Module, loss: Loss, data: Callable[[int], tuple[Tensor, Tensor]], **options: float) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, foreach=False, **options)
    for step in range(STEPS):
        value = loss(model, *data(step))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()


def ours(model: nn.Module, loss: Loss, data: Callable[[int], tuple[Tensor, Tensor]], **options: float) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, foreach=True, **options)
    descend(
        (loss(model, *data(step)) for step in range(STEPS)), optimizer, [model], trouble=lambda *_: AssertionError()
    )


def assert_close(a: nn.Module, b: nn.Module) -> None:
    for (name, one), other in zip(a.named_parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_same_numbers_as_torch(loss: Loss) -> None:
    start = net()
    one, two = copy.deepcopy(start), copy.deepcopy(start)
    plainly(one, loss, batch)
    ours(two, loss, batch)
    assert not torch.allclose(one[2].weight, start[2].weight)  # something was learned
    assert_close(one, two)


@pytest.mark.parametrize("member", range(8))
def test_the_same_numbers_for_the_cnns_of_the_papers(member: int) -> None:
    make = ModelMaker(Models(family="htcnn8", dim=512), (1, 28, 28), 10)
    torch.manual_seed(0)
    one = make(make.members[member])
    two = copy.deepcopy(one)

    def data(step: int) -> tuple[Tensor, Tensor]:
        return batch(step, (1, 28, 28), 10)

    plainly(one, cross_entropy, data)
    ours(two, cross_entropy, data)
    assert_close(one, two)


def test_a_large_weight_has_no_gradient_under_plain_sgd() -> None:
    model = net()
    ours(model, cross_entropy, batch)
    assert [p.grad is None for p in model.parameters()] == [True, False, True, False, False, False]
    assert model[2].weight.numel() >= LARGE > model[4].weight.numel()


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"weight_decay": 0.1}])
def test_other_optimizers_have_their_gradients(options: dict[str, float]) -> None:
    one, two = net(), net()
    plainly(one, cross_entropy, batch, **options)
    ours(two, cross_entropy, batch, **options)
    assert all(p.grad is not None for p in two.parameters())
    assert_close(one, two)


def test_a_clipped_gradient_is_there_to_be_clipped() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    start = copy.deepcopy(model)
    values = (1000 * cross_entropy(model, *batch(step)) for step in range(1))
    descend(values, optimizer, [model], clip=1.0, trouble=lambda *_: AssertionError())
    moved = sum((a - b).square().sum() for a, b in zip(model.parameters(), start.parameters(), strict=True)).sqrt()
    assert moved.item() == pytest.approx(LR, rel=1e-3)


def test_a_weight_that_somebody_listens_to_has_its_gradient() -> None:
    model, heard = net(), []
    model[2].weight.register_hook(lambda g: heard.append(g.shape))
    ours(model, cross_entropy, batch)
    assert len(heard) == STEPS


def test_layers_are_as_before_when_a_loss_fails() -> None:
    model = net()

    def values() -> Iterator[Tensor]:
        yield cross_entropy(model, *batch(0))
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        descend(values(), torch.optim.SGD(model.parameters(), lr=LR), [model], trouble=lambda *_: AssertionError())
    assert all("forward" not in vars(part) for part in model.modules())


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_adam_in_one_pass_is_torchs_adam(kind: Literal["adam", "adamw"]) -> None:
    one, two = net(), net()
    plan = Training(optimizer=kind, weight_decay=0.01)
    classes = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    step_by_step = classes[kind](one.parameters(), lr=0.001, weight_decay=0.01, foreach=False, fused=False)
    for model, optimizer in ((one, step_by_step), (two, plan.make_optimizer(two.parameters(), 0.001))):
        values = (cross_entropy(model, *batch(step)) for step in range(STEPS))
        descend(values, optimizer, [model], trouble=lambda *_: AssertionError())
    assert_close(one, two)
