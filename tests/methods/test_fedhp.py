from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from torch import Tensor

from protea import Client, Prototypes, Upload
from protea.core.errors import PayloadError
from protea.core.message import nbytes
from protea.core.payload import pack, unpack
from protea.core.rng import Streams
from protea.core.server import Server
from protea.core.training import Training
from protea.engines.inline import Inline
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.methods.fedhp import FedHP, PrototypesAndAnchors
from protea.models.nearest import Nearest

ONE_STEP = Training(epochs=1, batch=1000, lr=1e-9)


@pytest.fixture(autouse=True)
def one_seed():
    with Streams(0).default("test"):
        yield


def all_of(vectors: Tensor) -> Prototypes:
    return Prototypes(vectors, torch.ones(len(vectors)))


def unit(rows: int = toy.CLASSES, dim: int = toy.DIM) -> Tensor:
    return F.normalize(torch.randn(rows, dim), dim=1)


def started(method: FedHP, id: int = 0, **options: Any) -> Client:
    client = toy.build(id, Streams(1), **options)
    method.start_client(client)
    client.begin(1, Streams(1))
    return client


def vectors_of(client: Client) -> Tensor:
    assert isinstance(client.model.head, Nearest)
    return client.model.head.vectors.detach().clone()


# Anchors


def cosines(vectors: Tensor) -> Tensor:
    """Of all pairs of different rows."""
    vectors = F.normalize(vectors, dim=1)
    return (vectors @ vectors.T)[~torch.eye(len(vectors), dtype=torch.bool)]


@pytest.mark.parametrize(("classes", "dim"), [(2, 5), (3, 2), (6, 16)])
def test_anchors_become_a_regular_simplex(classes: int, dim: int):
    """So few points on a sphere can all have the cosine -1 / (classes - 1) with each other, and none smaller."""
    method = FedHP(anchor_lr=0.05, anchor_steps=200)  # the default's larger steps never quite come to rest
    anchors = method.spread(F.normalize(torch.rand(classes, dim), dim=1))
    torch.testing.assert_close(anchors.norm(dim=1), torch.ones(classes))
    assert cosines(anchors).max().item() == pytest.approx(-1 / (classes - 1), abs=0.08)


def test_more_steps_spread_anchors_further():
    start = F.normalize(torch.rand(6, 16), dim=1)
    largest = [cosines(FedHP(anchor_steps=steps).spread(start)).max().item() for steps in (1, 20, 200)]
    assert cosines(start).max() > largest[0] > largest[1] > largest[2]


def test_the_first_step_of_an_anchor_is_away_from_its_nearest():
    """Two at 60 degrees: each is the nearest of the other, so cosine 0.5 has the slope of both in both."""
    a, b = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.75**0.5])
    found = FedHP(anchor_steps=1, anchor_lr=0.1).spread(torch.stack([a, b]))
    expected = F.normalize(torch.stack([a - 0.1 * b, b - 0.1 * a]) - 1e-5 * torch.stack([a, b]), dim=1)
    torch.testing.assert_close(found, expected)


def test_one_class_needs_no_spreading():
    start = F.normalize(torch.rand(1, 4), dim=1)
    assert torch.equal(FedHP().spread(start), start)


def test_anchors_are_made_once_and_are_the_first_prototypes():
    method = FedHP(anchor_steps=50)
    worker, server = toy.worker(method, toy.build, seed=7), toy.server()
    loop = Federation(method, Inline(worker), server, FederationPlan(clients=toy.CLIENTS, rounds=2))
    loop.start()
    first = method.broadcast(server, 0)
    assert torch.equal(first.prototypes.vectors, first.anchors.vectors) and first.prototypes.present.all()
    list(loop.run())
    last = method.broadcast(server, 0)
    assert torch.equal(last.anchors.vectors, first.anchors.vectors)
    assert not torch.equal(last.prototypes.vectors, first.prototypes.vectors)
    assert method.prototypes(last) is last.prototypes and method.prototypes(None) is None


# The loss


def test_scores_are_distances_with_a_minus():
    """Features (0, 0), prototypes at 5 and at 1: log(1 + e^4) for the farther."""
    head = Nearest(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), "euclidean", learns=True).double()
    scores = head(torch.zeros(1, 2).double())
    assert scores.tolist() == [[-5, -1]]
    assert F.cross_entropy(scores, torch.tensor([0])).item() == pytest.approx(4.018149928)


