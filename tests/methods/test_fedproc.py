from __future__ import annotations

from typing import Any

import pytest
import torch
import toy
from contract import Forgetful, play, workers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from protea import Client, Experiment, Needs, Prototypes, Upload, Weights
from protea.clients.worker import Worker
from protea.config.families import Models
from protea.core.errors import ConfigError, PayloadError
from protea.core.losses import contrast
from protea.core.rng import Streams
from protea.core.server import Server
from protea.methods.fedproc import CentresAndModel, FedProc, unit
from protea.methods.local import Local


def all_of(vectors: Any) -> Prototypes:
    return Prototypes(torch.as_tensor(vectors), torch.ones(len(vectors)))


def same_model(id: int, streams: Streams) -> Client:
    """The toy's client, but with the one architecture that its server makes."""
    client = toy.build(id, streams)
    with streams.default("model"):
        client.model = toy.make()
    return client


def run(method: Any, build: Any = toy.build, clients: int = toy.CLIENTS, rounds: int = 2) -> tuple[Worker, Server]:
    return toy.play(method, rounds, clients, build)


def test_contrast_of_one_sample():
    """Cosines 1, 0 and -1: log(1 + e^-1 + e^-2)."""
    centres = all_of(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64))
    z = torch.tensor([[7.0, 0.0]], dtype=torch.float64)
    assert contrast(z, torch.tensor([0]), centres).item() == pytest.approx(0.407605964)


def test_classes_without_a_centre_are_left_out():
    """Of two samples one has no centre: half the other's loss, and no gradient for it."""
    centres = Prototypes(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]), torch.tensor([1.0, 1.0, 0.0]))
    z = torch.tensor([[2.0, 1.0], [5.0, 5.0]], requires_grad=True)
    value = contrast(z, torch.tensor([0, 2]), centres)
    alone = contrast(z[:1], torch.tensor([0]), Prototypes(centres.vectors[:2], centres.counts[:2]))
    assert value.item() == pytest.approx(alone.item() / 2)
    (slope,) = torch.autograd.grad(value, z)
    assert slope[1].tolist() == [0, 0] and slope[0].isfinite().all()


def test_with_no_centre_at_all_the_contrast_is_zero_and_so_is_its_slope():
    z = torch.randn(4, 3, requires_grad=True)
    value = contrast(z, torch.tensor([0, 1, 1, 0]), Prototypes.absent(2, 3))
    (slope,) = torch.autograd.grad(value, z)
    assert value.item() == 0 and slope.abs().sum() == 0


finite = st.floats(-100, 100, width=32)


@settings(max_examples=50, deadline=None)
@given(st.lists(finite, min_size=6, max_size=6), st.lists(finite, min_size=9, max_size=9))
def test_contrast_is_bounded_whatever_the_features_are(features: list[float], flat: list[float]):
    """Cosines are at most 2 apart, so three classes cost between log(1 + 2 e^-2) and log(1 + 2 e^2)."""
    z = torch.tensor(features).reshape(2, 3).requires_grad_()
    value = contrast(z, torch.tensor([0, 2]), all_of(unit(torch.tensor(flat).reshape(3, 3))))
    assert 0.239 < value.item() < 2.760
    (slope,) = torch.autograd.grad(value, z)
    assert slope.isfinite().all() and slope.abs().max() < 2e4


def test_longer_features_have_the_same_contrast():
    z, y, centres = torch.randn(5, 3), torch.arange(5) % 3, all_of(unit(torch.randn(3, 3)))
    torch.testing.assert_close(contrast(z, y, centres), contrast(100 * z, y, centres))


def test_one_class_has_nothing_to_contrast():
    assert contrast(torch.randn(3, 2), torch.zeros(3).long(), all_of([[1.0, 0.0]])).item() == 0


def test_cross_entropy_takes_over_from_the_contrast():
    """The first round has no centres; then 1 in 100, and after 100 rounds all."""
    alpha = FedProc(horizon=100).alpha
    assert [alpha(round, 400) for round in (1, 2, 51, 101, 102, 400)] == [1.0, 0.01, 0.5, 1.0, 1.0, 1.0]


def test_the_horizon_is_the_whole_run_where_not_given():
    assert [FedProc().alpha(round, 4) for round in (1, 2, 3, 4)] == [1.0, 0.25, 0.5, 0.75]


