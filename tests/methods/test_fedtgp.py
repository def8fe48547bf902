from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import toy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from protea import Prototypes, Upload
from protea.core.devices import torch_threads
from protea.core.errors import ProteaError
from protea.core.rng import Streams
from protea.core.server import Server
from protea.core.trainable_prototypes import (
    TrainablePrototypes,
    contrast,
    contrast_bound,
    contrast_slope,
    train_prototypes,
)
from protea.engines.inline import Inline
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.methods.fedproto import FedProto
from protea.methods.fedtgp import FedTGP, widest_gap
from protea.methods.local import Local

CROSS = [[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0], [1.0, 0.0]]
SQUARE = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]


def all_of(vectors: list[list[float]]) -> Prototypes:
    return Prototypes(torch.tensor(vectors), torch.ones(len(vectors)))


def served(method: FedTGP, *rounds: list[Prototypes], classes: int = 3, dim: int = 2) -> Server:
    """The server after it got these uploads, round by round."""
    server = Server(classes, dim, Streams(5))
    with torch_threads(1), torch.random.fork_rng():
        torch.manual_seed(0)
        method.start_server(server)
        for parts in rounds:
            method.aggregate(server, [Upload(i, part, 1) for i, part in enumerate(parts)])
    return server


def models(method: Any, rounds: int = 2) -> dict[str, Tensor]:
    worker = toy.worker(method, toy.build, seed=7)
    list(Federation(method, Inline(worker), toy.server(), FederationPlan(clients=toy.CLIENTS, rounds=rounds)).run())
    return {f"{i}/{k}": t for i, c in worker.clients.items() for k, t in c.model.state_dict().items()}


@pytest.mark.parametrize(
    ("points", "nearest", "pairs", "literal"), [(CROSS, 2.0, 8**0.5, 5**0.5), (SQUARE, 1.0, 2**0.5, 2**0.5)]
)
def test_the_three_readings_of_the_margin(points: Any, nearest: float, pairs: float, literal: float):
    """The nearest neighbours in the cross are at 1, 1, 2, 2, 1."""
    centres = all_of(points)
    assert widest_gap(centres, "nearest") == pytest.approx(nearest)
    assert widest_gap(centres, "pairs") == pytest.approx(pairs)
    assert widest_gap(centres, "literal") == pytest.approx(literal)


def test_the_margin_is_cut_off_at_the_threshold():
    assert FedTGP().find_margin(all_of(CROSS)) == 2
    assert FedTGP(threshold=1.5).find_margin(all_of(CROSS)) == 1.5


def test_a_fixed_margin_is_the_threshold_and_none_is_zero():
    assert FedTGP(margin="fixed").find_margin(all_of(CROSS)) == 100
    assert FedTGP(margin="none").find_margin(all_of(CROSS)) == 0


@pytest.mark.parametrize("gap", ["nearest", "pairs", "literal"])
def test_one_reported_class_alone_gets_the_threshold(gap: Any):
    alone = Prototypes(torch.tensor([[0.0], [7.0]]), torch.tensor([0.0, 1.0]))
    assert FedTGP(gap=gap).find_margin(alone) == 100


