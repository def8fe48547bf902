from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from torch import nn

from protea import Prototypes, Server, SplitModel, Upload, Weights
from protea.clients.worker import Worker
from protea.core.errors import PayloadError
from protea.core.payload import pack
from protea.core.rng import Streams
from protea.core.training import Training
from protea.engines.inline import Inline
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.methods.fedgh import FedGH


def small(classes: int = 2, dim: int = 2) -> Server:
    """A server whose head is all zeros."""

    def make(architecture: str) -> SplitModel:
        head = nn.Linear(dim, classes)
        nn.init.zeros_(head.weight), nn.init.zeros_(head.bias)
        return SplitModel(nn.Identity(), nn.Identity(), head)

    return Server(classes, dim, Streams(0), make=make)


def trained(method: FedGH, parts: list[Prototypes], server: Server | None = None) -> nn.Linear:
    server = server or small(*parts[0].vectors.shape)
    method.start_server(server)
    with Streams(4).default("aggregate"):
        method.aggregate(server, [Upload(i, part, 1) for i, part in enumerate(parts)])
    head: nn.Linear = server.memory["head"]
    return head


def prototypes(vectors: Any, counts: Any) -> Prototypes:
    return Prototypes(torch.tensor(vectors), torch.tensor(counts))


def test_one_step_on_one_prototype():
    """From zeros both classes have 1/2, so its own row moves by 0.01 / 2 along the prototype, the other against."""
    head = trained(FedGH(), [prototypes([[4.0, 2.0], [0.0, 0.0]], [3.0, 0.0])])
    torch.testing.assert_close(head.weight.data, torch.tensor([[0.02, 0.01], [-0.02, -0.01]]))
    torch.testing.assert_close(head.bias.data, torch.tensor([0.005, -0.005]))


