"""FedAvg averages models; FedProx also holds clients near the average."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from torch import nn

from protea import Client, Experiment, SplitModel, Upload, Weights
from protea.clients.worker import Worker
from protea.config.families import Models
from protea.core.errors import ConfigError, PayloadError
from protea.core.message import nbytes
from protea.core.payload import pack
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.server import Server
from protea.core.training import Training
from protea.data.partition.split import Share
from protea.methods.fedavg import FedAvg
from protea.methods.fedprox import FedProx

NUMBERS = (8 * 16 + 16) + (16 * 6 + 6)  # parameters of the toy's model
WHOLE = Training(epochs=1, batch=1000, lr=0.5)  # one step on all samples


@pytest.fixture(autouse=True)
def draws() -> Iterator[None]:
    with Streams(0).default("tests"):
        yield


def run(method: Any, clients: int = toy.CLIENTS, rounds: int = 3, **settings: Any) -> tuple[Worker, Server]:
    return toy.play(method, rounds, clients, partial(toy.build, same_architecture=True, **settings))


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(mine, b.state_dict()[name]) for name, mine in a.state_dict().items())


def plain(_: str = "") -> SplitModel:
    """Without dropout, so that clients compute what anybody can repeat."""
    return SplitModel(nn.Linear(8, toy.DIM), nn.Identity(), nn.Linear(toy.DIM, toy.CLASSES))


def normed(_: str = "") -> SplitModel:
    return SplitModel(nn.Sequential(nn.Linear(8, toy.DIM), nn.BatchNorm1d(toy.DIM)), nn.Identity(), toy.make().head)


def client_with(model: SplitModel, rows: torch.Tensor | None = None, training: Training | None = None) -> Client:
    share = None if rows is None else Share(rows, rows[:0], rows[:0])
    client = toy.build(0, Streams(1), training=training, share=share)
    client.model = model
    client.begin(1, Streams(1))
    return client


def server_with(model: SplitModel) -> Server:
    server = toy.server()
    server.memory["model"] = model
    return server


def full_of(value: float, like: Weights) -> Weights:
    return Weights({name: torch.full_like(t, value) for name, t in like.tensors.items()})


def one_step(model: SplitModel, rows: torch.Tensor) -> SplitModel:
    """Gradient descent where all samples are in one place."""
    model = deepcopy(model)
    x, y = Samples(toy.BLOBS, rows).batch(torch.arange(len(rows)))
    F.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= WHOLE.lr * p.grad
    return model


def round_of(method: FedAvg, server: Server, parts: list[torch.Tensor]) -> None:
    """Each client has a model of its own at first, which must not matter."""
    down = method.broadcast(server, 0)
    uploads = [
        Upload(i, method.local_update(client_with(plain(), rows, WHOLE), down), len(rows))
        for i, rows in enumerate(parts)
    ]
    method.aggregate(server, uploads)


def test_models_are_averaged_by_samples_or_equally():
    """0 from 10 samples, 4 from 30."""
    for average, expected in (("samples", 3.0), ("uniform", 2.0)):
        method, server = FedAvg(average=average), toy.server()
        method.start_server(server)
        like = method.broadcast(server, 0)
        method.aggregate(server, [Upload(0, full_of(0.0, like), 10), Upload(1, full_of(4.0, like), 30)])
        for tensor in method.broadcast(server, 0).tensors.values():
            assert (tensor == expected).all()


def test_clients_with_the_same_data_make_one_step_of_central_training():
    server = server_with(plain())
    expected = one_step(server.memory["model"], torch.arange(100))
    round_of(FedAvg(), server, [torch.arange(100)] * 3)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(server.memory["model"].state_dict()[name], tensor)


def test_one_step_on_each_part_is_one_step_on_the_whole_if_parts_count_by_samples():
    parts = list(torch.arange(100).split([10, 30, 60]))
    for average, equal in (("samples", True), ("uniform", False)):
        server = server_with(plain())
        expected = one_step(server.memory["model"], torch.arange(100)).head.weight
        round_of(FedAvg(average=average), server, parts)
        assert torch.allclose(server.memory["model"].head.weight, expected, atol=1e-6) == equal


def test_the_average_of_one_client_is_its_model_to_the_bit():
    worker, server = run(FedAvg(), clients=1)
    assert same(server.memory["model"], worker.clients[0].model)


def test_a_client_that_does_not_take_part_does_not_count():
    method, server = FedAvg(), toy.server()
    method.start_server(server)
    method.aggregate(server, [Upload(2, full_of(5.0, method.broadcast(server, 2)), 7)])
    assert (server.memory["model"].head.weight == 5).all()


def test_statistics_of_batchnorm_are_averaged_and_step_counters_are_the_largest():
    server, method = server_with(normed()), FedAvg()
    like = method.broadcast(server, 0)
    method.aggregate(server, [Upload(0, full_of(1.0, like), 1), Upload(1, full_of(3.0, like), 1)])
    norm = server.memory["model"].body[1]
    assert norm.running_mean.tolist() == [2.0] * toy.DIM
    assert norm.num_batches_tracked.item() == 3


def test_own_statistics_never_travel():
    server, method = server_with(normed()), FedAvg(statistics="own")
    client = client_with(normed())
    client.model.body[1].running_mean.fill_(7.0)
    down = method.broadcast(server, 0)
    assert not [name for name in down.tensors if "running" in name or "num_batches" in name]
    up = method.local_update(client, down)
    assert up.tensors.keys() == down.tensors.keys()
    before = deepcopy(server.memory["model"].body[1])
    method.aggregate(server, [Upload(0, up, 1)])
    assert torch.equal(server.memory["model"].body[1].running_mean, before.running_mean)
    assert torch.equal(server.memory["model"].body[1].weight, client.model.body[1].weight)


def test_training_begins_with_the_statistics_that_are_shared_or_with_its_own():
    """BatchNorm keeps nine tenths of a mean at each step: of 10, after one step, 9 and a tenth of the batch's."""
    for statistics, first in (("shared", 10.0), ("own", -10.0)):
        server, client = server_with(normed()), client_with(normed(), torch.arange(50), WHOLE)
        server.memory["model"].body[1].running_mean.fill_(10.0)
        client.model.body[1].running_mean.fill_(-10.0)
        method = FedAvg(statistics=statistics)
        x, _ = client.train.batch(torch.arange(50))
        expected = 0.9 * first + 0.1 * server.memory["model"].body[0](x).mean(0)
        method.local_update(client, method.broadcast(server, 0))
        torch.testing.assert_close(client.model.body[1].running_mean, expected)


