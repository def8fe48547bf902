from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from torch import Tensor, nn

from protea import Client, Prototypes, Upload, losses
from protea.clients.worker import Worker
from protea.core.errors import ClientError, PayloadError
from protea.core.message import nbytes
from protea.core.payload import pack, unpack
from protea.core.rng import Streams
from protea.core.server import Server
from protea.core.training import Training
from protea.methods.fedpcl import FedPCL, PrototypesOfAll
from protea.models.nearest import Nearest

FIRST = torch.tensor([0])


@pytest.fixture(autouse=True)
def one_seed():
    with Streams(0).default("test"):
        yield


def run(method: Any, build: Any = toy.build, rounds: int = 2) -> tuple[Worker, Server]:
    return toy.play(method, rounds, toy.CLIENTS, build)


def with_adapter(id: int, streams: Streams, **options: Any) -> Client:
    """The toy's client with an adapter that can learn."""
    client = toy.build(id, streams, **options)
    with streams.default("adapter"):
        client.model.adapter = nn.Linear(toy.DIM, toy.DIM)
    return client


def started(method: FedPCL, id: int = 0, build: Any = toy.build, **options: Any) -> Client:
    client = build(id, Streams(1), **options)
    method.start_client(client)
    client.begin(2, Streams(1))
    return client


def prototypes(present: list[int]) -> Prototypes:
    counts = torch.tensor(present).float()
    return Prototypes(torch.randn(toy.CLASSES, toy.DIM) * (counts > 0).unsqueeze(1), counts)


ALL = [1] * toy.CLASSES


# The loss


def test_contrast_of_one_sample():
    """Cosines 1, 0 and -1: log(1 + e^-1 + e^-2); at temperature 0.5 they count double."""
    known = Prototypes(torch.tensor([[1.0, 0.0], [0.0, 3.0], [-2.0, 0.0]]).double(), torch.ones(3))
    z = torch.tensor([[7.0, 0.0]]).double()
    assert losses.contrast(z, FIRST, known, 1.0).item() == pytest.approx(0.407605964)
    assert losses.contrast(z, FIRST, known, 0.5).item() == pytest.approx(0.142931636)


def test_the_slope_of_the_contrast_is_that_of_finite_differences():
    known = Prototypes(torch.randn(4, 3).double(), torch.tensor([1.0, 1.0, 0.0, 1.0]))
    z, y = torch.randn(5, 3).double().requires_grad_(), torch.tensor([0, 1, 2, 3, 3])
    assert torch.autograd.gradcheck(lambda z: losses.contrast(z, y, known, 0.3), z)


def test_lengths_of_features_and_prototypes_do_not_count():
    z, y, known = torch.randn(5, toy.DIM), torch.arange(5), prototypes(ALL)
    longer = Prototypes(known.vectors * torch.arange(1.0, 7.0).unsqueeze(1), known.counts)
    torch.testing.assert_close(losses.contrast(z, y, known, 0.07), losses.contrast(100 * z, y, longer, 0.07))


def test_a_sample_of_a_class_without_prototype_adds_nothing_but_counts_in_the_mean():
    known = Prototypes(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]), torch.tensor([1.0, 1.0, 0.0]))
    z = torch.tensor([[2.0, 1.0], [5.0, 5.0]], requires_grad=True)
    value = losses.contrast(z, torch.tensor([0, 2]), known, 0.07)
    assert value.item() == pytest.approx(losses.contrast(z[:1], FIRST, known, 0.07).item() / 2)
    (slope,) = torch.autograd.grad(value, z)
    assert slope[1].tolist() == [0, 0] and slope[0].abs().sum() > 0


def test_with_no_prototype_at_all_there_is_nothing_to_learn():
    z = torch.randn(4, 3, requires_grad=True)
    value = losses.contrast(z, torch.tensor([0, 1, 1, 0]), Prototypes.absent(2, 3), 0.07)
    (slope,) = torch.autograd.grad(value, z)
    assert value.item() == 0 and slope.abs().sum() == 0


def test_features_of_length_0_do_not_break_it():
    z = torch.zeros(1, toy.DIM, requires_grad=True)
    value = losses.contrast(z, FIRST, prototypes(ALL), 0.07)
    assert value.item() == pytest.approx(torch.tensor(6.0).log().item())
    assert torch.autograd.grad(value, z)[0].isfinite().all()


def by_hand(z: Tensor, y: Tensor, vectors: Tensor) -> float:
    return F.cross_entropy(F.normalize(z) @ F.normalize(vectors).T / 0.07, y).item()