def test_the_loss_is_the_mean_over_the_prototypes_of_all_clients():
    """Of three classes that none is told apart from: log 3 before the step."""
    server = small(3, 2)
    parts = [
        prototypes([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [1.0, 0.0, 0.0]),
        prototypes([[5.0, 1.0], [2.0, 2.0], [0.0, 0.0]], [9.0, 1.0, 0.0]),
    ]
    head = trained(FedGH(), parts, server)
    assert server.memory["server_loss"] == pytest.approx(1.098612)
    z, y = torch.tensor([[1.0, 0.0], [5.0, 1.0], [2.0, 2.0]]), torch.tensor([0, 0, 1])
    weight = torch.zeros(3, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(F.cross_entropy(z @ weight.T, y), weight)
    torch.testing.assert_close(head.weight.data, -0.01 * slope)


def test_how_many_samples_a_prototype_stands_for_does_not_count():
    few, many = (prototypes([[1.0, 0.0], [0.0, 3.0]], [n, 1.0]) for n in (1.0, 1000.0))
    assert torch.equal(trained(FedGH(), [few]).weight, trained(FedGH(), [many]).weight)


def test_a_head_trained_long_enough_tells_all_prototypes_apart():
    parts = [prototypes((3 * torch.eye(4) + shift).tolist(), [1.0] * 4) for shift in (0.0, 0.3, -0.3)]
    head = trained(FedGH(server_epochs=100, server_lr=0.1), parts)
    points, labels = Prototypes.points(parts)
    assert torch.equal(head(points).argmax(1), labels)


@pytest.mark.parametrize("changed", [{"server_epochs": 2}, {"server_batch": 1}, {"server_lr": 0.02}])
def test_each_setting_of_the_server_counts(changed: dict[str, Any]):
    parts = [prototypes([[1.0, 0.0], [0.0, 3.0]], [1.0, 1.0]), prototypes([[2.0, 1.0], [0.0, 0.0]], [1.0, 0.0])]
    assert not torch.equal(trained(FedGH(), parts).weight, trained(FedGH(**changed), parts).weight)


def test_twice_the_learning_rate_is_twice_the_first_step():
    parts = [prototypes([[1.0, 0.0], [0.0, 3.0]], [1.0, 1.0])]
    torch.testing.assert_close(
        2 * trained(FedGH(), parts).weight.data, trained(FedGH(server_lr=0.02), parts).weight.data
    )


def run(method: FedGH, rounds: int) -> tuple[Worker, Server]:
    return toy.play(method, rounds, toy.CLIENTS, toy.build)


def test_in_the_authors_code_the_head_stays_what_it_was_for_ever():
    server = run(FedGH(**FedGH.variants["official"]), rounds=2)[1]
    first = toy.server()
    loop = Federation(
        FedGH(), Inline(toy.worker(FedGH(), toy.build, seed=7)), first, FederationPlan(clients=toy.CLIENTS, rounds=2)
    )
    loop.start()
    assert torch.equal(server.memory["head"].weight, first.memory["head"].weight)
    assert "server_loss" not in server.memory
    assert not torch.equal(run(FedGH(), rounds=2)[1].memory["head"].weight, first.memory["head"].weight)


def test_clients_go_on_from_the_head_they_are_sent():
    client = toy.build(0, Streams(1), training=Training(epochs=0))
    client.begin(1, Streams(1))
    server = toy.server()
    FedGH().start_server(server)
    assert not torch.equal(client.model.head.weight, server.memory["head"].weight)
    FedGH().local_update(client, FedGH().broadcast(server, 0))
    assert torch.equal(client.model.head.weight, server.memory["head"].weight)
    assert client.model.head.weight is not server.memory["head"].weight


def test_clients_train_all_of_their_model_and_send_the_prototypes_of_the_trained_one():
    client = toy.build(1, Streams(1))
    client.begin(1, Streams(1))
    before, server = Weights.of(client.model), toy.server()
    FedGH().start_server(server)
    down = FedGH().broadcast(server, 1)
    sent = FedGH().local_update(client, down)
    expected = client.prototypes()
    assert torch.equal(sent.vectors, expected.vectors) and torch.equal(sent.counts, expected.counts)
    assert sent.present.tolist() == [False, True, True, True, False, False]
    changed = [name for name, t in Weights.of(client.model).tensors.items() if not torch.equal(t, before.tensors[name])]
    assert {name.split(".")[0] for name in changed} == {"body", "head"}
    assert not torch.equal(client.model.head.weight, down.tensors["weight"])


def test_a_client_answers_with_the_server_s_head_or_its_own():
    client = toy.build(0, Streams(1))
    client.model.eval()
    x, _ = client.train.batch(torch.arange(5))
    down = Weights({name: torch.zeros_like(t) for name, t in client.model.head.state_dict().items()})
    assert FedGH().predict(client, x, down).abs().sum() == 0
    assert torch.equal(FedGH(answer="own").predict(client, x, down), client.model(x))
    assert torch.equal(FedGH().predict(client, x, None), client.model(x))


def test_a_single_sample_is_enough():
    share = toy.SHARES[0]
    one = type(share)(share.train[:1], share.validation, share.test)
    client = toy.build(1, Streams(1), share=one)
    client.begin(1, Streams(1))
    server = toy.server()
    FedGH().start_server(server)
    sent = FedGH().local_update(client, FedGH().broadcast(server, 1))
    FedGH().aggregate(server, [Upload(1, sent, 1)])
    assert sent.counts.sum() == 1 and server.memory["head"].weight.isfinite().all()


def test_what_travels():
    """100 classes in 512 dimensions, of which a client has 40: 40 vectors and 100 counts up, 51,300 numbers down."""
    server = small(100, 512)
    FedGH().start_server(server)
    up = Prototypes(torch.ones(100, 512), (torch.arange(100) < 40).float())
    assert sum(t.numel() for t in pack(up).values()) == 40 * 512 + 100
    assert sum(t.numel() for t in pack(FedGH().broadcast(server, 0)).values()) == 51_300


def test_uploads_that_are_not_as_declared_are_refused():
    good = Prototypes(torch.ones(6, 16), torch.ones(6))
    good.check(toy.CLASSES, toy.DIM)
    for sent, why in [
        (Prototypes(torch.ones(6, 15), torch.ones(6)), "in 16 dimensions"),
        (Prototypes(torch.ones(5, 16), torch.ones(5)), "6 classes"),
        (Prototypes(torch.ones(6, 16).double(), torch.ones(6)), "float64"),
        (Prototypes(torch.ones(6, 16), torch.ones(6, dtype=torch.int64)), "int64"),
        (Prototypes(torch.full((6, 16), torch.nan), torch.ones(6)), "not finite"),
        (Prototypes(torch.ones(6, 16), -torch.ones(6)), "negative"),
    ]:
        with pytest.raises(PayloadError, match=why):
            sent.check(toy.CLASSES, toy.DIM)


def test_a_head_of_another_shape_is_refused_by_the_client():
    client = toy.build(0, Streams(1))
    for other in (nn.Linear(toy.DIM, 2), nn.Linear(toy.DIM, toy.CLASSES).double(), nn.Linear(toy.DIM, 6, bias=False)):
        with pytest.raises(PayloadError, match="arrived, not"):
            FedGH().local_update(client, Weights.of(other))
