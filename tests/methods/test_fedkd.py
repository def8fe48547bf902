from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from torch import Tensor, nn

from protea import Client, Server, SplitModel, Upload, Weights
from protea.core.errors import PayloadError
from protea.core.lowrank import LowRank
from protea.core.message import nbytes
from protea.core.payload import pack
from protea.core.rng import Streams
from protea.core.training import Training
from protea.methods.fedkd import FedKD

EXACT = {"energy_first": 1.0, "energy_last": 1.0}


def plain(architecture: str = "smallest") -> SplitModel:
    """The toy's small model without its dropout."""
    return SplitModel(nn.Linear(8, toy.DIM), nn.Identity(), nn.Linear(toy.DIM, toy.CLASSES))


def ready(method: FedKD, training: Training, id: int = 2, round: int = 1) -> tuple[Client, LowRank]:
    """A client without dropout, and the mentee that it is sent."""
    client, server = toy.build(id, Streams(1), training=training), toy.server()
    client.make = server.make = plain
    with Streams(1).default("start"):
        method.start_client(client)
        method.start_server(server)
    client.begin(round, Streams(1))
    return client, method.broadcast(server, id)


def kl(first: Tensor, second: Tensor) -> Tensor:
    """Of each sample and class."""
    p, q = first.log_softmax(1), second.log_softmax(1)
    return p.exp() * (p - q)


def stepped(modules: Iterable[nn.Module], loss: Tensor, lr: float) -> list[Tensor]:
    parameters = [p for module in modules for p in module.parameters()]
    slopes = torch.autograd.grad(loss, parameters, retain_graph=True)
    return [p.detach() - lr * slope for p, slope in zip(parameters, slopes, strict=True)]


@pytest.mark.parametrize("teaching", ["apart", "joint"])
@pytest.mark.parametrize("hidden", [1.0, 0.5])
def test_one_step_is_that_of_the_formulas(teaching: Any, hidden: float):
    """Apart: each model goes down its own loss, and takes the other, and both losses below the line, as given.

    Joint: each goes down the sum of both losses, whose divergences are means over classes too.
    """
    method = FedKD(teaching=teaching, hidden=hidden, **EXACT)
    client, down = ready(method, Training(batch=1000, lr=0.1))
    mentor, mentee, onto = client.model, client.memory["mentee"], client.memory["map"]
    down.weights(Weights.of(mentee)).load_into(mentee)
    x, y = client.train.batch(torch.arange(len(client.train)))
    z, small = mentor.features(x), mentee.features(x)
    own, shared = mentor.head(z), mentee.head(small)
    first, second = F.cross_entropy(own, y), F.cross_entropy(shared, y)
    if teaching == "apart":
        s = (first + second).detach()
        of_mentor = first + (kl(shared.detach(), own).sum(1).mean() + hidden * F.mse_loss(z, onto(small).detach())) / s
        given = hidden * F.mse_loss(z.detach(), onto(small))
        of_mentee = second + (kl(own.detach(), shared).sum(1).mean() + given) / s
        expected = [*stepped([mentor], of_mentor, 0.1), *stepped([mentee, onto], of_mentee, 0.1)]
    else:
        s, apart = first + second, hidden * F.mse_loss(z, onto(small))
        of_mentor = first + kl(shared, own).mean() / s + apart / s
        of_mentee = second + kl(own, shared).mean() / s + apart / s
        expected = stepped([mentor, mentee, onto], of_mentor + of_mentee, 0.1)

    method.local_update(client, down)
    for found, wanted in zip([p for m in (mentor, mentee, onto) for p in m.parameters()], expected, strict=True):
        torch.testing.assert_close(found.data, wanted)


def test_without_the_distance_the_map_learns_nothing():
    for hidden in (0.0, 1.0):
        method = FedKD(hidden=hidden)
        client, down = ready(method, Training(lr=0.05))
        before = client.memory["map"].weight.clone()
        method.local_update(client, down)
        assert torch.equal(client.memory["map"].weight, before) == (hidden == 0)


