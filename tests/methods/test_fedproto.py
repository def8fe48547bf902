from __future__ import annotations

from typing import Any

import pytest
import torch
import toy

from protea import Prototypes, Upload, losses
from protea.core.rng import Streams
from protea.engines.inline import Inline
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.methods.fedproto import FedProto
from protea.methods.local import Local


def prototypes(vectors: list[list[float]], counts: list[float]) -> Prototypes:
    return Prototypes(torch.tensor(vectors), torch.tensor(counts))


def models(method: Any, rounds: int = 2) -> dict[str, torch.Tensor]:
    worker = toy.worker(method, toy.build, seed=7)
    list(Federation(method, Inline(worker), toy.server(), FederationPlan(clients=toy.CLIENTS, rounds=rounds)).run())
    return {f"{i}/{k}": t for i, c in worker.clients.items() for k, t in c.model.state_dict().items()}


def test_the_three_distances_of_one_sample():
    """z = (3, 4) from the origin: 25 / 2 per dimension, 25 squared, 5 by ruler."""
    z, y, origin = torch.tensor([[3.0, 4.0]]), torch.tensor([0]), prototypes([[0.0, 0.0]], [1.0])
    assert losses.pull(z, y, origin, "mse").item() == 12.5
    assert losses.pull(z, y, origin, "squared").item() == 25
    assert losses.pull(z, y, origin, "euclidean").item() == 5


def test_a_sample_of_a_missing_class_adds_nothing_but_counts():
    z = torch.tensor([[3.0, 4.0], [9.0, 9.0]], requires_grad=True)
    value = losses.pull(z, torch.tensor([0, 1]), prototypes([[0.0, 0.0], [0.0, 0.0]], [1.0, 0.0]))
    assert value.item() == 6.25
    (gradient,) = torch.autograd.grad(value, z)
    assert gradient[1].tolist() == [0, 0] and gradient[0].tolist() == [1.5, 2.0]


@pytest.mark.parametrize("metric", ["mse", "squared", "euclidean"])
def test_at_the_prototype_itself_the_pull_is_zero_and_so_is_its_gradient(metric: losses.Distance):
    z = torch.tensor([[1.0, 2.0]], requires_grad=True)
    value = losses.pull(z, torch.tensor([0]), prototypes([[1.0, 2.0]], [1.0]), metric)
    (gradient,) = torch.autograd.grad(value, z)
    assert value.item() == 0 and gradient.tolist() == [[0, 0]]


@pytest.mark.parametrize("average", ["uniform", "count", "literal"])
def test_the_server_averages_as_it_is_told(average: Any):
    server = toy.server()
    parts = [prototypes([[1.0, 0.0]], [1.0]), prototypes([[0.0, 2.0]], [3.0])]
    FedProto(average=average).aggregate(server, [Upload(i, part, 1) for i, part in enumerate(parts)])
    expected = {"uniform": [0.5, 1.0], "count": [0.25, 1.5], "literal": [0.125, 0.75]}[average]
    assert server.memory["prototypes"].vectors.tolist() == [expected]


@pytest.mark.parametrize(("missing", "left"), [("keep", [True, True]), ("drop", [True, False])])
def test_classes_that_nobody_reports_are_kept_or_dropped(missing: Any, left: list[bool]):
    server, method = toy.server(), FedProto(missing=missing)
    method.aggregate(server, [Upload(0, prototypes([[1.0], [2.0]], [1.0, 1.0]), 2)])
    method.aggregate(server, [Upload(0, prototypes([[3.0], [0.0]], [1.0, 0.0]), 1)])
    assert server.memory["prototypes"].present.tolist() == left
    assert server.memory["prototypes"].vectors[0].item() == 3


def test_without_pull_it_is_local_training_to_the_bit():
    for fields in ({}, {"distance": "euclidean"}, {"taken": "during"}, {"taken": "before"}):
        fed, alone = models(FedProto(pull=0.0, **fields)), models(Local())
        assert fed.keys() == alone.keys()
        assert all(torch.equal(fed[name], alone[name]) for name in alone), fields


def test_with_pull_it_is_not():
    fed, alone = models(FedProto()), models(Local())
    assert any(not torch.equal(fed[name], alone[name]) for name in alone)


def test_one_client_gets_its_own_prototypes_back():
    server, method = toy.server(), FedProto()
    client = toy.build(0, Streams(1))
    sent = method.local_update(client, None)
    method.aggregate(server, [Upload(0, sent, 1)])
    assert torch.equal(server.memory["prototypes"].vectors, sent.vectors)


def test_prototypes_are_taken_before_during_or_after_training():
    found = {}
    for taken in ("before", "during", "after"):
        client = toy.build(0, Streams(1))
        start = Prototypes.of(*client.features(), client.classes)
        sent = FedProto(taken=taken).local_update(client, None)  # type: ignore[arg-type]
        end = Prototypes.of(*client.features(), client.classes)
        found[taken] = torch.equal(sent.vectors, start.vectors), torch.equal(sent.vectors, end.vectors)
        assert sent.present.tolist() == start.present.tolist()
    assert found == {"before": (True, False), "during": (False, False), "after": (False, True)}


def test_it_answers_by_what_it_is_told_to():
    client = toy.build(0, Streams(1))  # has classes 0, 1 and 2
    x, _ = client.train.batch(torch.arange(30))
    client.model.eval()
    z = client.model.features(x)
    down = Prototypes(torch.randn(toy.CLASSES, toy.DIM), torch.ones(toy.CLASSES))
    assert torch.equal(FedProto().predict(client, x, down), down.scores(z))
    own = FedProto(candidates="own").predict(client, x, down)
    assert set(own.argmax(1).tolist()) <= {0, 1, 2}
    assert torch.equal(FedProto(answer="head").predict(client, x, down), client.model(x))
    assert torch.equal(FedProto().predict(client, x, None), client.model(x))
    local = FedProto(answer="local")
    sent = local.local_update(client, None)
    client.model.eval()
    assert torch.equal(local.predict(client, x, down), sent.scores(client.model.features(x)))
