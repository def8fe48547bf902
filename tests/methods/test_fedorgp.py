from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import toy
from torch import Tensor

from protea import Prototypes, Upload
from protea.core.rng import Streams
from protea.core.server import Server
from protea.core.trainable_prototypes import TrainablePrototypes
from protea.engines.inline import Inline
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.methods.fedorgp import FedORGP, added, turn
from protea.methods.local import Local

POINTS, LABELS = torch.tensor([[3.0, 4.0], [0.0, 5.0]]), torch.tensor([0, 1])
AXES = torch.tensor([[1.0, 0.0], [0.0, 2.0]])  # cosines of the points to them: 0.6 and 0.8; 0 and 1


def all_of(vectors: Any) -> Prototypes:
    return Prototypes(torch.as_tensor(vectors), torch.ones(len(vectors)))


def served(method: FedORGP, *rounds: list[Prototypes], classes: int = 3, dim: int = 4) -> Server:
    """The server after it got these uploads, round by round."""
    server = Server(classes, dim, Streams(5))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        method.start_server(server)
        for parts in rounds:
            method.aggregate(server, [Upload(i, part, 1) for i, part in enumerate(parts)])
    return server


def cosines(vectors: Tensor) -> Tensor:
    unit = torch.nn.functional.normalize(vectors, dim=1)
    return unit @ unit.T


def models(method: Any, rounds: int = 2) -> dict[str, Tensor]:
    worker = toy.worker(method, toy.build, seed=7)
    list(Federation(method, Inline(worker), toy.server(), FederationPlan(clients=toy.CLIENTS, rounds=rounds)).run())
    return {f"{i}/{k}": t for i, c in worker.clients.items() for k, t in c.model.state_dict().items()}


def test_features_are_turned_not_moved():
    """Cosines 0.6 and 1, whatever the lengths; a class without prototype adds nothing and counts in the mean."""
    z, y = torch.tensor([[3.0, 4.0], [70.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 0, 1])
    prototypes = Prototypes(torch.tensor([[9.0, 0.0], [0.0, 0.0]]), torch.tensor([1.0, 0.0]))
    assert turn(z, y, prototypes).item() == pytest.approx(0.4 / 3)
    assert turn(z, y, prototypes, "sum").item() == pytest.approx(0.4)
    assert turn(z[2:], y[2:], prototypes).item() == 0


def test_a_feature_of_no_length_has_no_direction_and_breaks_nothing():
    z = torch.zeros(1, 2, requires_grad=True)
    value = turn(z, torch.tensor([0]), all_of(AXES))
    value.backward()  # type: ignore[no-untyped-call]
    assert value.item() == 1 and z.grad is not None and z.grad.isfinite().all()


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"separation": 0.0}, 0.2),  # own cosines 0.6 and 1: (0.4 + 0) / 2
        ({"separation": 1.0}, 0.2 + 0.4),  # others 0.8 and 0
        ({"separation": 10.0}, 0.2 + 4.0),
        ({"separation": 1.0, "size": "squared"}, 0.2 + 0.32),
        ({"separation": 1.0, "over": "sum"}, 0.4 + 0.8),
        ({"separation": 5.0, "between": "prototypes"}, 0.2),  # the axes are orthogonal
    ],
)
def test_the_servers_loss_of_two_uploads(fields: dict[str, Any], value: float):
    assert FedORGP(**fields).server_loss(POINTS, LABELS, AXES).item() == pytest.approx(value)


def test_an_angle_above_90_degrees_costs_as_much_as_one_below():
    opposite = torch.tensor([[1.0, 0.0], [-3.0, 0.0]])
    for between in ("uploads", "prototypes"):
        method = FedORGP(separation=2.0, between=between)  # type: ignore[arg-type]
        same = method.server_loss(opposite, LABELS, opposite).item()
        assert same == pytest.approx(2.0)  # own cosines are 1, the others -1
        assert same == pytest.approx(method.server_loss(opposite.abs(), LABELS, opposite.abs()).item())


def test_among_prototypes_each_pair_counts():
    """Their cosine is sqrt(1/2), in both orders."""
    skew = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    plain, mean, total = (
        FedORGP(between="prototypes", separation=weight, over=over).server_loss(skew, LABELS, skew).item()
        for weight, over in ((0.0, "mean"), (1.0, "mean"), (1.0, "sum"))  # type: ignore[assignment]
    )
    assert plain == pytest.approx(0, abs=1e-6)
    assert (mean, total) == pytest.approx((0.5**0.5, 2**0.5))


def test_nothing_added_up_is_zero():
    assert added(torch.zeros(0), "mean").item() == added(torch.zeros(0), "sum").item() == 0