def test_two_models_that_are_sure_of_their_labels_have_a_finite_loss():
    """Cross entropies of exactly 0 stand below the line: a client of one class gets there."""
    rows = (toy.BLOBS.y == 0).nonzero().squeeze(1)
    share = type(toy.SHARES[0])(rows[:20], rows[:0], rows[:0])
    server, client = toy.server(), toy.build(0, Streams(1), share=share)

    def certain(architecture: str = "smallest") -> SplitModel:
        model = plain()
        nn.init.zeros_(model.head.weight)
        model.head.bias.data = 200.0 * F.one_hot(torch.tensor(0), toy.CLASSES).float()
        return model

    client.make = server.make = certain
    client.model = certain()
    FedKD().start_client(client), FedKD().start_server(server)
    client.begin(1, Streams(1))
    FedKD().local_update(client, FedKD().broadcast(server, 0))
    assert all(p.isfinite().all() for p in client.model.parameters())


def mentee_of(*squares: float) -> SplitModel:
    """Its body has these squared singular values."""
    body = nn.Linear(20, 20)
    body.weight.data = torch.diag(torch.tensor([*squares, *[0.0] * (20 - len(squares))]).sqrt())
    return SplitModel(body, nn.Identity(), nn.Linear(20, 2))


def test_the_energy_grows_from_the_first_value_to_the_last_over_the_rounds():
    """One singular value has 96 percent, two have 99: one does for 0.953, the first of ten rounds, not for 0.98."""
    mentee = mentee_of(0.96, 0.03, 0.01)
    ranks = [FedKD().compressed(mentee, round, 10).left["body.weight"].shape[1] for round in range(1, 11)]
    assert ranks == [1, 1, 1, 2, 2, 2, 2, 2, 2, 2]  # 0.962 in the fourth
    constant = FedKD(energy_last=0.95)
    assert constant.compressed(mentee, 10, 10).left["body.weight"].shape[1] == 1
    assert FedKD(energy_first=0.98).compressed(mentee, 1, 10).left["body.weight"].shape[1] == 2


def test_both_ways_travel_compressed():
    server = Server(2, 20, Streams(0), make=lambda name: mentee_of(0.96, 0.03, 0.01), round=1, rounds=10)
    FedKD().start_server(server)
    down = FedKD().broadcast(server, 0)
    assert {name: t.shape for name, t in down.left.items()} == {"body.weight": (20, 1)}
    assert sum(t.numel() for t in pack(down).values()) == 2 * 20 + 20 + 2 * 20 + 2  # not 400 + 20 + 40 + 2
    client, sent = ready(FedKD(energy_first=0.3, energy_last=0.3), Training(lr=0.01))
    up = FedKD(energy_first=0.3, energy_last=0.3).local_update(client, sent)
    assert "body.weight" in up.left and "head.bias" in up.whole


def test_clients_begin_from_the_mentee_they_are_sent():
    method = FedKD()
    client, down = ready(method, Training(epochs=0))
    mentee = client.memory["mentee"]
    assert not torch.equal(mentee.head.bias, down.whole["head.bias"])
    method.local_update(client, down)
    expected = down.weights(Weights.of(mentee))
    assert all(torch.equal(t, expected.tensors[name]) for name, t in mentee.state_dict().items())


def test_the_server_averages_mentees_each_client_once():
    server = Server(2, 1, Streams(0), make=lambda name: SplitModel(nn.Identity(), nn.Identity(), nn.Linear(1, 2)))
    FedKD().start_server(server)
    parts = [
        LowRank({"head.bias": torch.tensor([0.0, 1.0])}, {"head.weight": left}, {"head.weight": torch.tensor([[1.0]])})
        for left in (torch.tensor([[0.0], [2.0]]), torch.tensor([[8.0], [2.0]]))
    ]
    FedKD().aggregate(server, [Upload(0, parts[0], 10), Upload(1, parts[1], 30)])
    assert server.memory["mentee"].head.weight.tolist() == [[4.0], [2.0]]
    assert server.memory["mentee"].head.bias.tolist() == [0.0, 1.0]