def test_clients_answer_with_the_average_or_with_what_they_made_of_it():
    client, other = client_with(plain()), plain()
    x, _ = client.train.batch(torch.arange(9))
    down = Weights.of(other)
    with client.model.reuse_features():  # as evaluation does: features of its own must not be mixed in
        own = client.model(x)
        assert torch.equal(FedAvg().predict(client, x, down), other(x))
        assert torch.equal(FedAvg(answer="own").predict(client, x, down), own)
        assert torch.equal(FedAvg().predict(client, x, None), own)
    assert torch.equal(client.model(x), own)


def test_the_average_answers_with_each_client_s_own_statistics_where_these_are_not_shared():
    client, other = client_with(normed()), normed().eval()
    client.model.body[1].running_mean.fill_(1.0)
    x, _ = client.train.batch(torch.arange(9))
    other.body[1].running_mean.fill_(5.0)
    shared, own = FedAvg(), FedAvg(statistics="own")
    assert torch.equal(shared.predict(client, x, shared.weights(other)), other(x))
    with_own = own.predict(client, x, own.weights(other))
    other.body[1].running_mean.fill_(1.0)
    assert torch.equal(with_own, other(x))


def test_the_server_has_a_model_unless_it_lacks_statistics():
    for statistics, there in (("shared", True), ("own", False)):
        method, server = FedAvg(statistics=statistics), toy.server()
        method.start_server(server)
        assert (method.server_model(server) is not None) == there


def test_the_whole_model_travels_each_way():
    """246 numbers of four bytes, and for BatchNorm 32 statistics and a counter of eight bytes."""
    server = toy.server()
    FedAvg().start_server(server)
    assert NUMBERS == 246
    assert nbytes(pack(FedAvg().broadcast(server, 0))) == 4 * 246
    assert nbytes(pack(FedAvg().local_update(client_with(toy.make()), FedAvg().broadcast(server, 0)))) == 4 * 246
    server = server_with(normed())
    assert nbytes(pack(FedAvg().broadcast(server, 0))) == 4 * (246 + 32 + 32) + 8
    assert nbytes(pack(FedAvg(statistics="own").broadcast(server, 0))) == 4 * (246 + 32)


def test_uploads_that_are_not_like_the_model_are_refused():
    server = server_with(normed())
    good = Weights.of(normed()).tensors
    FedAvg().check(server, Weights(good))
    for bad in (
        {name: t for name, t in good.items() if name != "head.bias"},  # a part is missing
        {**good, "tail.weight": torch.zeros(1)},
        {**good, "head.weight": torch.zeros(toy.CLASSES, 2)},
        {**good, "head.weight": good["head.weight"].double()},
        {**good, "body.1.num_batches_tracked": torch.tensor(1.0)},
        FedAvg(statistics="own").weights(normed()).tensors,
        {},
    ):
        with pytest.raises(PayloadError, match="arrived, not"):
            FedAvg().check(server, Weights(bad))
    with pytest.raises(PayloadError, match="arrived, not nothing"):
        FedAvg(statistics="own").check(server, Weights(good))


def test_a_client_refuses_a_model_that_is_not_like_its_own():
    client = client_with(plain())
    with pytest.raises(PayloadError, match=r"'head\.bias': \(5,\)"):
        FedAvg().local_update(client, Weights.of(SplitModel(nn.Linear(8, 16), nn.Identity(), nn.Linear(16, 5))))


