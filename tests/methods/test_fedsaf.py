from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
import toy
from torch import Tensor

from protea import Prototypes, Upload
from protea.core.rng import Streams
from protea.core.server import Server
from protea.engines.inline import Inline
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.methods.fedsaf import FedSAF, Structure, mismatch
from protea.methods.local import Local

EVERY = get_args(Structure)
TRIANGLE = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])  # sides 3, 4 and 5
EQUAL_SIDES = torch.eye(3)  # in another number of dimensions, which structure does not mind


def all_of(vectors: Any) -> Prototypes:
    return Prototypes(torch.as_tensor(vectors), torch.ones(len(vectors)))


def models(method: Any, rounds: int = 2) -> dict[str, Tensor]:
    worker = toy.worker(method, toy.build, seed=7)
    list(Federation(method, Inline(worker), toy.server(), FederationPlan(clients=toy.CLIENTS, rounds=rounds)).run())
    return {f"{i}/{k}": t for i, c in worker.clients.items() for k, t in c.model.state_dict().items()}


def test_cosines_are_compared_pair_by_pair():
    """Own cosines 0, 0.6 and 0.8, wanted 0: (0 + 0.36 + 0.64) / 3."""
    own = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 4.0]])
    assert mismatch(own, EQUAL_SIDES, "cosine").item() == pytest.approx(1 / 3)


def test_distances_are_compared_in_units_of_their_mean():
    """3, 4 and 5 over 4 against 1, 1 and 1: (1/16 + 0 + 1/16) / 3."""
    assert mismatch(TRIANGLE, EQUAL_SIDES, "distance").item() == pytest.approx(1 / 24)


def test_cka_of_a_line_and_a_triangle_of_equal_sides():
    """The products of -1, 0 and 1 have squares that sum to 4, those of the triangle, I - 1/3, to 2; both together 2."""
    line = torch.tensor([[-1.0], [0.0], [1.0]])
    assert mismatch(line, EQUAL_SIDES, "cka").item() == pytest.approx(1 - 2 / math.sqrt(4 * 2))


@pytest.mark.parametrize("structure", EVERY)
def test_only_structure_counts(structure: Structure):
    """Rotated and doubled points are the same; moved ones too, but for their cosines; mirrored classes are not."""
    torch.manual_seed(0)
    points = torch.randn(5, 7)
    rotation, _ = torch.linalg.qr(torch.randn(7, 7))
    assert mismatch(2 * points @ rotation, points, structure).item() == pytest.approx(0, abs=1e-6)
    moved = mismatch(points + 3, points, structure).item()
    assert moved > 0.1 if structure == "cosine" else moved == pytest.approx(0, abs=1e-5)
    assert mismatch(points[[1, 2, 3, 4, 0]], points, structure).item() > 0.01


@pytest.mark.parametrize("structure", EVERY)
def test_one_point_has_no_structure_and_two_have_only_an_angle(structure: Structure):
    assert mismatch(TRIANGLE[:0], EQUAL_SIDES[:0], structure).item() == 0
    assert mismatch(TRIANGLE[:1], EQUAL_SIDES[:1], structure).item() == 0
    found = mismatch(torch.tensor([[1.0, 0.0], [3.0, 4.0]]), torch.eye(2), structure).item()
    assert found == pytest.approx(0.36 if structure == "cosine" else 0.0, abs=1e-6)


@pytest.mark.parametrize("structure", EVERY)
@pytest.mark.parametrize("same", ["own", "wanted"])
def test_points_that_fall_together_break_nothing(structure: Structure, same: str):
    own = torch.zeros(3, 3) if same == "own" else TRIANGLE.clone()
    own.requires_grad_()
    value = mismatch(own, EQUAL_SIDES if same == "own" else torch.zeros(3, 3), structure)
    value.backward()  # type: ignore[no-untyped-call]
    assert value.isfinite() and own.grad is not None and own.grad.isfinite().all()


def test_the_means_of_a_batch_stand_for_its_classes():
    """Class 0 is at (2, 0), class 2 at (0, 1); class 1 is not in the batch, and of class 3 there is no prototype."""
    z = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
    y = torch.tensor([0, 0, 2, 3])
    wanted = Prototypes(torch.tensor([[1.0, 0.0], [0.0, 9.0], [3.0, 4.0], [0.0, 0.0]]), torch.tensor([1.0, 1, 1, 0]))
    assert FedSAF().structural(z, y, wanted).item() == pytest.approx(0.36)  # cosine 0, wanted 0.6


