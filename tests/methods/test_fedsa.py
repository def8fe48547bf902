from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import toy
from torch import Tensor

from protea import Client, Prototypes, Upload
from protea.core.payload import pack, unpack
from protea.core.rng import Streams
from protea.core.server import Server
from protea.core.trainable_prototypes import contrast
from protea.engines.inline import Inline
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.methods.fedsa import AnchorsAndMeans, FedSA, average_margin, project
from protea.methods.local import Local


def all_of(vectors: Any) -> Prototypes:
    return Prototypes(torch.as_tensor(vectors), torch.ones(len(vectors)))


def started(method: FedSA, classes: int = 3, dim: int = 2) -> Server:
    server = Server(classes, dim, Streams(5))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        method.start_server(server)
    return server


def models(method: Any, rounds: int = 2) -> dict[str, Tensor]:
    worker = toy.worker(method, toy.build, seed=7)
    list(Federation(method, Inline(worker), toy.server(), FederationPlan(clients=toy.CLIENTS, rounds=rounds)).run())
    return {f"{i}/{k}": t for i, c in worker.clients.items() for k, t in c.model.state_dict().items()}


def first_loss(method: FedSA, client: Client, down: AnchorsAndMeans) -> float:
    """The loss of the first batch of a local update."""
    seen: list[float] = []

    def fit(loss: Any) -> None:
        seen.append(loss(*client.train.batch(torch.arange(8))).item())

    client.fit = fit  # type: ignore[method-assign, assignment]
    client.model.eval()
    method.local_update(client, down)
    return seen[0]


