"""Local and what makes it stronger, with numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from torch import Tensor, nn

from protea import Client, SplitModel
from protea.clients.worker import Worker
from protea.config.experiment import experiment_from_table, method_label
from protea.core.errors import ClientError, ConfigError
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.training import Training
from protea.data.dataset import Dataset
from protea.evaluation.client_side import examine
from protea.methods.local import Local
from protea.models.nearest import Nearest


def one_sample(head: nn.Module, x: Sequence[float] = (3.0, 4.0), label: int = 0, **training: Any) -> Client:
    """A client whose features are its one sample, of the first of two classes."""
    data = Dataset(torch.tensor([list(x)]), torch.tensor([label]), ("cat", "dog"))
    model = SplitModel(nn.Identity(), nn.Identity(), head)
    plan = Training(**{"lr": 1.0, "batch": 1, **training})
    return Client(0, model, Samples(data), 2, 2, Streams(0), training=plan, test=Samples(data))


def linear(rows: list[list[float]], bias: bool = False) -> nn.Linear:
    layer = nn.Linear(2, 2, bias=bias)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows))
        if bias:
            layer.bias.fill_(5.0)
    return layer


def played(method: Local, training: Training) -> Worker:
    return toy.play(method, rounds=2, build=lambda id, streams: toy.build(id, streams, training=training))[0]


ZERO = [[0.0, 0.0], [0.0, 0.0]]
PLAIN = Training(epochs=2, batch=16, lr=0.05)


def test_by_default_it_is_cross_entropy_as_the_settings_say_to_the_bit():
    clients = toy.play(Local(), rounds=2)[0]

    def alone(id: int) -> dict[str, Tensor]:
        """The same, written without the method."""
        streams = toy.plan(Local()).streams(id)
        client = toy.build(id, streams)
        for number in (1, 2):
            client.begin(number, streams.at("round", number))
            with client.rng.default("train"):
                client.fit(lambda x, y: F.cross_entropy(client.model(x), y))
        return client.model.state_dict()

    assert all(toy.same(alone(id), client.model.state_dict()) for id, client in clients.clients.items())
    assert isinstance(clients.clients[0].model.head, nn.Linear)


# Momentum


def test_two_steps_with_momentum():
    """At a head of zeros both classes are equally likely, so the gradient of the first row is -1/2 of the sample.

    The sample is (1, 0): after a step of 1 the scores are (1/2, -1/2) and the first class has p = e / (e + 1).  The
    second step is that gradient, 1 - p = 1 / (e + 1), and half of the step before.
    """
    client = one_sample(linear(ZERO), x=(1.0, 0.0), epochs=2)
    Local(momentum=0.5).local_update(client, None)
    assert isinstance(client.model.head, nn.Linear)
    first = 0.5 + (1 / (math.e + 1) + 0.5 * 0.5)
    torch.testing.assert_close(client.model.head.weight.detach(), torch.tensor([[first, 0.0], [-first, 0.0]]))


def test_momentum_is_that_of_the_settings_unless_the_method_has_its_own():
    with_momentum = replace(PLAIN, momentum=0.9)
    assert toy.same_models(played(Local(momentum=0.9), PLAIN), played(Local(), with_momentum))
    assert toy.same_models(played(Local(momentum=0.0), with_momentum), played(Local(), PLAIN))
    assert not toy.same_models(played(Local(), with_momentum), played(Local(), PLAIN))


def test_its_own_momentum_leaves_the_settings_of_the_client_alone():
    client = one_sample(linear(ZERO), momentum=0.25)
    Local(momentum=0.9).local_update(client, None)
    assert client.training.momentum == 0.25


# The cosine head


def test_scores_of_the_cosine_head():
    """(3, 4) has the cosine 3/5 with (2, 0) and 4/5 with (0, 7); lengths and the bias of 5 do not count."""
    client, method = one_sample(linear([[2.0, 0.0], [0.0, 7.0]], bias=True)), Local(head="cosine")
    method.start_client(client)
    x = torch.tensor([[3.0, 4.0], [30.0, 40.0]])
    torch.testing.assert_close(method.predict(client, x, None), torch.tensor([[6.0, 8.0], [6.0, 8.0]]))
    assert torch.equal(client.model(x), method.predict(client, x, None))


def test_a_step_turns_the_rows_of_the_cosine_head_and_moves_no_row_along_itself():
    """The rows (1, 0) and (0, 1) at the sample (3, 4) / 5 have cosines 0.6 and 0.8, so scores 0.6 and 0.8 at scale 1.

    The slope of a cosine by its unit row is the part of the sample that is across the row: (0, 0.8) and (0.6, 0).  The
    loss has the slopes -q and q by the two scores, where q = 1 / (1 + e^-0.2) is the chance of the wrong class.
    """
    client, method = one_sample(linear([[1.0, 0.0], [0.0, 1.0]])), Local(head="cosine", scale=1.0)
    method.start_client(client)
    method.local_update(client, None)
    wrong = 1 / (1 + math.exp(-0.2))
    assert isinstance(client.model.head, Nearest)
    expected = torch.tensor([[1.0, 0.8 * wrong], [-0.6 * wrong, 1.0]])
    torch.testing.assert_close(client.model.head.vectors.detach(), expected)
    assert client.model.head.scale.item() == 1.0  # it does not train


def test_by_head_is_its_own_rule_with_the_cosine_head_too():
    client, method = toy.build(0, Streams(1)), Local(head="cosine")
    method.start_client(client)
    method.local_update(client, None)
    found = examine(method, client, None).of("test")
    assert torch.equal(found["head"].hits, found["method"].hits)


def test_only_the_last_layer_of_a_deep_head_becomes_cosines():
    client = one_sample(nn.Sequential(linear([[1.0, 0.0], [0.0, 1.0]]), nn.ReLU(), linear([[2.0, 0.0], [0.0, 7.0]])))
    Local(head="cosine").start_client(client)
    head = client.model.head
    assert isinstance(head, nn.Sequential)
    assert [type(layer).__name__ for layer in head] == ["Linear", "ReLU", "Nearest"]
    torch.testing.assert_close(client.model(torch.tensor([[3.0, 4.0]])), torch.tensor([[6.0, 8.0]]))


def test_a_head_without_a_last_linear_layer_is_refused_by_name():
    client = one_sample(nn.Identity())
    with pytest.raises(ClientError, match=r"client 0: .* the head of own model ends in a Identity"):
        Local(head="cosine").start_client(client)


# Label smoothing


def test_a_step_with_smoothed_labels():
    """Of two classes, labels smoothed by 0.2 are 0.9 and 0.1: at a head of zeros the step is 0.9 - 0.5 = 0.4."""
    client = one_sample(linear(ZERO))
    Local(smoothing=0.2).local_update(client, None)
    assert isinstance(client.model.head, nn.Linear)
    torch.testing.assert_close(client.model.head.weight.detach(), 0.4 * torch.tensor([[3.0, 4.0], [-3.0, -4.0]]))
    assert client.losses == [pytest.approx(math.log(2))]


def test_smoothed_labels_are_reached_and_not_passed():
    """The loss is least where the first class has 0.9: at scores that differ by log 9."""
    client = one_sample(linear(ZERO), x=(1.0, 0.0), epochs=200)
    Local(smoothing=0.2).local_update(client, None)
    apart = client.model(torch.tensor([[1.0, 0.0]])) @ torch.tensor([1.0, -1.0])
    assert apart.item() == pytest.approx(math.log(9), abs=1e-4)


# Settings


def test_variants_have_names():
    for name, method in {
        "local": Local(),
        "local@momentum": Local(momentum=0.9),
        "local@cosine": Local(head="cosine"),
        "local@smoothing": Local(smoothing=0.1),
    }.items():
        assert experiment_from_table({"method": name}).method == method
        assert method_label(method) == name
    assert method_label(Local(momentum=0.9, smoothing=0.1)) == "local"


@pytest.mark.parametrize("wrong", [{"momentum": 1.0}, {"head": "round"}, {"scale": 0.0}, {"smoothing": 1.0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, object]):
    with pytest.raises(ConfigError, match=f"method.{next(iter(wrong))}"):
        experiment_from_table({"method": {"name": "local", **wrong}})