@pytest.mark.parametrize("mlp", [True, False])
def test_a_step_on_the_server_is_that_of_sgd_by_autograd(mlp: bool):
    torch.manual_seed(3)
    ours = TrainablePrototypes(3, 4, mlp)
    theirs = copy.deepcopy(ours)
    points, labels = torch.randn(5, 4), torch.tensor([0, 1, 1, 0, 0])
    method = FedORGP(mlp=mlp, server_epochs=2, server_batch=5, server_lr=0.1)
    value = method.train_prototypes(ours, points, labels)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = method.server_loss(points, labels, theirs())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert value == pytest.approx(loss.item(), rel=1e-5)
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own, other)


def test_prototypes_follow_uploads_and_are_set_at_right_angles():
    """Uploads of three classes are within 30 degrees of each other; without the second term so are the prototypes."""
    close = all_of(torch.tensor([[1.0, 0.2, 0.0, 0.0], [1.0, 0.0, 0.2, 0.0], [1.0, 0.0, 0.0, 0.2]]))
    assert cosines(close.vectors).min() > 0.9
    found = {}
    for separation in (0.0, 10.0):
        method = FedORGP(separation=separation, between="prototypes", server_epochs=800, server_lr=0.12)
        found[separation] = served(method, [close]).memory["prototypes"]
    unit = torch.nn.functional.normalize(close.vectors, dim=1)
    following = (unit * torch.nn.functional.normalize(found[0.0].vectors, dim=1)).sum(1)
    assert following.min() > 0.99 and cosines(found[0.0].vectors).min() > 0.8
    apart = cosines(found[10.0].vectors)
    assert (apart - torch.eye(3)).abs().max() < 0.1


def test_a_class_that_nobody_reports_is_kept_at_right_angles_to_what_is_reported():
    part = Prototypes(torch.eye(3, 4), torch.tensor([1.0, 1.0, 0.0]))
    server = served(FedORGP(server_epochs=250, server_lr=0.4), [part])
    prototypes: Prototypes = server.memory["prototypes"]
    assert prototypes.present.all()
    assert cosines(torch.cat([prototypes.vectors[2:], part.vectors[:2]]))[0, 1:].abs().max() < 0.1


def test_training_goes_on_from_round_to_round():
    method, part = FedORGP(server_epochs=5), all_of(torch.eye(3, 4))
    one, two = served(method, [part]), served(method, [part], [part])
    assert two.memory["server_loss"] < one.memory["server_loss"]


def test_nothing_reported_trains_nothing():
    method = FedORGP()
    server = served(method, [Prototypes.absent(3, 4)])
    assert method.broadcast(server, 0) is None and "server_loss" not in server.memory


def test_one_class_has_no_other():
    server = served(FedORGP(server_epochs=3), [all_of([[1.0, 2.0]])], classes=1, dim=2)
    assert server.memory["prototypes"].vectors.isfinite().all() and server.memory["server_loss"] < 2.1


def test_clients_tell_which_classes_they_have_and_not_how_many_samples():
    sent = FedORGP().local_update(toy.build(0, Streams(1)), None)
    assert set(sent.counts.tolist()) == {0.0, 1.0}


def test_it_answers_by_head_or_by_the_smallest_angle():
    client = toy.build(0, Streams(1))
    client.model.eval()
    x, _ = client.train.batch(torch.arange(9))
    down = all_of(torch.randn(toy.CLASSES, toy.DIM))
    longer = Prototypes(torch.arange(1.0, toy.CLASSES + 1).unsqueeze(1) * down.vectors, down.counts)
    assert torch.equal(FedORGP().predict(client, x, down), client.model(x))
    by_angle = FedORGP(answer="global")
    torch.testing.assert_close(by_angle.predict(client, x, down), by_angle.predict(client, x, longer))
    assert torch.equal(by_angle.predict(client, x, None), client.model(x))


def test_clients_turn_toward_the_prototypes():
    """Mean cosine of a client's features and the prototype of their class, after training with and without the term."""
    down, found = all_of(torch.randn(toy.CLASSES, toy.DIM)), {}
    for pull in (0.0, 10.0):
        client = toy.build(0, Streams(1))
        FedORGP(pull=pull).local_update(client, down)
        found[pull] = 1 - turn(*client.features(), down).item()
    assert found[10.0] > found[0.0] + 0.2


def test_without_the_term_it_is_local_training_to_the_bit():
    alone, fed = models(Local()), models(FedORGP(pull=0.0, server_epochs=2))
    assert all(torch.equal(fed[name], alone[name]) for name in alone)
    fed = models(FedORGP(server_epochs=2))
    by_angle = models(FedORGP(server_epochs=2, answer="global"))
    assert all(torch.equal(fed[name], by_angle[name]) for name in alone)  # how it answers changes no training
    assert any(not torch.equal(fed[name], alone[name]) for name in alone)