def test_slopes_in_features_and_prototypes_are_those_of_finite_differences():
    def loss(z: Tensor, vectors: Tensor) -> Tensor:
        return F.cross_entropy(all_of(vectors).scores(z), torch.tensor([0, 2, 1, 1]))

    pair = (torch.randn(4, 3).double().requires_grad_(), torch.randn(3, 3).double().requires_grad_())
    assert torch.autograd.gradcheck(loss, pair)


def test_features_at_a_prototype_have_a_finite_slope():
    z, vectors = torch.ones(1, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True)
    value = F.cross_entropy(all_of(vectors).scores(z), torch.tensor([0]))
    assert all(slope.isfinite().all() for slope in torch.autograd.grad(value, (z, vectors)))


def test_the_loss_of_a_client_is_cross_entropy_and_the_angle_to_the_anchors():
    """Prototypes twice as long as their anchors cost nothing, opposite ones 2, at right angles 1."""
    anchors = torch.eye(toy.CLASSES, toy.DIM)
    turned = torch.stack([2 * anchors[0], -anchors[1], anchors[0], *anchors[3:]])  # 1 - cos: 0, 2, 1, 0, 0, 0
    for pull in (0.0, 0.3):
        method = FedHP(pull=pull)
        client = started(method, training=ONE_STEP)
        z, y = client.features()
        expected = F.cross_entropy(-torch.cdist(z, turned), y).item() + pull * 3 / toy.CLASSES
        method.local_update(client, PrototypesAndAnchors(all_of(turned), all_of(anchors)))
        assert client.losses == pytest.approx([expected], rel=1e-4)


def test_without_pull_it_does_not_matter_where_the_anchors_are():
    known, found = all_of(unit()), {}
    for pull in (0.0, 1.0):
        for which in ("a", "b"):
            method = FedHP(pull=pull)
            client = started(method)
            method.local_update(client, PrototypesAndAnchors(known, all_of(unit())))
            found[pull, which] = vectors_of(client)
    assert torch.equal(found[0.0, "a"], found[0.0, "b"])
    assert not torch.equal(found[1.0, "a"], found[1.0, "b"])


def test_a_strong_pull_turns_prototypes_to_their_anchors():
    anchors, known = unit(), unit()
    method = FedHP(pull=100.0)
    client = started(method)
    method.local_update(client, PrototypesAndAnchors(all_of(known), all_of(anchors)))
    before = F.cosine_similarity(known, anchors)
    assert (F.cosine_similarity(vectors_of(client), anchors) > before).all()


def test_a_client_starts_from_the_average_trains_all_prototypes_and_sends_those_of_its_classes():
    """Others are pushed away by its samples, but are not its to tell."""
    method, known = FedHP(pull=0.0), unit()
    client = started(method)
    sent = method.local_update(client, PrototypesAndAnchors(all_of(known), all_of(unit())))
    moved = (vectors_of(client) - known).norm(dim=1)
    assert (moved > 0).all()
    assert sent.present.tolist() == [True, True, True, False, False, False] == client.own_classes.tolist()
    assert torch.equal(sent.vectors[:3], vectors_of(client)[:3]) and sent.vectors[3:].abs().sum() == 0
    assert sent.counts.tolist() == client.train.counts(toy.CLASSES).tolist()


def test_a_client_with_one_sample_takes_part():
    one = toy.Share(toy.SHARES[1].train[:1], toy.SHARES[1].test[:0], toy.SHARES[1].test[:0])
    method = FedHP()
    client = started(method, 1, share=one)  # with BatchNorm
    sent = method.local_update(client, PrototypesAndAnchors(all_of(unit()), all_of(unit())))
    assert sent.vectors.isfinite().all() and sent.counts.sum() == 1


# The server


def averaged(average: Any) -> Prototypes:
    """Class 0 is a quarter of client 0's samples and all of client 1's; nobody has class 2."""
    method, server = FedHP(average=average, anchor_steps=1), Server(3, 2, Streams(0))
    method.start_server(server)
    server.memory["prototypes"] = all_of(torch.tensor([[9.0, 9.0], [9.0, 9.0], [0.6, 0.8]]))
    parts = [
        Prototypes(torch.tensor([[4.0, 0.0], [8.0, 0.0], [0.0, 0.0]]), torch.tensor([1.0, 3.0, 0.0])),
        Prototypes(torch.tensor([[0.0, 2.0], [0.0, 0.0], [0.0, 0.0]]), torch.tensor([20.0, 0.0, 0.0])),
    ]
    method.aggregate(server, [Upload(i, part, int(part.counts.sum())) for i, part in enumerate(parts)])
    found: Prototypes = server.memory["prototypes"]
    assert found.present.all()
    return found