@pytest.mark.parametrize("terms", ["both", "each"])
@pytest.mark.parametrize("over", ["mean", "sum"])
def test_the_loss_of_a_client_is_equation_7(terms: Any, over: Any):
    """The third client has classes 0 and 1 only; the others of its set are the average's."""
    method = FedPCL(terms=terms, over=over)
    client = started(method, training=Training(epochs=1, batch=1000, lr=1e-9))
    parts = [prototypes(ALL), prototypes(ALL), prototypes([1, 1, 0, 0, 0, 0])]
    mean = prototypes(ALL)
    z, y = client.features()
    padded = torch.cat([parts[2].vectors[:2], mean.vectors[2:]])
    each = [by_hand(z, y, vectors) for vectors in (parts[0].vectors, parts[1].vectors, padded)]
    expected = sum(each) / (3 if over == "mean" else 1)
    if terms == "both":
        expected += by_hand(z, y, mean.vectors)

    method.local_update(client, PrototypesOfAll(mean, {str(i): part for i, part in enumerate(parts)}))
    assert client.losses == pytest.approx([expected], rel=1e-4)


def test_alone_in_the_federation_both_terms_are_the_same():
    own = prototypes(ALL)
    losses = {}
    for terms in ("both", "each"):
        method = FedPCL(terms=terms)  # type: ignore[arg-type]
        client = started(method, training=Training(epochs=1, batch=1000, lr=1e-9))
        method.local_update(client, PrototypesOfAll(own, {"0": own}))
        losses[terms] = client.losses[0]
    assert losses["both"] == pytest.approx(2 * losses["each"])


# Rounds


def test_in_the_first_round_clients_send_what_they_have_and_learn_nothing():
    method, client = FedPCL(), started(FedPCL())
    before = {name: t.clone() for name, t in client.model.body.state_dict().items()}
    z, y = client.features()
    sent = method.local_update(client, None)
    assert client.losses == [] and all(torch.equal(before[n], t) for n, t in client.model.body.state_dict().items())
    torch.testing.assert_close(sent.vectors[1], F.normalize(z[y == 1], dim=1).mean(0))
    assert sent.counts.tolist() == client.own_classes.float().tolist()  # how many samples stays with the client


def test_the_server_averages_who_has_a_class_and_passes_every_set_on():
    method, server = FedPCL(), Server(3, 1, Streams(0))
    parts = [
        Prototypes(torch.tensor([[2.0], [0.0], [0.0]]), torch.tensor([1.0, 0.0, 0.0])),
        Prototypes(torch.tensor([[8.0], [5.0], [0.0]]), torch.tensor([2.0, 4.0, 0.0])),
        Prototypes(torch.tensor([[5.0], [7.0], [0.0]]), torch.tensor([9.0, 1.0, 0.0])),
    ]
    assert method.broadcast(server, 0) is None
    method.aggregate(server, [Upload(client, part, 1) for client, part in zip((0, 3, 12), parts, strict=True)])
    down = method.broadcast(server, 0)
    assert down is not None and list(down.of) == ["0", "3", "12"]
    assert down.mean.vectors.tolist() == [[5], [6], [0]] and down.mean.present.tolist() == [True, True, False]
    assert down.of["3"].vectors.tolist() == [[8], [5], [0]]
    assert method.prototypes(down) is down.mean and method.prototypes(None) is None


def test_a_class_that_nobody_reports_keeps_its_average_and_only_this_rounds_sets_are_sent():
    method, server = FedPCL(), Server(2, 1, Streams(0))
    first = Prototypes(torch.tensor([[2.0], [3.0]]), torch.tensor([1.0, 1.0]))
    method.aggregate(server, [Upload(0, first, 2)])
    method.aggregate(server, [Upload(1, Prototypes(torch.tensor([[8.0], [0.0]]), torch.tensor([4.0, 0.0])), 4)])
    down = method.broadcast(server, 0)
    assert down is not None and down.mean.vectors.tolist() == [[8], [3]] and list(down.of) == ["1"]


def test_training_turns_features_to_the_prototypes_of_their_class():
    method, client = FedPCL(), started(FedPCL())
    known = Prototypes(torch.eye(toy.CLASSES, toy.DIM), torch.ones(toy.CLASSES))
    z, y = client.features()
    before = losses.contrast(z, y, known, method.temperature)
    method.local_update(client, PrototypesOfAll(known, {"0": known}))
    z, y = client.features()
    assert losses.contrast(z, y, known, method.temperature) < before / 2


def test_a_client_with_one_sample_takes_part():
    one = toy.Share(toy.SHARES[1].train[:1], toy.SHARES[1].test[:0], toy.SHARES[1].test[:0])
    method = FedPCL()
    client = started(method, 1, share=one)  # with BatchNorm
    sent = method.local_update(client, PrototypesOfAll(prototypes(ALL), {"0": prototypes(ALL)}))
    assert sent.vectors.isfinite().all() and sent.counts.sum() == 1