def test_or_each_sample_stands_for_itself():
    """Wanted are cosines of 1 within class 0 and of 0.6 to class 2; found are 1, 0 and 0."""
    z, y = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [5.0, 5.0]]), torch.tensor([0, 0, 2, 3])
    wanted = Prototypes(torch.tensor([[1.0, 0.0], [0.0, 9.0], [3.0, 4.0], [0.0, 0.0]]), torch.tensor([1.0, 1, 1, 0]))
    assert FedSAF(points="samples").structural(z, y, wanted).item() == pytest.approx(2 * 0.36 / 3)


@pytest.mark.parametrize("points", ["classes", "samples"])
def test_a_batch_of_one_sample_has_no_term(points: Any):
    z, y = torch.randn(1, toy.DIM), torch.tensor([2])
    assert FedSAF(points=points).structural(z, y, all_of(torch.randn(toy.CLASSES, toy.DIM))).item() == 0


@pytest.mark.parametrize("structure", EVERY)
def test_a_client_takes_over_the_structure_and_not_the_place(structure: Structure):
    """Of its three classes, as the prototypes that it sends have it; far from the prototypes themselves."""
    torch.manual_seed(1)
    down, found = all_of(100 + 10 * torch.randn(toy.CLASSES, toy.DIM)), {}
    for pull in (0.0, 10.0):
        client = toy.build(2, Streams(1))
        for _ in range(5):
            sent = FedSAF(pull=pull, structure=structure).local_update(client, down)
        mine = sent.present
        found[pull] = mismatch(sent.vectors[mine], down.vectors[mine], structure).item()
        assert (sent.vectors[mine] - down.vectors[mine]).norm(dim=1).min() > 300  # the prototypes are at about 400
    assert found[10.0] < found[0.0] / 2


def test_the_server_averages_and_keeps_what_nobody_reports():
    server = Server(2, 1, Streams(0))
    both = Prototypes(torch.tensor([[2.0], [5.0]]), torch.tensor([1.0, 3.0]))
    one = Prototypes(torch.tensor([[8.0], [0.0]]), torch.tensor([5.0, 0.0]))
    FedSAF().aggregate(server, [Upload(0, both, 4), Upload(1, one, 5)])
    assert server.memory["prototypes"].vectors.tolist() == [[5.0], [5.0]]
    FedSAF().aggregate(server, [Upload(1, one, 5)])
    assert server.memory["prototypes"].vectors.tolist() == [[8.0], [5.0]]
    FedSAF(missing="drop").aggregate(server, [Upload(1, one, 5)])
    assert server.memory["prototypes"].present.tolist() == [True, False]


def test_averages_by_counts():
    server = Server(1, 1, Streams(0))
    parts = [all_of([[2.0]]), Prototypes(torch.tensor([[8.0]]), torch.tensor([5.0]))]
    FedSAF(average="count").aggregate(server, [Upload(i, part, 1) for i, part in enumerate(parts)])
    assert server.memory["prototypes"].vectors.item() == 7
    assert FedSAF(average="count").needs.sums == "count"


def test_it_answers_by_what_it_is_told_to():
    client = toy.build(0, Streams(1))
    down, local = all_of(torch.randn(toy.CLASSES, toy.DIM)), FedSAF(answer="local")
    sent = local.local_update(client, down)
    client.model.eval()
    x, _ = client.train.batch(torch.arange(9))
    z = client.model.features(x)
    assert torch.equal(FedSAF().predict(client, x, down), client.model(x))
    assert torch.equal(FedSAF(answer="global").predict(client, x, down), down.scores(z))
    assert torch.equal(FedSAF(answer="global").predict(client, x, None), client.model(x))
    assert torch.equal(local.predict(client, x, down), sent.scores(z))


def test_without_the_term_it_is_local_training_to_the_bit():
    alone, fed = models(Local()), models(FedSAF(pull=0.0))
    assert all(torch.equal(fed[name], alone[name]) for name in alone)
    fed = models(FedSAF())
    assert any(not torch.equal(fed[name], alone[name]) for name in alone)