def test_a_client_counts_by_the_share_of_a_class_in_its_samples():
    """(0.25 (4, 0) + 1 (0, 2)) / 1.25; class 1 has one client alone."""
    expected = torch.tensor([[0.8, 1.6], [8.0, 0.0], [0.6, 0.8]])
    torch.testing.assert_close(averaged("shares").vectors, expected)


def test_as_in_fluke_the_sum_is_divided_by_the_number_of_clients():
    """(0.25 (4, 0) + 1 (0, 2)) / 2, and 0.75 (8, 0) / 2: prototypes become shorter."""
    expected = torch.tensor([[0.5, 1.0], [3.0, 0.0], [0.6, 0.8]])
    torch.testing.assert_close(averaged("literal").vectors, expected)


def test_one_client_of_one_class_is_its_own_average_by_either_rule():
    for average in ("shares", "literal"):
        method, server = FedHP(average=average, anchor_steps=1), Server(1, 2, Streams(0))  # type: ignore[arg-type]
        method.start_server(server)
        method.aggregate(server, [Upload(0, Prototypes(torch.tensor([[3.0, 4.0]]), torch.tensor([7.0])), 7)])
        assert server.memory["prototypes"].vectors.tolist() == [[3, 4]]


# Answers


def test_it_answers_by_the_prototypes_it_trained_or_by_the_average():
    client, down = started(FedHP()), PrototypesAndAnchors(all_of(unit()), all_of(unit()))
    FedHP().local_update(client, down)
    client.set_evaluation()
    x, _ = client.train.batch(torch.arange(9))
    z = client.model.features(x)
    assert torch.equal(FedHP().predict(client, x, down), all_of(vectors_of(client)).scores(z))
    assert torch.equal(FedHP(answer="global").predict(client, x, down), down.prototypes.scores(z))


def test_a_client_that_has_not_taken_part_yet_answers_by_the_average():
    client, down = started(FedHP()), PrototypesAndAnchors(all_of(unit()), all_of(unit()))
    client.set_evaluation()
    x, _ = client.train.batch(torch.arange(9))
    assert torch.equal(FedHP().predict(client, x, down), down.prototypes.scores(client.model.features(x)))


@pytest.mark.parametrize("average", ["shares", "literal"])
def test_clients_learn(average: Any):
    """With fluke's optimizer; the anchors' unit length leaves plain SGD slow."""
    method = FedHP(average=average, anchor_steps=100)

    def build(id: int, streams: Streams) -> Client:
        return toy.build(id, streams, training=Training(epochs=2, batch=16, lr=0.005, optimizer="adam"))

    worker, server = toy.worker(method, build, seed=7), toy.server()
    list(Federation(method, Inline(worker), server, FederationPlan(clients=toy.CLIENTS, rounds=8)).run())
    assert toy.accuracy(method, worker, server) > 0.8


# What travels


def test_prototypes_and_anchors_come_down_and_prototypes_of_own_classes_go_up():
    """Six classes in 16 dimensions, a count per class with every set; client 0 has three classes."""
    method = FedHP(anchor_steps=1)
    server, client = toy.server(), started(method)
    method.start_server(server)
    down = method.broadcast(server, 0)
    assert nbytes(pack(down)) == 4 * 2 * (6 * 16 + 6)
    assert nbytes(pack(method.local_update(client, down))) == 4 * (3 * 16 + 6)


def test_what_is_not_as_declared_is_refused():
    good = all_of(unit())
    for wrong, why in [
        (all_of(unit(2, 2)), "classes in"),
        (Prototypes(good.vectors.double(), good.counts), "not of float32"),
        (Prototypes(good.vectors, good.counts.double()), "not of float32"),
        (Prototypes(good.vectors, good.counts / 2), "no whole number"),
        (Prototypes(good.vectors, -good.counts), "negative"),
        (Prototypes(good.vectors / 0, good.counts), "not finite"),
    ]:
        with pytest.raises(PayloadError, match=why):
            wrong.check(toy.CLASSES, toy.DIM)
        for down in (PrototypesAndAnchors(wrong, good), PrototypesAndAnchors(good, wrong)):
            with pytest.raises(PayloadError, match=why):
                down.check(toy.CLASSES, toy.DIM)
    with pytest.raises(PayloadError, match="hold vectors and counts"):
        unpack(FedHP.down, {f"prototypes.{name}": t for name, t in pack(good).items()})
    with pytest.raises(PayloadError, match="hold vectors and counts"):
        unpack(FedHP.up, {"counts": good.counts})