@pytest.mark.parametrize("id", [0, 1], ids=["plain", "with BatchNorm and dropout"])
def test_a_frozen_body_stays_as_it_is_to_the_bit(id: int):
    """Its weights and the statistics of its BatchNorm; only the adapter learns."""
    method = FedPCL(body="frozen")
    client = started(method, id, with_adapter)
    body, adapter = (
        {n: t.clone() for n, t in part.state_dict().items()} for part in (client.model.body, client.model.adapter)
    )
    method.local_update(client, PrototypesOfAll(prototypes(ALL), {"0": prototypes(ALL)}))
    assert not torch.equal(adapter["weight"], client.model.adapter.state_dict()["weight"])
    assert [name for name, t in client.model.body.state_dict().items() if not torch.equal(t, body[name])] == []


def test_a_trained_body_learns_too():
    method = FedPCL()
    client = started(method, 0, with_adapter)
    before = client.model.body[0].weight.detach().clone()
    method.local_update(client, PrototypesOfAll(prototypes(ALL), {"0": prototypes(ALL)}))
    assert not torch.equal(before, client.model.body[0].weight)


def test_a_frozen_body_needs_an_adapter_with_weights():
    """The toy's adapter has none."""
    with pytest.raises(ClientError, match=r"models\.adapter=linear"):
        run(FedPCL(body="frozen"))


@pytest.mark.parametrize("body", ["trained", "frozen"])
def test_clients_with_an_adapter_learn(body: Any):
    method = FedPCL(body=body)
    worker, server = run(method, with_adapter, rounds=6)
    assert toy.accuracy(method, worker, server) > 0.8


# Answers


def test_it_answers_by_its_own_prototypes_or_by_the_average():
    client = started(FedPCL())
    own = FedPCL().local_update(client, None)
    client.set_evaluation()
    x, _ = client.train.batch(torch.arange(9))
    z, down = client.model.features(x), PrototypesOfAll(prototypes(ALL), {})
    assert torch.equal(FedPCL().predict(client, x, down), own.scores(z, "cosine"))
    assert torch.equal(FedPCL(answer="global").predict(client, x, down), down.mean.scores(z, "cosine"))


def test_a_class_without_prototype_is_never_answered_however_far_the_others_are():
    """In PFLlib such a class has the score 0, above every obtuse angle."""
    client = started(FedPCL())
    local = client.prototypes()
    opposite = Prototypes(-local.vectors, local.counts)
    assert isinstance(client.model.head, Nearest)
    client.model.head.set(opposite)
    client.set_evaluation()
    x, _ = client.train.batch(torch.arange(9))
    scores = FedPCL().predict(client, x, None)
    assert scores.max() < 0 and bool(opposite.present[scores.argmax(1)].all())


def test_a_client_that_has_not_taken_part_yet_answers_by_the_average():
    client, down = started(FedPCL()), PrototypesOfAll(prototypes(ALL), {})
    client.set_evaluation()
    x, _ = client.train.batch(torch.arange(9))
    assert torch.equal(FedPCL().predict(client, x, down), down.mean.scores(client.model.features(x), "cosine"))


# What travels


def test_every_set_comes_down_and_the_average():
    """Four clients with three of six classes in 16 dimensions; a count per class for each set."""
    method = FedPCL()
    _, server = run(method, rounds=1)
    down = method.broadcast(server, 0)
    assert down is not None
    assert nbytes(pack(down)) == 4 * (4 * 3 * 16 + 6 * 16 + 5 * 6)
    again = unpack(PrototypesOfAll, pack(down))
    assert again is not None and list(again.of) == ["0", "1", "2", "3"]
    assert torch.equal(again.of["2"].vectors, down.of["2"].vectors)


def test_what_is_not_as_declared_is_refused():
    good, names = prototypes(ALL), {"vectors": torch.zeros(1, toy.DIM)}
    for wrong, why in [
        (Prototypes(torch.zeros(2, toy.DIM), torch.ones(2)), "classes in"),
        (Prototypes(good.vectors.double(), good.counts), "not of float32"),
        (Prototypes(good.vectors * torch.nan, good.counts), "not finite"),
    ]:
        with pytest.raises(PayloadError, match=why):
            wrong.check(toy.CLASSES, toy.DIM)
        for down in (PrototypesOfAll(wrong, {"0": good}), PrototypesOfAll(good, {"0": good, "1": wrong})):
            with pytest.raises(PayloadError, match=why):
                down.check(toy.CLASSES, toy.DIM)
    with pytest.raises(PayloadError, match="hold vectors and counts"):
        unpack(FedPCL.up, names)
    with pytest.raises(PayloadError, match="hold vectors and counts"):
        unpack(FedPCL.down, {f"mean.{name}": t for name, t in names.items()})