def test_all_clients_must_have_one_architecture():
    for method in (FedAvg(), FedProx()):
        Experiment(method=method, models=Models(family="tiny_cnn")).check()
        with pytest.raises(ConfigError, match="all the same"):
            Experiment(method=method, models=Models(family="tiny5")).check()


def test_a_part_of_weights_has_its_names_in_that_part():
    values = {"head.w": 1, "header.w": 2, "body.head.w": 3, "head.0.w": 4}
    part = Weights({name: torch.tensor(value) for name, value in values.items()}).below("head")
    assert {name: t.item() for name, t in part.tensors.items()} == {"w": 1, "0.w": 4}


def test_a_module_runs_with_other_weights_and_keeps_its_own():
    module = nn.Linear(2, 1)
    before = Weights.of(module)
    other = Weights({"weight": torch.tensor([[3.0, 4.0]]), "bias": torch.tensor([5.0])})
    assert other.run(module, torch.tensor([[1.0, 10.0]])).item() == 48
    before.check_like(Weights.of(module))
    assert all(torch.equal(t, module.state_dict()[name]) for name, t in before.tensors.items())


def test_features_and_scores_are_those_of_the_model_that_the_weights_came_from():
    """Body, adapter and head all take part."""
    mine, other = (SplitModel(nn.Linear(8, 5), nn.Linear(5, 4), nn.Linear(4, 3)) for _ in range(2))
    x, weights = torch.randn(7, 8), Weights.of(other)
    assert torch.equal(weights.features(mine, x), other.features(x))
    assert torch.equal(weights.scores(mine, x), other(x))
    assert not torch.equal(mine(x), other(x))


def test_fedprox_without_a_pull_is_fedavg_to_the_bit():
    average = run(FedAvg())[1].memory["model"]
    assert same(run(FedProx(pull=0.0))[1].memory["model"], average)
    assert not same(run(FedProx())[1].memory["model"], average)


def test_the_first_step_of_fedprox_is_that_of_fedavg_to_the_bit():
    """Nobody has moved yet, so nothing is pulled; from the second step on something is."""
    for epochs, equal in ((1, True), (2, False)):
        plan = Training(epochs=epochs, batch=1000, lr=0.5)
        found = [run(method, rounds=1, training=plan)[1].memory["model"] for method in (FedAvg(), FedProx(pull=3.0))]
        assert same(*found) == equal


def test_the_pull_of_246_weights_that_each_moved_by_one():
    """0.01 / 2 * 246 = 1.23."""
    client = client_with(plain())
    down = Weights.of(client.model)
    x, y = client.train.batch(torch.arange(9))
    moved = Weights({name: t + 1.0 for name, t in down.tensors.items()})
    moved.load_into(client.model)
    away = FedProx(pull=0.01).loss(client, down)(x, y) - FedAvg().loss(client, down)(x, y)
    assert away.item() == pytest.approx(1.23, rel=1e-5)


def test_the_slope_of_the_pull_is_pull_times_the_way_gone():
    client = client_with(plain().double())
    down = Weights.of(client.model)
    x, y = client.train.batch(torch.arange(9))
    with torch.no_grad():
        for p in client.model.parameters():
            p += torch.randn_like(p)
    parameters = list(client.model.parameters())
    slopes = [
        torch.autograd.grad(method.loss(client, down)(x.double(), y), parameters)
        for method in (FedProx(pull=0.3), FedAvg())
    ]
    for pulled, free, p, sent in zip(*slopes, parameters, down.tensors.values(), strict=True):
        torch.testing.assert_close(pulled - free, 0.3 * (p.detach() - sent))


def test_statistics_of_batchnorm_are_not_pulled():
    client = client_with(normed())
    down = Weights.of(client.model)
    x, y = client.train.batch(torch.arange(9))
    client.model.body[1].running_mean.fill_(100.0)
    assert torch.equal(FedProx(pull=1.0).loss(client, down)(x, y), FedAvg().loss(client, down)(x, y))


def test_the_stronger_the_pull_the_nearer_a_client_stays():
    server = server_with(plain())
    down = FedAvg().broadcast(server, 0)
    gone = []
    for pull in (0.0, 1.0, 10.0):
        up = FedProx(pull=pull).local_update(client_with(plain(), None, Training(epochs=5, batch=16, lr=0.05)), down)
        gone.append(sum((up.tensors[name] - t).square().sum().item() for name, t in down.tensors.items()))
    assert gone[0] > 1.5 * gone[1] > 3 * gone[2] > 0


@pytest.mark.parametrize("pull", [-1.0, float("nan")])
def test_a_pull_that_is_no_pull_is_refused(pull: float):
    with pytest.raises(ConfigError, match="pull"):
        Experiment(method=FedProx(pull=pull), models=Models(family="tiny_cnn")).check()