def test_counters_of_batchnorm_are_the_largest_and_its_statistics_are_averaged():
    def make(name: str) -> SplitModel:
        return SplitModel(nn.BatchNorm1d(3), nn.Identity(), nn.Linear(3, 2))

    server, parts = Server(2, 3, Streams(0), make=make), []
    FedKD().start_server(server)
    for steps in (1, 3):
        model = make("")
        for _ in range(steps):
            model.body(torch.full((2, 3), 10.0 * steps))
        parts.append(LowRank.of(Weights.of(model), 0.95))
    FedKD().aggregate(server, [Upload(i, part, 1) for i, part in enumerate(parts)])
    body = server.memory["mentee"].body
    assert body.num_batches_tracked.item() == 3
    assert body.running_mean[0].item() == pytest.approx((1.0 + 30 * (1 - 0.9**3)) / 2)


def test_the_mentee_may_be_another_architecture():
    asked: list[str] = []

    def make(name: str) -> SplitModel:
        asked.append(name)
        return plain()

    server, client = toy.server(), toy.build(0, Streams(1))
    server.make = client.make = make
    for method in (FedKD(), FedKD(mentee="cnn4")):
        method.start_server(server), method.start_client(client)
    assert asked == ["smallest", "smallest", "cnn4", "cnn4"]


def test_a_client_answers_with_its_own_model():
    client, down = ready(FedKD(), Training())
    client.model.eval()
    x, _ = client.train.batch(torch.arange(5))
    assert torch.equal(FedKD().predict(client, x, down), client.model(x))


def test_the_variant_of_the_code_sends_zeros_for_a_body_that_needs_all_its_rank():
    """All its singular values are equal: by the code none of them remains."""
    found = []
    for method in (FedKD(**FedKD.variants["htfllib"]), FedKD()):
        server = Server(2, 20, Streams(0), make=lambda name: mentee_of(*[1.0] * 20))
        method.start_server(server)
        like = Weights.of(server.memory["mentee"])
        found.append(method.broadcast(server, 0).weights(like).tensors["body.weight"])
    assert found[0].abs().sum() == 0
    assert torch.equal(found[1], torch.eye(20))


def test_it_sends_less_than_the_whole_model_does():
    """With half of the energy; that of random weights is too even for 0.95 to save anything."""
    method = FedKD(energy_first=0.5, energy_last=0.5)
    server = toy.server()
    method.start_server(server)
    whole = nbytes(pack(Weights.of(server.memory["mentee"])))
    assert nbytes(pack(method.broadcast(server, 0))) < 0.75 * whole


def test_a_single_sample_is_enough():
    share = toy.SHARES[0]
    client = toy.build(1, Streams(1), share=type(share)(share.train[:1], share.validation, share.test))
    server = toy.server()
    FedKD().start_client(client), FedKD().start_server(server)
    client.begin(1, Streams(1))
    sent = FedKD().local_update(client, FedKD().broadcast(server, 1))
    FedKD().check(server, sent)


def test_uploads_that_make_no_mentee_are_refused():
    server = toy.server()
    FedKD().start_server(server)
    good = LowRank.of(Weights.of(server.memory["mentee"]), 0.3)
    FedKD().check(server, good)
    assert good.left and good.whole
    name = next(iter(good.left))
    for sent, why in [
        (LowRank(Weights.of(nn.Linear(3, 3)).tensors, {}, {}), "arrived, not"),
        (LowRank({}, good.left, good.right), "nothing arrived"),
        (LowRank(good.whole, good.left, {}), "make no weights"),
        (LowRank(good.whole, {}, good.right), "other half"),
        (LowRank(good.whole, {**good.left, name: good.left[name][:-1]}, good.right), "make no weights"),
        (LowRank(good.whole, {k: t.double() for k, t in good.left.items()}, good.right), "make no weights"),
        (LowRank({k: t.double() for k, t in good.whole.items()}, good.left, good.right), "float64 arrived, not"),
    ]:
        with pytest.raises(PayloadError, match=why):
            FedKD().check(server, sent)
