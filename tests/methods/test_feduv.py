"""FedUV: FedAvg with answers that vary and features that spread."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from protea import Client, Experiment, Weights
from protea.config.families import Models
from protea.core.errors import ConfigError, PayloadError
from protea.core.rng import Streams
from protea.core.server import Server
from protea.core.training import Training
from protea.data.partition.split import Share
from protea.methods.fedavg import FedAvg
from protea.methods.feduv import FedUV, crowding, sameness

SURE = 1e4  # a score so high that its class has all the probability


@pytest.fixture(autouse=True)
def draws() -> Iterator[None]:
    with Streams(0).default("tests"):
        yield


def run(method: Any, rounds: int = 2) -> Server:
    return toy.play(method, rounds, build=partial(toy.build, same_architecture=True))[1]


def client_with(rows: Tensor | None = None, training: Training | None = None) -> Client:
    share = None if rows is None else Share(rows, rows[:0], rows[:0])
    client = toy.build(0, Streams(1), training=training, share=share, same_architecture=True)
    client.begin(1, Streams(1))
    return client


def same(a: Server, b: Server) -> bool:
    mine, other = a.memory["model"].state_dict(), b.memory["model"].state_dict()
    return all(torch.equal(mine[name], other[name]) for name in mine)


@pytest.mark.parametrize(("classes", "expected"), [(2, 0.707107), (10, 0.316228), (100, 0.1)])
def test_answers_that_are_all_the_same_cost_one_over_the_root_of_the_classes(classes: int, expected: float):
    for answer in (torch.zeros(classes), SURE * torch.eye(classes)[0]):
        assert sameness(answer.expand(7, classes)).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_one_sure_answer_for_each_class_costs_nothing(classes: int):
    assert sameness(SURE * torch.eye(classes)).item() == pytest.approx(0, abs=1e-7)


def test_sameness_of_two_samples():
    """Probabilities of a class are 1 and 1/2: their deviation is half the root of 1/2, and so is what is missing."""
    scores = torch.tensor([[SURE, 0.0], [0.0, 0.0]])
    assert sameness(scores).item() == pytest.approx(0.5 * 0.5**0.5)


def test_what_one_class_varies_too_much_does_not_make_up_for_another():
    """Two sure answers among ten classes: eight of them never vary, each lacks 0.316228."""
    assert sameness(SURE * torch.eye(10)[:2]).item() == pytest.approx(0.8 * 0.316228, abs=1e-6)


def test_crowding_of_a_triangle_with_squared_sides_1_4_5():
    """The median is 4: a third of exp(-1/4) + exp(-1) + exp(-5/4)."""
    z = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 2.0]])
    assert crowding(z).item() == pytest.approx(0.477728, abs=1e-6)


def test_equal_features_count_in_the_mean_and_not_in_the_width():
    """Squared distances 0, 4, 4: (1 + 2 / e) / 3."""
    z = torch.tensor([[1.0], [1.0], [3.0]])
    assert crowding(z).item() == pytest.approx(0.578586, abs=1e-6)


def test_of_an_even_number_of_distances_the_lower_middle_one_is_the_width():
    """Four points on a line have six squared distances: 1, 4, 9, 16, 36 and 49."""
    z = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
    squares = torch.tensor([1.0, 4.0, 9.0, 16.0, 36.0, 49.0])
    assert crowding(z).item() == pytest.approx((-squares / 9).exp().mean().item())


def test_two_features_are_as_crowded_wherever_they_are():
    """Their distance is its own median: 1 / e."""
    for apart in (0.001, 1.0, 1000.0):
        assert crowding(torch.tensor([[0.0], [apart]])).item() == pytest.approx(0.367879, abs=1e-6)


def test_larger_features_are_as_crowded_so_no_slope_makes_them_larger():
    """The width changes with the features: a width held constant would let them grow for ever."""
    z = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(crowding(z), crowding(100 * z))
    (slope,) = torch.autograd.grad(crowding(z), z)
    assert (slope * z).sum().item() == pytest.approx(0, abs=1e-12)
    assert slope.abs().max() > 1e-3


def test_slopes_are_those_of_finite_differences():
    scores = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    z = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(sameness, (scores,))
    assert torch.autograd.gradcheck(crowding, (z,))


def test_where_all_is_the_same_there_is_no_slope_and_no_nan():
    z = torch.ones(4, 3, requires_grad=True)
    assert crowding(z).item() == 1
    for value in (crowding(z), sameness(z)):
        (slope,) = torch.autograd.grad(value, z)
        assert slope.abs().sum() == 0


def test_two_equal_features_among_others_have_a_finite_slope():
    z = torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 2.0], [3.0, 0.0]], requires_grad=True)
    (slope,) = torch.autograd.grad(crowding(z), z)
    assert slope.isfinite().all() and slope.abs().sum() > 0


@pytest.mark.parametrize("gap", [80.0, 95.0, 100.0])
def test_answers_as_sure_as_floats_can_tell_have_a_finite_slope(gap: float):
    """Nearly all the probability on one class: those of the others are too small to be squared, and vary."""
    scores = torch.tensor([[0.0, 0.0, gap], [0.0, 0.0, gap + 1]], requires_grad=True)
    value = sameness(scores)
    assert value.item() == pytest.approx(0.577350, abs=1e-6)
    assert torch.autograd.grad(value, scores)[0].isfinite().all()


tenths = st.integers(-300, 300).map(lambda n: n / 10)


@settings(max_examples=50, deadline=None)
@given(st.lists(tenths, min_size=12, max_size=12))
def test_both_terms_are_bounded_whatever_the_batch_is(flat: list[float]):
    batch = torch.tensor(flat).reshape(4, 3).requires_grad_()
    same_, crowded = sameness(batch), crowding(batch)
    assert 0 <= same_.item() <= 0.577351
    assert 0 < crowded.item() <= 1
    for value in (same_, crowded):
        assert torch.autograd.grad(value, batch)[0].isfinite().all()


def test_the_loss_is_cross_entropy_and_each_term_times_its_weight():
    client = client_with()
    x, y = client.train.batch(torch.arange(20))
    z, scores = client.model.features(x), client.model(x)
    down, entropy = Weights.of(client.model), F.cross_entropy(scores, y)
    for method, expected in [
        (FedUV(), entropy + 2.5 * sameness(scores) + 0.5 * crowding(z)),
        (FedUV(variance=1.0, uniformity=0.0), entropy + sameness(scores)),
        (FedUV(variance=0.0, uniformity=3.0), entropy + 3 * crowding(z)),
    ]:
        torch.testing.assert_close(method.loss(client, down)(x, y), expected)


def test_without_its_terms_it_is_fedavg_to_the_bit():
    average = run(FedAvg())
    assert same(run(FedUV(variance=0.0, uniformity=0.0)), average)
    assert not same(run(FedUV(variance=0.0)), average)
    assert not same(run(FedUV(uniformity=0.0)), average)


def test_one_sample_neither_varies_nor_spreads():
    client = client_with()
    x, y = client.train.batch(torch.arange(1))
    down = Weights.of(client.model)
    assert torch.equal(FedUV().loss(client, down)(x, y), FedAvg().loss(client, down)(x, y))


def test_a_client_with_one_sample_trains_as_in_fedavg_to_the_bit():
    server = toy.server()
    FedUV().start_server(server)
    down = FedUV().broadcast(server, 0)
    ups = []
    for method in (FedUV(), FedAvg()):
        with Streams(1).default("dropout"):
            ups.append(method.local_update(client_with(torch.arange(1)), down))
    assert all(torch.equal(t, ups[1].tensors[name]) for name, t in ups[0].tensors.items())
    assert not torch.equal(ups[0].tensors["head.bias"], down.tensors["head.bias"])


def test_each_term_makes_its_own_thing_smaller():
    server = toy.server()
    FedUV().start_server(server)
    down = FedUV().broadcast(server, 0)

    def after(**weights: float) -> tuple[float, float]:
        client = client_with(training=Training(epochs=40, batch=1000, lr=0.002))
        client.model.body[1].p = 0.0  # no dropout: what is trained is what is measured
        FedUV(**weights).local_update(client, down)
        z, _ = client.features()
        return sameness(client.model.head(z)).item(), crowding(z).item()

    nothing = after(variance=0.0, uniformity=0.0)
    assert after(variance=50.0, uniformity=0.0)[0] < nothing[0] - 0.02
    assert after(variance=0.0, uniformity=50.0)[1] < nothing[1] - 0.01


def test_it_averages_answers_and_refuses_as_fedavg_does():
    server, method = toy.server(), FedUV()
    method.start_server(server)
    good = method.broadcast(server, 0)
    method.check(server, good)
    short = Weights({name: t for name, t in good.tensors.items() if name != "head.weight"})
    for bad in (short, Weights({**good.tensors, "head.bias": torch.zeros(3)}), Weights({})):
        with pytest.raises(PayloadError, match="arrived, not"):
            method.check(server, bad)
    assert method.server_model(server) is server.memory["model"]


def test_weights_below_zero_and_clients_with_different_models_are_refused():
    for method, family, why in [
        (FedUV(variance=-1.0), "tiny_cnn", "method.variance"),
        (FedUV(uniformity=-1.0), "tiny_cnn", "method.uniformity"),
        (FedUV(), "tiny5", "all the same"),
    ]:
        with pytest.raises(ConfigError, match=why):
            Experiment(method=method, models=Models(family=family)).check()