def test_the_three_readings_of_the_margin():
    """Sides 3, 4, 5: nearest 3, 3, 4; mean 4; as printed 24 / (3 - 1)^2."""
    triangle = all_of([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    assert average_margin(triangle, "nearest") == pytest.approx(10 / 3)
    assert average_margin(triangle, "mean") == pytest.approx(4)
    assert average_margin(triangle, "literal") == pytest.approx(6)


def test_of_two_classes_the_printed_margin_is_twice_their_distance():
    pair = Prototypes(torch.tensor([[0.0], [9.0], [5.0]]), torch.tensor([1.0, 0.0, 1.0]))  # class 1 is absent
    assert [average_margin(pair, m) for m in ("nearest", "mean", "literal")] == [5, 5, 10]  # type: ignore[arg-type]


@pytest.mark.parametrize("margin", ["nearest", "mean", "literal"])
def test_one_class_has_no_margin_and_equal_prototypes_have_none(margin: Any):
    assert average_margin(all_of([[1.0, 2.0]]), margin) == 0
    assert average_margin(Prototypes.absent(3, 2), margin) == 0
    assert average_margin(all_of([[1.0, 2.0]] * 3), margin) == 0


def test_contrast_with_anchors_of_one_sample():
    """Distances 5, 1, 10; the own one and margin 1.5 make 2.5: log(1 + e^-2.5 + e^-7.5)."""
    anchors = torch.tensor([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0]], dtype=torch.float64)
    value = contrast(torch.zeros(1, 2, dtype=torch.float64), torch.tensor([1]), anchors, 1.5)
    assert value.item() == pytest.approx(0.079400732)


def test_anchors_follow_slowly_and_only_where_a_class_was_reported():
    method = FedSA(decay=0.75)
    server = started(method)
    server.memory["anchors"] = all_of([[4.0, 0.0], [0.0, 8.0], [1.0, 1.0]])
    part = Prototypes(torch.tensor([[0.0, 4.0], [0.0, 0.0], [0.0, 0.0]]), torch.tensor([2.0, 4.0, 0.0]))
    method.aggregate(server, [Upload(0, part, 6)])
    assert server.memory["anchors"].vectors.tolist() == [[3.0, 1.0], [0.0, 6.0], [1.0, 1.0]]


def test_after_a_thousand_rounds_nine_tenths_of_the_first_anchor_are_left():
    method = FedSA()
    server = started(method, classes=1, dim=1)
    server.memory["anchors"] = all_of(torch.ones(1, 1, dtype=torch.float64))
    nothing = Prototypes(torch.zeros(1, 1, dtype=torch.float64), torch.ones(1))
    for _ in range(1000):
        method.aggregate(server, [Upload(0, nothing, 1)])
    assert server.memory["anchors"].vectors.item() == pytest.approx(0.904833, abs=1e-6)


@pytest.mark.parametrize(("missing", "left"), [("keep", [True, True]), ("drop", [True, False])])
def test_means_of_classes_that_nobody_reports_are_kept_or_dropped(missing: Any, left: list[bool]):
    method = FedSA(missing=missing)
    server = started(method, classes=2, dim=1)
    method.aggregate(server, [Upload(0, all_of([[1.0], [2.0]]), 2)])
    method.aggregate(server, [Upload(0, Prototypes(torch.tensor([[3.0], [0.0]]), torch.tensor([1.0, 0.0])), 1)])
    assert server.memory["means"].present.tolist() == left
    assert server.memory["means"].vectors[0].item() == 3


def test_projected_anchors_are_not_negative_and_those_without_projection_are():
    assert (started(FedSA(), 20, 16).memory["anchors"].vectors >= 0).all()
    assert (started(FedSA(embedding=False), 20, 16).memory["anchors"].vectors < 0).any()


def test_the_projection_is_batch_normalised_over_classes():
    """As BatchNorm1d in training mode would, layer by layer."""
    raw = torch.randn(6, 4)
    torch.manual_seed(3)
    ours = project(raw)
    torch.manual_seed(3)
    layers = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
    for layer in layers:
        raw = torch.nn.BatchNorm1d(4)(layer(raw)).relu()
    torch.testing.assert_close(ours, raw.detach())


def test_anchors_are_there_from_the_start_and_means_are_not():
    method = FedSA()
    down = method.broadcast(started(method), 0)
    assert down.means is None and down.anchors.present.all()
    assert method.prototypes(down) is None
    again = unpack(AnchorsAndMeans, pack(down))
    assert again is not None and again.means is None and torch.equal(again.anchors.vectors, down.anchors.vectors)


def test_with_one_class_there_is_one_anchor_and_no_nan():
    server = started(FedSA(), classes=1)
    FedSA().aggregate(server, [Upload(0, all_of([[1.0, 2.0]]), 1)] * 2)
    assert server.memory["anchors"].vectors.isfinite().all()


def test_the_margin_is_the_larger_of_anchors_and_own_prototypes_of_last_time():
    """Only the contrastive term depends on it: a larger margin costs more."""
    anchors = 0.01 * torch.eye(toy.CLASSES, toy.DIM)
    down, method = AnchorsAndMeans(all_of(anchors), None), FedSA()

    def loss(remembered: float | None) -> float:
        client = toy.build(0, Streams(1))
        if remembered is not None:
            client.memory["margin"] = remembered
        return first_loss(method, client, down)

    assert loss(None) == loss(0.0) == loss(0.014)  # the anchors' own margin is 0.01 * sqrt(2)
    assert loss(3.0) > loss(1.0) > loss(0.0)


def test_a_client_remembers_how_far_apart_its_prototypes_were():
    client, method = toy.build(0, Streams(1)), FedSA()
    sent = method.local_update(client, AnchorsAndMeans(all_of(torch.eye(toy.CLASSES, toy.DIM)), None))
    assert client.memory["margin"] == average_margin(sent, "nearest") > 0


def test_every_term_adds_its_weight_times_itself():
    down = AnchorsAndMeans(all_of(torch.randn(toy.CLASSES, toy.DIM)), None)

    def loss(pull: float, contrast: float, calibration: float) -> float:
        method = FedSA(pull=pull, contrast=contrast, calibration=calibration)
        return first_loss(method, toy.build(0, Streams(1)), down)

    plain = loss(0, 0, 0)
    terms = [loss(1, 0, 0) - plain, loss(0, 1, 0) - plain, loss(0, 0, 1) - plain]
    assert min(terms) > 0
    expected = 2 * terms[0] + 3 * terms[1] + 4 * terms[2]
    assert loss(2, 3, 4) - plain == pytest.approx(expected, rel=1e-3)


def test_a_head_that_cannot_tell_anchors_apart_has_a_calibration_loss_of_log_classes():
    down = AnchorsAndMeans(all_of(torch.randn(toy.CLASSES, toy.DIM)), None)
    found = []
    for calibration in (0.0, 1.0):
        client = toy.build(0, Streams(1))
        torch.nn.init.zeros_(client.model.head.weight), torch.nn.init.zeros_(client.model.head.bias)
        found.append(first_loss(FedSA(pull=0.0, contrast=0.0, calibration=calibration), client, down))
    assert found[1] - found[0] == pytest.approx(math.log(toy.CLASSES), rel=1e-5)


def test_calibration_trains_the_head_toward_the_anchors():
    anchors = all_of(3 * torch.eye(toy.CLASSES, toy.DIM))
    right = {}
    for calibration in (0.0, 10.0):
        client = toy.build(0, Streams(1))  # has three of the six classes
        FedSA(pull=0.0, contrast=0.0, calibration=calibration).local_update(client, AnchorsAndMeans(anchors, None))
        right[calibration] = int((client.model.head(anchors.vectors).argmax(1) == torch.arange(toy.CLASSES)).sum())
    assert right[10.0] == toy.CLASSES > right[0.0]


def test_features_at_their_anchor_give_no_nan():
    client = toy.build(0, Streams(1))
    for parameter in client.model.body.parameters():
        torch.nn.init.zeros_(parameter)
    down = AnchorsAndMeans(all_of(torch.zeros(toy.CLASSES, toy.DIM)), None)
    sent = FedSA(distance="euclidean").local_update(client, down)
    assert sent.vectors.isfinite().all()
    assert all(p.isfinite().all() for p in client.model.parameters())


def test_it_answers_by_what_it_is_told_to():
    client = toy.build(0, Streams(1))
    client.model.eval()
    x, _ = client.train.batch(torch.arange(9))
    z = client.model.features(x)
    anchors, means = all_of(torch.randn(toy.CLASSES, toy.DIM)), all_of(torch.randn(toy.CLASSES, toy.DIM))
    both, early = AnchorsAndMeans(anchors, means), AnchorsAndMeans(anchors, None)
    assert torch.equal(FedSA().predict(client, x, both), means.scores(z))
    assert torch.equal(FedSA(answer="anchors").predict(client, x, early), anchors.scores(z))
    assert torch.equal(FedSA(answer="head").predict(client, x, both), client.model(x))
    assert torch.equal(FedSA().predict(client, x, early), client.model(x))
    assert FedSA().prototypes(both) is means and FedSA(answer="anchors").prototypes(both) is anchors


def test_with_all_terms_off_it_is_local_training_to_the_bit():
    alone = models(Local())
    for fields in ({}, {"taken": "during"}, {"embedding": False, "decay": 0.5}):
        fed = models(FedSA(pull=0.0, contrast=0.0, calibration=0.0, **fields))  # type: ignore[arg-type]
        assert all(torch.equal(fed[name], alone[name]) for name in alone), fields
    for term in ({"pull": 1.0}, {"contrast": 1.0}, {"calibration": 1.0}):
        fed = models(FedSA(**{"pull": 0.0, "contrast": 0.0, "calibration": 0.0, **term}))  # type: ignore[arg-type]
        assert any(not torch.equal(fed[name], alone[name]) for name in alone), term
