"""What a server trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from protea import Server
from protea.core.errors import ProteaError
from protea.core.rng import Streams
from protea.core.training import Training


def server() -> Server:
    return Server(classes=2, dim=1, rng=Streams(0))


def number(value: float = 0.0) -> nn.Linear:
    """One weight."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, value)
    return module


def test_one_step_and_two():
    """(w - 3)^2 from 0: slope -6, so 0.6 after a step of 0.1; then slope -4.8, 1.08.  Losses 9 and 5.76."""
    for epochs, weight, last in ((1, 0.6, 9.0), (2, 1.08, 5.76)):
        module = number()
        plan = Training(epochs=epochs, lr=0.1)
        found = server().fit(
            lambda rows, w=module.weight: (w - 3).square().sum(), module, rows=torch.arange(4), plan=plan
        )
        assert module.weight.item() == pytest.approx(weight)
        assert found == pytest.approx(last)


def test_every_row_is_met_once_in_an_epoch_in_a_new_order():
    module, seen = number(), list[Tensor]()

    def loss(rows: Tensor) -> Tensor:
        seen.append(rows)
        return module.weight.sum()

    with Streams(1).default("test"):
        server().fit(loss, module, rows=torch.arange(10, 31), plan=Training(epochs=2, batch=10))
    assert [len(rows) for rows in seen] == [10, 11, 10, 11]  # a last batch of one joins the one before
    first, second = torch.cat(seen[:2]), torch.cat(seen[2:])
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(10, 31))
    assert not torch.equal(first, second) and not torch.equal(first, torch.arange(10, 31))


def test_the_order_comes_from_the_stream_in_use():
    def order(purpose: str) -> list[int]:
        module, seen = number(), list[int]()

        def loss(rows: Tensor) -> Tensor:
            seen.extend(rows.tolist())
            return module.weight.sum()

        with Streams(1).default(purpose):
            server().fit(loss, module, rows=torch.arange(12), plan=Training(batch=5))
        return seen

    assert order("one") == order("one") != order("another")


def test_a_batch_that_is_not_full_can_be_dropped():
    module, seen = number(), list[int]()

    def loss(rows: Tensor) -> Tensor:
        seen.append(len(rows))
        return module.weight.sum()

    server().fit(loss, module, rows=torch.arange(13), plan=Training(batch=5, last="drop"))
    assert seen == [5, 5]


def test_without_rows_nothing_changes():
    module = number(2.0)
    plan = Training(epochs=3)
    found = server().fit(lambda rows: module.weight.sum(), module, rows=torch.arange(0), plan=plan)
    assert found == 0 and module.weight.item() == 2 and not module.training


def test_modules_train_within_and_are_at_rest_afterwards():
    module, modes = nn.Sequential(nn.Dropout(0.5), number(1.0)).eval(), list[bool]()

    def loss(rows: Tensor) -> Tensor:
        modes.append(module[0].training)
        return module(torch.ones(len(rows), 1)).sum()

    server().fit(loss, module, rows=torch.arange(4), plan=Training())
    assert modes == [True] and not module.training and not module[0].training


@pytest.mark.parametrize(("rows", "batch"), [(1, 10), (3, 1)])
def test_batches_of_one_leave_the_statistics_of_batchnorm_alone(rows: int, batch: int):
    module = nn.Sequential(number(1.0), nn.BatchNorm1d(1))
    plan = Training(batch=batch, lr=0.1)
    server().fit(lambda r: module(torch.ones(len(r), 1)).sum(), module, rows=torch.arange(rows), plan=plan)
    assert module[1].running_mean.item() == 0 and module[1].num_batches_tracked.item() == 0
    assert module[1].bias.item() < 0  # it was trained


def test_larger_batches_do_change_these_statistics():
    module = nn.Sequential(number(1.0), nn.BatchNorm1d(1))
    server().fit(lambda r: module(r.unsqueeze(1).float()).sum(), module, rows=torch.arange(5), plan=Training(batch=5))
    assert module[1].running_mean.item() == pytest.approx(0.2)  # a tenth of the mean, 2


def test_several_modules_are_trained_and_frozen_ones_are_not():
    first, second, frozen = number(1.0), number(1.0), number(1.0).requires_grad_(False)
    modules = (first, second, frozen)
    plan = Training(lr=0.1)
    server().fit(lambda rows: sum(m.weight.sum() for m in modules), *modules, rows=torch.arange(2), plan=plan)  # type: ignore[arg-type,return-value]
    assert [m.weight.item() for m in modules] == pytest.approx([0.9, 0.9, 1.0])


@pytest.mark.parametrize(
    ("settings", "weight"),
    [({}, -1.0), ({"clip": 1.0}, -0.1), ({"optimizer": "adam"}, -0.1), ({"weight_decay": 10.0}, -1.0)],
)
def test_the_plan_says_how(settings: dict[str, Any], weight: float):
    """A slope of 10 and a learning rate of 0.1.  Adam's first step is the learning rate."""
    module = number()
    plan = Training(lr=0.1, **settings)
    server().fit(lambda rows: 10 * module.weight.sum(), module, rows=torch.arange(2), plan=plan)
    assert module.weight.item() == pytest.approx(weight)


def test_a_loss_that_is_not_finite_ends_the_round_and_says_where():
    module, here = number(), server()
    here.round = 7
    losses = iter([1.0, 2.0, torch.nan])
    plan = Training(epochs=5, lr=0.25)
    with pytest.raises(ProteaError, match=r"server, round 7: the loss became nan at step 3 \(lr 0.25\)"):
        here.fit(lambda rows: module.weight.sum() + next(losses), module, rows=torch.arange(4), plan=plan)