def test_centres_are_weighted_by_samples_and_have_length_one():
    method, server = FedProc(), toy.server()
    server.memory["centres"] = Prototypes(torch.tensor([[0.0, 1.0], [0.6, 0.8]]), torch.tensor([1.0, 5.0]))
    parts = [
        Prototypes(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([3.0, 0.0])),
        Prototypes(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.tensor([4.0, 0.0])),
    ]
    method.aggregate(server, [Upload(i, CentresAndModel(part, None), 1) for i, part in enumerate(parts)])
    expected = torch.tensor([[0.6, 0.8], [0.6, 0.8]])  # (3, 4) / 7 and the centre of before
    torch.testing.assert_close(server.memory["centres"].vectors, expected)
    assert server.memory["centres"].counts.tolist() == [7, 5]


def test_opposite_uploads_leave_a_centre_without_direction_and_no_nan():
    method, server = FedProc(), Server(2, 2, Streams(0))
    method.start_server(server)
    parts = [all_of([[1.0, 0.0], [0.0, 1.0]]), all_of([[-1.0, 0.0], [0.0, 1.0]])]
    method.aggregate(server, [Upload(i, CentresAndModel(part, None), 1) for i, part in enumerate(parts)])
    assert server.memory["centres"].vectors.tolist() == [[0.0, 0.0], [0.0, 1.0]]
    assert contrast(torch.zeros(1, 2), torch.tensor([0]), server.memory["centres"]).item() == pytest.approx(0.693147)


def test_clients_send_means_of_directions():
    client = toy.build(0, Streams(1))
    client.begin(1, Streams(1))
    sent = FedProc().local_update(client, CentresAndModel(Prototypes.absent(toy.CLASSES, toy.DIM), None))
    z, y = client.features()
    expected = Prototypes.of(z / z.norm(dim=1, keepdim=True), y, toy.CLASSES)
    torch.testing.assert_close(sent.centres.vectors, expected.vectors)
    assert sent.model is None


def test_cross_entropy_alone_is_local_training_to_the_bit():
    alone = run(Local())[0]
    assert toy.same_models(run(FedProc(horizon=1))[0], alone)
    assert not toy.same_models(run(FedProc(horizon=3))[0], alone)


def test_the_contrast_turns_features_to_their_centres():
    client = toy.build(0, Streams(1))
    client.begin(2, Streams(1))
    centres = all_of(torch.eye(toy.CLASSES, toy.DIM))
    before = contrast(*client.features(), centres)
    FedProc(horizon=1000).local_update(client, CentresAndModel(centres, None))
    assert contrast(*client.features(), centres) < before - 0.1


def test_it_answers_by_what_it_is_told_to():
    client = toy.build(0, Streams(1))
    client.model.eval()
    x, _ = client.train.batch(torch.arange(9))
    down = CentresAndModel(all_of(unit(torch.randn(toy.CLASSES, toy.DIM))), None)
    none = CentresAndModel(Prototypes.absent(toy.CLASSES, toy.DIM), None)
    assert torch.equal(FedProc().predict(client, x, down), client.model(x))
    nearest = FedProc(answer="nearest")
    assert torch.equal(nearest.predict(client, x, down), down.centres.scores(client.model.features(x), "cosine"))
    assert torch.equal(nearest.predict(client, x, none), client.model(x))
    assert nearest.prototypes(none) is None


