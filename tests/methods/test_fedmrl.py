"""FedMRL: features of two models, fused by a projector of the client's own, nested in each other."""

from __future__ import annotations

from math import exp, log
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from torch import Tensor, nn

from protea import Client, SplitModel, Upload, Weights
from protea.core.errors import PayloadError
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.server import Server
from protea.core.training import Training
from protea.data.dataset import Dataset
from protea.methods.fedmrl import FedMRL, narrowed
from protea.models.adapters import Pool


def weighed(rows: list[list[float]]) -> nn.Linear:
    """A linear layer of these weights, and no bias to speak of."""
    layer = nn.Linear(len(rows[0]), len(rows))
    layer.weight.data, layer.bias.data = torch.tensor(rows), torch.zeros(len(rows))
    return layer


def by_hand(method: FedMRL, x: tuple[float, ...] = (1.0, 2.0)) -> tuple[Client, Weights]:
    """A client with one sample of class 0, whose two features are its inputs; d1 is 1 of 2.

    The small model's feature is the sum of the inputs, 3.  The projector gives that and the second own feature on:
    (3, 2).  The own head answers with these, the small head with (3, 0).
    """
    client = Client(
        id=0,
        model=SplitModel(nn.Identity(), nn.Identity(), weighed([[1.0, 0.0], [0.0, 1.0]])),
        train=Samples(Dataset(torch.tensor([x]), torch.tensor([0]), ("a", "b"))),
        classes=2,
        dim=2,
        rng=Streams(1),
        training=Training(lr=0.1),
        make=lambda _: SplitModel(nn.Identity(), nn.Linear(2, 2), nn.Linear(2, 2)),
    )
    method.start_client(client)
    small = SplitModel(nn.Identity(), weighed([[1.0, 1.0]]), weighed([[1.0], [0.0]]))
    client.memory["projector"] = weighed([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    Weights.of(small).load_into(client.memory["small"])
    client.begin(1, Streams(1))
    return client, Weights.of(small)


@pytest.mark.parametrize(("inner", "outer"), [(1.0, 1.0), (2.0, 0.5), (0.0, 1.0)])
def test_the_loss_is_that_of_both_heads_on_nested_features(inner: float, outer: float) -> None:
    """Scores (3, 2) cost log(1 + 1/e), scores (3, 0) log(1 + 1/e^3)."""
    client, down = by_hand(FedMRL(inner=0.5, inner_weight=inner, outer_weight=outer))
    FedMRL(inner=0.5, inner_weight=inner, outer_weight=outer).local_update(client, down)
    assert client.losses == [pytest.approx(outer * log(1 + exp(-1)) + inner * log(1 + exp(-3)))]


def test_it_answers_by_the_own_head_of_the_fused_features() -> None:
    client, down = by_hand(FedMRL(inner=0.5))
    x, _ = client.train.batch(torch.arange(1))
    assert FedMRL(inner=0.5).predict(client, x, down).tolist() == [[3.0, 2.0]]


def test_it_answers_with_the_small_model_it_trained_or_with_the_average() -> None:
    """The average here gives twice the sum, 6, in the place of 3."""
    client, own = by_hand(FedMRL(inner=0.5))
    x, _ = client.train.batch(torch.arange(1))
    average = Weights({name: 2 * tensor for name, tensor in own.tensors.items()})
    assert FedMRL(inner=0.5, answer="own").predict(client, x, average).tolist() == [[3.0, 2.0]]
    assert FedMRL(inner=0.5, answer="average").predict(client, x, average).tolist() == [[6.0, 2.0]]
    assert FedMRL(inner=0.5, answer="average").predict(client, x, None).tolist() == [[3.0, 2.0]]
    assert torch.equal(client.memory["small"].adapter.weight, own.tensors["adapter.weight"])  # as it was


def test_one_step_trains_both_models_and_the_projector_by_the_sum_of_both_losses() -> None:
    method = FedMRL(inner=0.5)
    client = toy.build(2, Streams(1), training=Training(batch=1000, lr=0.1))
    client.make = lambda _: SplitModel(nn.Linear(8, toy.DIM), nn.Identity(), nn.Linear(toy.DIM, toy.CLASSES))
    method.start_client(client)
    client.begin(1, Streams(1))
    own, small, projector = client.model, client.memory["small"], client.memory["projector"]
    x, y = client.train.batch(torch.arange(len(client.train)))
    fused = torch.cat([small.adapter(small.body(x)), own.adapter(own.body(x))], 1) @ projector.weight.T + projector.bias
    loss = F.cross_entropy(own.head(fused), y) + F.cross_entropy(small.head(fused[:, : toy.DIM // 2]), y)
    parameters = [p for module in (own, small, projector) for p in module.parameters()]
    expected = [p - 0.1 * g for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True)]

    up = method.local_update(client, Weights.of(small))
    for found, wanted in zip(parameters, expected, strict=True):
        torch.testing.assert_close(found, wanted)
    assert toy.same(dict(up.tensors), small.state_dict())  # of all that was trained, the small model travels


def projectors(method: FedMRL) -> tuple[Tensor, list[Tensor]]:
    """A client's first projector, and those with which it begins the second and the third round."""
    client = toy.build(2, Streams(1))
    server = toy.started(method)
    with client.rng.default("start"):
        method.start_client(client)
    first = client.memory["projector"].weight.detach().clone()
    begun: list[Tensor] = []
    fit = client.fit

    def noting(*arguments: Any, **options: Any) -> float:
        begun.append(client.memory["projector"].weight.detach().clone())
        return fit(*arguments, **options)

    client.fit = noting
    for round in (1, 2, 3):
        client.begin(round, Streams(1).at("round", round))
        method.local_update(client, method.broadcast(server, 2))
    assert torch.equal(begun[0], first)
    return first, begun[1:]


def test_the_trained_projector_is_kept_from_round_to_round() -> None:
    first, (second, third) = projectors(FedMRL())
    assert not torch.equal(first, second) and not torch.equal(second, third)


def test_htfllib_begins_every_round_with_the_first_projector() -> None:
    first, later = projectors(FedMRL(**FedMRL.variants["htfllib"]))
    assert all(torch.equal(first, each) for each in later)


def test_a_kept_projector_is_the_client_s_own_and_never_travels() -> None:
    worker, server = toy.play(FedMRL(), rounds=2)
    kept = [client.memory["projector"].weight for client in worker.clients.values()]
    assert len(kept) == toy.CLIENTS and all(not torch.equal(kept[0], other) for other in kept[1:])
    assert all(not name.startswith("projector") for name in server.memory["small"].tensors)


@pytest.mark.parametrize(
    ("adapter", "expected"), [(nn.Linear(5, 8), nn.Linear), (Pool(8), Pool), (nn.Identity(), nn.Sequential)]
)
def test_a_small_model_has_as_few_features_as_its_head_sees(adapter: nn.Module, expected: type) -> None:
    width = 5 if isinstance(adapter, nn.Linear) else 8
    model = narrowed(SplitModel(nn.Identity(), adapter, nn.Linear(8, 3)), dim=8, inner=2, classes=3)
    assert type(model.adapter) is expected
    assert model.features(torch.zeros(4, width)).shape == (4, 2) and model(torch.zeros(4, width)).shape == (4, 3)


def test_the_inner_features_are_a_share_of_all_one_at_least() -> None:
    assert [FedMRL(inner=share).inner_dim(10) for share in (0.25, 0.5, 1.0, 0.01)] == [2, 5, 10, 1]
    model = toy.make()
    assert narrowed(model, toy.DIM, FedMRL(inner=1.0).inner_dim(toy.DIM), toy.CLASSES).head is model.head


@pytest.mark.parametrize(("average", "expected"), [("samples", 3.0), ("uniform", 2.0)])
def test_small_models_are_averaged_by_samples_or_equally(average: Any, expected: float) -> None:
    parts = [Weights({"head.bias": torch.tensor([value])}) for value in (0.0, 4.0)]
    server = toy.server()
    FedMRL(average=average).aggregate(server, [Upload(0, parts[0], 10), Upload(1, parts[1], 30)])
    assert server.memory["small"].tensors["head.bias"].item() == expected


def test_a_small_model_of_another_width_is_refused() -> None:
    server: Server = toy.started(FedMRL())
    FedMRL().check(server, server.memory["small"])
    other = toy.started(FedMRL(inner=0.5)).memory["small"]
    with pytest.raises(PayloadError, match="arrived, not"):
        FedMRL().check(server, other)