def test_loss_and_gradient_of_one_upload():
    """At the origin, of class 0, whose prototype is 5 away; the other is 1 away; margin 2."""
    point, label = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0])
    prototypes = torch.tensor([[3.0, 4.0], [0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    value = contrast(point, label, prototypes, 2.0)
    assert value.item() == pytest.approx(6.002475685)  # log(1 + e^6)
    (slope,) = torch.autograd.grad(value, prototypes)
    assert slope.flatten().tolist() == pytest.approx([0.598516426, 0.798021901, 0.0, -0.997527377])
    assert contrast(point, label, prototypes, 0.0).item() == pytest.approx(4.018149928)
    assert contrast(point, label, prototypes, torch.tensor([2.0, 9.0])).item() == pytest.approx(6.002475685)


def test_a_margin_for_each_class_weighs_on_samples_of_that_class_only():
    points, labels, prototypes = torch.randn(6, 3), torch.arange(6) % 3, torch.randn(3, 3)
    apart = [contrast(points[labels == c], labels[labels == c], prototypes, float(c)) for c in range(3)]
    together = contrast(points, labels, prototypes, torch.arange(3.0))
    torch.testing.assert_close(together, torch.stack(apart).mean())


finite = st.floats(-10, 10, width=32)


@settings(max_examples=50, deadline=None)
@given(st.lists(finite, min_size=3, max_size=3), st.lists(finite, min_size=6, max_size=6), st.floats(0, 50))
def test_a_larger_margin_never_costs_less_and_nothing_is_nan(x: list[float], flat: list[float], margin: float):
    prototypes = torch.tensor(flat).reshape(2, 3).requires_grad_()
    point, label = torch.tensor([x]), torch.tensor([1])
    value = contrast(point, label, prototypes, margin)
    assert contrast(point, label, prototypes, margin + 1) >= value - 1e-5
    (slope,) = torch.autograd.grad(value, prototypes)
    assert torch.linalg.vector_norm(slope, dim=1).max() <= 1 + 1e-5  # no push is stronger than 1


def test_without_margin_equal_distances_cost_log_classes():
    prototypes = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert contrast(torch.zeros(1, 2), torch.tensor([2]), prototypes, 0.0).item() == pytest.approx(math.log(4))


@pytest.mark.parametrize("classes", [2, 40])  # torch computes distances of many rows in another way
def test_all_at_one_point_gives_no_nan_and_no_slope(classes: int):
    prototypes = torch.full((classes, 3), 1e3).requires_grad_()
    value = contrast(torch.full((30, 3), 1e3), torch.arange(30) % classes, prototypes, 1.0)
    (slope,) = torch.autograd.grad(value, prototypes)
    assert value.isfinite() and slope.abs().sum() == 0


def test_trained_prototypes_end_near_the_uploads_of_their_class():
    parts = [all_of([[0.0, 0.0], [4.0, 0.0], [0.0, 3.0]]), all_of([[0.0, 1.0], [4.0, 1.0], [0.0, 4.0]])]
    server = served(FedTGP(server_lr=0.1), parts, parts)
    known, points = server.memory["prototypes"], torch.cat([part.vectors for part in parts])
    assert known.scores(points).argmax(1).tolist() == [0, 1, 2] * 2
    assert server.memory["margin"] == pytest.approx(4)  # centres (0, 0.5), (4, 0.5), (0, 3.5)
    assert server.memory["server_loss"] < 2  # the margin can hardly be had in the plane


def test_a_larger_margin_drives_trained_prototypes_farther_apart():
    parts = [all_of([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])]
    found = {m: served(FedTGP(margin=m, threshold=10.0), *[parts] * 5) for m in ("none", "adaptive", "fixed")}  # type: ignore[arg-type]
    apart = {m: widest_gap(server.memory["prototypes"], "nearest") for m, server in found.items()}
    assert apart["none"] < apart["adaptive"] < apart["fixed"]


def test_training_continues_from_round_to_round():
    parts = [all_of(SQUARE[:3])]
    once, twice = served(FedTGP(), parts), served(FedTGP(), parts, parts)
    assert twice.memory["server_loss"] < once.memory["server_loss"]


def test_training_equals_gradient_descent_written_out():
    """One upload per class and one batch of all: vectors move against the slope of the mean loss."""
    points, labels = torch.randn(3, 4, dtype=torch.float64), torch.arange(3)
    module = TrainablePrototypes(3, 4, mlp=False).double()
    vectors = module.vectors.detach().clone()
    for _ in range(5):
        away = vectors.unsqueeze(0) - points.unsqueeze(1)  # (points, classes, dim)
        lengths = away.norm(dim=2, keepdim=True)
        blame = torch.eye(3) - torch.softmax(-(lengths.squeeze(2) + 0.7 * torch.eye(3)), 1)
        vectors -= 0.1 * (blame.unsqueeze(2) * away / lengths).mean(0)
    train_prototypes(module, points, labels, 0.7, epochs=5, batch=3, lr=0.1)
    torch.testing.assert_close(module.vectors.detach(), vectors)


@pytest.mark.parametrize("margin", [0.0, 2.0, torch.tensor([0.5, 3.0, 1.0, 9.0, 0.0])])
@pytest.mark.parametrize("mlp", [True, False])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_training_is_that_of_autograd_and_a_plain_optimizer(margin: Any, mlp: bool, dtype: torch.dtype, close: float):
    """Nobody reports class 3, two uploads are equal, one batch is smaller, and every draw is the same."""
    for seed in range(3):
        torch.manual_seed(seed)
        points, labels = 2 * torch.randn(13, 6, dtype=dtype) + 1, torch.tensor([0, 1, 2, 4, 0, 1, 2, 4, 0, 1, 2, 4, 0])
        points[4] = points[0]
        ours = TrainablePrototypes(5, 6, mlp).to(dtype)
        theirs = copy.deepcopy(ours)
        optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
        torch.manual_seed(seed)
        for _ in range(4):
            total = 0.0
            for rows in torch.randperm(13).split(4):
                value = contrast(points[rows], labels[rows], theirs(), margin)
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
                total += value.item() * len(rows)
        after = torch.get_rng_state()
        torch.manual_seed(seed)
        loss = train_prototypes(ours, points, labels, margin, epochs=4, batch=4, lr=0.1)
        assert loss == pytest.approx(total / 13, rel=close)
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=close, atol=close)
        assert torch.equal(torch.get_rng_state(), after)


def slopes(points: Tensor, labels: Tensor, prototypes: Tensor, margins: Tensor) -> tuple[Tensor, Tensor]:
    """That written out, in the precision given, and autograd's in double."""
    p = prototypes.double().requires_grad_()
    (expected,) = torch.autograd.grad(contrast(points.double(), labels, p, margins.double()), p)
    value, slope = contrast_slope(points, labels, prototypes, margins)
    assert value.item() == pytest.approx(contrast(points.double(), labels, p, margins.double()).item(), rel=1e-5)
    return slope.double(), expected


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.integers(1, 7), st.floats(0, 1e3), st.integers(0, 99))
def test_the_slope_written_out_is_that_of_autograd(count: int, classes: int, shift: float, seed: int):
    """Also far from the origin, for points at prototypes, and for equal points."""
    torch.manual_seed(seed)
    prototypes, labels = torch.randn(classes, 5) + shift, torch.randint(classes, (count,))
    points = torch.cat([prototypes[labels[: count // 2]], torch.randn(count - count // 2, 5) + shift])
    points[-1] = points[0]
    torch.testing.assert_close(*slopes(points, labels, prototypes, torch.rand(classes)), rtol=1e-4, atol=1e-5)


def test_the_slope_of_close_points_keeps_its_digits():
    """From squares and products a distance of 0.01 at 1,000 would be noise; points on both sides are no help."""
    points = torch.tensor([[1000.0, 0.0], [-1000.0, 1.0], [500.0, -3.0]])
    prototypes = points + torch.tensor([[0.01, 0.0], [0.0, 0.02], [0.0, 0.0]])
    slope, expected = slopes(points, torch.tensor([0, 0, 2]), prototypes, torch.tensor([0.0, 1.0, 1e4]))
    torch.testing.assert_close(slope, expected, rtol=1e-5, atol=1e-7)


def test_training_that_diverges_is_an_error():
    module = TrainablePrototypes(3, 4)
    with pytest.raises(ProteaError, match=r"diverged: their loss is (nan|inf) \(lr 1e\+30\)"):
        train_prototypes(module, torch.randn(6, 4), torch.arange(6) % 3, 1.0, epochs=3, batch=2, lr=1e30)


def test_equal_margins_of_all_classes_are_one_margin():
    points, labels = torch.randn(8, 4), torch.arange(8) % 3
    found = []
    for margin in (2.0, torch.full((3,), 2.0)):
        torch.manual_seed(1)
        module = TrainablePrototypes(3, 4)
        train_prototypes(module, points, labels, margin, epochs=3, batch=4, lr=0.1)
        found.append(module().detach())
    torch.testing.assert_close(*found)


def test_without_mlp_the_vectors_are_the_prototypes():
    module = TrainablePrototypes(4, 3, mlp=False)
    assert torch.equal(module(), module.vectors) and len(list(module.parameters())) == 1
    assert len(list(TrainablePrototypes(4, 3).parameters())) == 5


def test_every_class_is_sent_also_one_that_no_client_has():
    part = Prototypes(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), torch.tensor([1.0, 1.0, 0.0]))
    server = served(FedTGP(), [part])
    assert server.memory["prototypes"].present.tolist() == [True] * 3


def test_nothing_reported_changes_nothing():
    server = served(FedTGP(), [Prototypes.absent(3, 2)])
    assert FedTGP().broadcast(server, 0) is None and "server_loss" not in server.memory
    assert train_prototypes(TrainablePrototypes(3, 2), torch.zeros(0, 2), torch.zeros(0).long(), 1.0, 2, 4, 0.1) == 0


@pytest.mark.parametrize("margin", ["adaptive", "fixed", "none"])
@pytest.mark.parametrize("classes", [1, 2])
def test_one_class_or_identical_uploads_give_no_nan(margin: Any, classes: int):
    same = Prototypes(torch.ones(classes, 2), torch.ones(classes))
    server = served(FedTGP(margin=margin), [same, same], [same], classes=classes)
    assert server.memory["prototypes"].vectors.isfinite().all()
    assert math.isfinite(server.memory["server_loss"])


def test_the_first_round_is_sent_nothing_or_the_untrained_prototypes():
    assert FedTGP().broadcast(served(FedTGP()), 0) is None
    server = served(FedTGP(first="untrained"))
    sent = FedTGP(first="untrained").broadcast(server, 0)
    assert sent is not None and torch.equal(sent.vectors, server.memory["trainable"]().detach())


def test_clients_tell_which_classes_they_have_but_not_how_many_samples():
    client = toy.build(0, Streams(1))  # one sample of class 2
    sent = FedTGP().local_update(client, None)
    assert sent.counts.tolist() == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("fields", [{}, {"taken": "before"}, {"distance": "euclidean", "scale": 2.0}])
def test_clients_do_as_in_fedproto(fields: Any):
    down = Prototypes(torch.randn(toy.CLASSES, toy.DIM), torch.ones(toy.CLASSES))
    ours, theirs = toy.build(2, Streams(1)), toy.build(2, Streams(1))  # no dropout
    sent, expected = FedTGP(**fields).local_update(ours, down), FedProto(**fields).local_update(theirs, down)
    assert torch.equal(sent.vectors, expected.vectors)
    x, _ = ours.train.batch(torch.arange(9))
    ours.model.eval(), theirs.model.eval()
    assert torch.equal(FedTGP(**fields).predict(ours, x, down), FedProto(**fields).predict(theirs, x, down))


def test_without_pull_it_is_local_training_to_the_bit():
    alone = models(Local())
    for fields in ({}, {"first": "untrained"}, {"distance": "euclidean"}):
        fed = models(FedTGP(pull=0.0, server_epochs=5, **fields))  # type: ignore[arg-type]
        assert all(torch.equal(fed[name], alone[name]) for name in alone), fields
    fed = models(FedTGP(server_epochs=5))
    assert any(not torch.equal(fed[name], alone[name]) for name in alone)


@pytest.mark.parametrize("seed", range(6))
def test_no_prototypes_bring_the_loss_below_its_bound(seed: int):
    """Also not those that are trained for it, with unequal classes and any margin; and the bound is no mere zero."""
    torch.manual_seed(seed)
    points = torch.randn(24, 5)
    labels = torch.cat([torch.zeros(9), torch.arange(15).remainder(4)]).long()
    margin = 0.5 * seed
    bound = contrast_bound(points, labels, margin)
    prototypes = torch.randn(4, 5, requires_grad=True)
    optimizer = torch.optim.Adam([prototypes], 0.05)
    for _ in range(400):
        loss = contrast(points, labels, prototypes, margin)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert 0 < bound <= contrast(points, labels, prototypes, margin).item()


def test_unit_features_cannot_do_better_than_guessing():
    """Uploads of length one, near each other, with the margin of their own widest gap: the bound is nearly log C."""
    torch.manual_seed(0)
    points = torch.nn.functional.normalize(torch.randn(1, 16) + 0.3 * torch.randn(20, 16), dim=1)
    labels = torch.arange(20).remainder(10)
    margin = torch.cdist(points, points).max().item()
    assert contrast_bound(points, labels, margin) == pytest.approx(math.log(10), rel=0.15)
    assert contrast_bound(100 * points, labels, margin) < 1e-6  # long features can
    assert contrast_bound(points[:1], labels[:1], margin) == 0.0  # one class is never wrong