def test_a_classifier_of_directions_sees_features_at_length_one():
    """(3, 4) has the direction (0.6, 0.8): a head of ones and twos scores it 1.4, 2.8 and (3, 4) itself 7, 14."""
    client = toy.build(0, Streams(1))
    client.model.body, client.model.head = nn.Identity(), nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        client.model.head.weight.copy_(torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
    x = torch.tensor([[3.0, 4.0]])
    down = CentresAndModel(Prototypes.absent(2, 2), None)
    directions = FedProc(classifies="directions")
    torch.testing.assert_close(directions.predict(client, x, down), torch.tensor([[1.4, 2.8]]))
    torch.testing.assert_close(FedProc().predict(client, x, down), torch.tensor([[7.0, 14.0]]))


def test_a_classifier_of_directions_is_trained_on_them():
    """Features eight times as long train to the same heads, to the bit, where only directions count."""

    def build(longer: float) -> Any:
        def made(id: int, streams: Streams) -> Client:
            client = toy.build(id, streams)
            client.model.adapter = Times(longer)
            return client

        return made

    for classifies in ("directions", "features"):
        one, other = (run(FedProc(classifies=classifies), build(longer))[0] for longer in (1.0, 8.0))  # type: ignore[arg-type]
        heads = [[client.model.head.weight for client in worker.clients.values()] for worker in (one, other)]
        assert all(map(torch.equal, *heads)) == (classifies == "directions")


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.factor * z


def test_nearest_by_angle_is_nearest_by_distance_as_centres_have_length_one():
    """So the record's rule global_prototypes, which measures distances, means the same."""
    z, centres = torch.randn(50, 8), all_of(unit(torch.randn(6, 8)))
    assert torch.equal(centres.scores(z).argmax(1), centres.scores(z, "cosine").argmax(1))


def test_shared_weights_are_averaged_by_samples():
    method, server = FedProc(share_weights=True), toy.server()
    method.start_server(server)
    centres = Prototypes.absent(toy.CLASSES, toy.DIM)
    parts = [Weights({"w": torch.tensor([value])}) for value in (0.0, 4.0)]
    method.aggregate(server, [Upload(i, CentresAndModel(centres, parts[i]), n) for i, n in enumerate((10, 30))])
    assert server.memory["model"].tensors["w"].item() == 3


def test_sharing_clients_all_start_from_the_same_model_and_one_client_alone_keeps_its_own():
    """With one client and cross entropy alone, the average is the client's own model."""
    method = FedProc(share_weights=True, horizon=1)
    worker, server = run(method, same_model, clients=1)
    assert Weights.of(worker.clients[0].model).tensors.keys() == server.memory["model"].tensors.keys()
    for name, tensor in worker.clients[0].model.state_dict().items():
        assert torch.equal(tensor, server.memory["model"].tensors[name])


def test_sharing_clients_answer_with_the_averaged_model_and_keep_their_own():
    method, client, other = FedProc(share_weights=True), same_model(0, Streams(1)), same_model(1, Streams(2))
    client.model.eval(), other.model.eval()
    x, _ = client.train.batch(torch.arange(9))
    down = CentresAndModel(all_of(unit(torch.randn(toy.CLASSES, toy.DIM))), Weights.of(other.model))
    with client.model.reuse_features():  # as evaluation does: features of its own must not be mixed in
        own = client.model(x)
        assert torch.equal(method.predict(client, x, down), other.model(x))
        assert torch.equal(client.model(x), own)
    nearest = FedProc(share_weights=True, answer="nearest").predict(client, x, down)
    assert torch.equal(nearest, down.centres.scores(other.model.features(x), "cosine"))


def test_sharing_is_the_same_in_other_processes():
    """The contract tests' federation has different models, which this cannot use."""
    method = FedProc(share_weights=True, horizon=3)
    assert play(method, workers(2), build=same_model) == play(method, build=same_model)


def test_sharing_survives_a_missing_reply_and_learns():
    method = FedProc(share_weights=True, horizon=8)
    records = play(method, Forgetful, build=same_model, rounds=8, fraction=1.0, failures="skip")["records"]
    last = [line for line in records if line["kind"] == "round"][-1]
    assert last["accuracy"] > 0.6  # of six classes, by one model


def test_averaged_batch_statistics_count_in_the_answer():
    model = nn.Sequential(nn.Linear(8, toy.DIM), nn.BatchNorm1d(toy.DIM))
    client = toy.build(0, Streams(1))
    client.model.body = model
    client.model.eval()
    x, _ = client.train.batch(torch.arange(9))
    weights = Weights.of(client.model)
    shifted = Weights({n: t + 1.0 if n.endswith("running_mean") else t for n, t in weights.tensors.items()})
    centres = Prototypes.absent(toy.CLASSES, toy.DIM)
    method = FedProc(share_weights=True)
    assert torch.equal(method.predict(client, x, CentresAndModel(centres, weights)), client.model(x))
    assert not torch.equal(method.predict(client, x, CentresAndModel(centres, shifted)), client.model(x))


def test_uploads_that_are_not_as_declared_are_refused():
    centres = Prototypes.absent(toy.CLASSES, toy.DIM)
    weights = Weights({"w": torch.zeros(2)})
    for method, up, why in [
        (FedProc(), CentresAndModel(centres, weights), "alone"),
        (FedProc(share_weights=True), CentresAndModel(centres, None), "and a model"),
        (FedProc(share_weights=True), CentresAndModel(centres, weights), "nothing arrived, not"),
        (FedProc(), CentresAndModel(Prototypes.absent(2, 2), None), "classes in"),
    ]:
        server = toy.server()
        method.start_server(server)
        with pytest.raises(PayloadError, match=why):
            up.check(toy.CLASSES, toy.DIM)
            method.check(server, up)


def test_only_shared_weights_need_one_architecture():
    assert FedProc().needs == Needs()
    Experiment(method=FedProc(), models=Models(family="tiny5")).check()
    Experiment(method=FedProc(share_weights=True), models=Models(family="tiny_cnn")).check()
    with pytest.raises(ConfigError, match="all the same"):
        Experiment(method=FedProc(share_weights=True), models=Models(family="tiny5")).check()
