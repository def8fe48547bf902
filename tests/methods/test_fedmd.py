from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from torch import Tensor
from toy import ready, same, started

from protea import Client, Server, Upload
from protea.config.experiment import experiment_from_table
from protea.core.errors import ConfigError, PayloadError
from protea.core.message import nbytes
from protea.core.payload import pack, unpack
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.training import Training
from protea.methods.fedmd import Answers, Consensus, FedMD
from protea.methods.local import Local

PUBLIC = len(toy.PUBLIC)
ONE_STEP = Training(epochs=1, batch=1000, lr=1e-9)
EVERY_THIRD = torch.arange(PUBLIC) % 3 == 0


@pytest.fixture(autouse=True)
def one_seed():
    with Streams(0).default("test"):
        yield


def run(method: Any, rounds: int = 2, clients: int = toy.CLIENTS) -> tuple[dict[str, Tensor], Server]:
    """All tensors of the clients' models, and the server, after some rounds."""
    worker, server = toy.play(method, rounds, clients)
    return toy.models(worker), server


# The consensus


def test_the_consensus_is_the_mean_of_all_answers():
    method, server = FedMD(samples=1), started(FedMD(samples=1))
    said = [[1.0, 2, 0, 0, 0, 0], [3.0, 0, 0, 0, 0, 6], [2.0, 4, 3, 0, 0, 0]]
    method.aggregate(server, [Upload(i, Answers(torch.tensor([scores])), 10**i) for i, scores in enumerate(said)])
    down = method.broadcast(server, 0)
    assert down.scores is not None and down.scores.tolist() == [[2, 2, 1, 0, 0, 2]]


def test_one_clients_answers_are_the_consensus_to_the_bit():
    method = FedMD(public_epochs=1)
    server, client = started(method), ready()
    sent = method.local_update(client, method.broadcast(server, 0))
    method.aggregate(server, [Upload(0, sent, 1)])
    assert torch.equal(server.memory["consensus"].scores, sent.scores)


def test_the_consensus_is_of_the_samples_asked_before_and_others_are_asked_next():
    method = FedMD(samples=7)
    server = started(method)
    first = method.broadcast(server, 0)
    assert first.asked is None and first.scores is None and int(first.ask.sum()) == 7
    server.round = 1
    method.aggregate(server, [Upload(0, Answers(torch.zeros(7, toy.CLASSES)), 1)])
    second = method.broadcast(server, 0)
    assert second.asked is not None and torch.equal(second.asked, first.ask)
    assert int(second.ask.sum()) == 7 and not torch.equal(second.ask, first.ask)


def test_all_public_samples_are_asked_about_where_there_are_fewer():
    assert started(FedMD()).memory["consensus"].ask.all()


# What a client learns


def test_distances_of_two_scores_to_the_consensus():
    """|1 - 0| and |3 - 5|, mean 1.5; KL of the uniform distribution to (2, 0, 0)."""
    assert FedMD().apart(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 5.0]])).item() == 1.5
    student = torch.tensor([[2.0, 0.0, 0.0]]).double()
    flat = torch.full((1, 3), 4.0).double()
    assert FedMD(distance="divergence").apart(student, flat).item() == pytest.approx(0.474265811)


def test_the_slope_of_the_absolute_distance_is_a_sign_for_each_score():
    """Over the number of samples and of classes; 0 where they agree."""
    scores = torch.tensor([[1.0, 3.0], [2.0, -1.0]], requires_grad=True)
    value = FedMD().apart(scores, torch.tensor([[0.0, 5.0], [2.0, -4.0]]))
    assert torch.autograd.grad(value, scores)[0].tolist() == [[0.25, -0.25], [0, 0.25]]


def test_the_slope_of_the_divergence_is_that_of_finite_differences():
    consensus = torch.randn(4, 3).double()
    scores = torch.randn(4, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: FedMD(distance="divergence").apart(s, consensus), scores)


def cross_entropy(client: Client, data: Samples) -> float:
    x, y = data.batch(torch.arange(len(data)))
    return F.cross_entropy(client.model(x), y).item()


def test_in_its_first_round_a_client_learns_public_labels_then_its_own():
    client = ready(training=ONE_STEP)
    assert client.public is not None
    expected = [cross_entropy(client, client.public), cross_entropy(client, client.train)]
    FedMD(public_epochs=1).local_update(client, Consensus(EVERY_THIRD))
    assert client.losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("distance", ["absolute", "divergence"])
def test_later_it_digests_the_consensus_then_revisits_its_own_samples(distance: Any):
    """Each public sample that was asked about with its own scores."""
    method, client = FedMD(public_epochs=0, distance=distance), ready(training=ONE_STEP)
    assert client.public is not None
    method.local_update(client, Consensus(EVERY_THIRD))
    client.begin(2, Streams(1))
    consensus = torch.randn(int(EVERY_THIRD.sum()), toy.CLASSES)
    x, _ = client.public.batch(EVERY_THIRD.nonzero().squeeze(1))
    digest = method.apart(client.model(x), consensus).item()
    private = cross_entropy(client, client.train)
    method.local_update(client, Consensus(~EVERY_THIRD, EVERY_THIRD, consensus))
    assert client.losses == pytest.approx([digest, private], rel=1e-4)


def test_a_client_that_comes_later_learns_public_labels_before_it_digests():
    method, client = FedMD(public_epochs=1), ready(round=9, training=ONE_STEP)
    assert client.public is not None
    consensus = torch.randn(PUBLIC, toy.CLASSES)
    x, _ = client.public.batch(torch.arange(PUBLIC))
    digest = F.l1_loss(client.model(x), consensus).item()
    expected = [cross_entropy(client, client.public), digest, cross_entropy(client, client.train)]
    every = torch.ones(PUBLIC, dtype=torch.bool)
    method.local_update(client, Consensus(every, every, consensus))
    assert client.losses == pytest.approx(expected, rel=1e-4)


def test_digesting_brings_scores_nearer_to_the_consensus():
    method, client = FedMD(public_epochs=0, private_epochs=0, digest_epochs=20), ready()
    every = torch.ones(PUBLIC, dtype=torch.bool)
    consensus = torch.randn(PUBLIC, toy.CLASSES)
    before = F.l1_loss(client.outputs(client.model, client.public)[0], consensus)
    after = F.l1_loss(method.local_update(client, Consensus(every, every, consensus)).scores, consensus)
    assert after < before - 0.1


def test_answers_are_of_the_samples_asked_for_by_the_model_at_rest():
    method, client = FedMD(public_epochs=1), ready(1)  # with BatchNorm and dropout
    sent = method.local_update(client, Consensus(EVERY_THIRD))
    client.model.eval()
    assert client.public is not None
    x, _ = client.public.batch(EVERY_THIRD.nonzero().squeeze(1))
    assert torch.equal(sent.scores, client.model(x))


# Epochs


def test_without_public_phases_it_is_local_training_to_the_bit():
    alone, _ = run(Local())
    assert not same(run(FedMD(public_epochs=1, digest_epochs=0))[0], alone)
    assert not same(run(FedMD(public_epochs=0))[0], alone)
    assert same(run(FedMD(public_epochs=0, digest_epochs=0))[0], alone)


def test_own_samples_are_first_learned_for_training_epochs_unless_said_otherwise():
    """The toy's clients train for two."""
    default = run(FedMD(), rounds=1)[0]
    assert same(run(FedMD(private_epochs=2), rounds=1)[0], default)
    assert not same(run(FedMD(private_epochs=3), rounds=1)[0], default)


def test_every_number_of_epochs_counts():
    default = run(FedMD(public_epochs=1))[0]
    for fields in ({"public_epochs": 2}, {"public_epochs": 1, "digest_epochs": 2}):
        assert not same(run(FedMD(**fields))[0], default)


def test_the_labels_of_public_samples_count_in_the_first_phase_only():
    every = torch.ones(PUBLIC, dtype=torch.bool)
    for epochs in (0, 1):
        found = []
        for labels in (toy.BLOBS.y[toy.PUBLIC], torch.zeros(PUBLIC, dtype=torch.long)):
            client = ready()
            client.public = Samples(toy.BLOBS, toy.PUBLIC).with_targets(labels)
            down = Consensus(every, every, torch.zeros(PUBLIC, toy.CLASSES))
            with client.rng.default("train"):
                found.append(FedMD(public_epochs=epochs).local_update(client, down).scores)
        assert torch.equal(*found) == (epochs == 0)


def test_a_client_with_one_sample_takes_part():
    one = toy.Share(toy.SHARES[1].train[:1], toy.SHARES[1].test[:0], toy.SHARES[1].test[:0])
    client = ready(1, share=one)  # with BatchNorm
    assert FedMD().local_update(client, Consensus(EVERY_THIRD)).scores.isfinite().all()


def test_one_public_sample_is_enough_also_for_batch_statistics():
    assert run(FedMD(samples=1))[1].memory["consensus"].scores.isfinite().all()


# What travels


def test_scores_go_up_and_down_and_a_byte_for_each_public_sample():
    """Seven of 24 samples, six classes: 42 numbers; first only which to answer, then also which were answered."""
    method = FedMD(samples=7, public_epochs=0)
    server, client = started(method), ready()
    first = method.broadcast(server, 0)
    assert nbytes(pack(first)) == PUBLIC
    sent = method.local_update(client, first)
    assert nbytes(pack(sent)) == 4 * 42
    method.aggregate(server, [Upload(0, sent, 1)])
    assert nbytes(pack(method.broadcast(server, 0))) == 2 * PUBLIC + 4 * 42
    assert method.prototypes(first) is None


def test_uploads_that_are_not_as_declared_are_refused():
    method = FedMD(samples=7)
    server = started(method)
    good = torch.zeros(7, toy.CLASSES)
    Answers(good).check(toy.CLASSES, toy.DIM)
    method.check(server, Answers(good))
    for scores, why in [
        (good[:6], r"expected are 6 numbers for each of 7 samples"),
        (good[:, :5], r"expected are 6 numbers for each sample"),
        (good.flatten(), "expected are"),
        (good.double(), "not of float32"),
        (good / 0, "not finite"),
    ]:
        with pytest.raises(PayloadError, match=why):
            Answers(scores).check(toy.CLASSES, toy.DIM)
            method.check(server, Answers(scores))
    with pytest.raises(PayloadError, match="must be one tensor"):
        unpack(Answers, {"scores.first": good})
    with pytest.raises(PayloadError, match="has no 'labels'"):
        unpack(Answers, {"scores": good, "labels": good})


def test_a_consensus_that_does_not_fit_the_public_samples_is_refused():
    every, scores = torch.ones(PUBLIC, dtype=torch.bool), torch.zeros(PUBLIC, toy.CLASSES)
    for down, why in [
        (Consensus(every[1:]), "not a bool for each"),
        (Consensus(every, every[1:], scores), "not a bool for each"),
        (Consensus(every, every, scores[1:]), "expected are"),
        (Consensus(every, every, scores[:, 1:]), "expected are"),
    ]:
        with pytest.raises(PayloadError, match=why):
            FedMD(public_epochs=0, private_epochs=0).local_update(ready(), down)


def test_it_needs_public_data():
    with pytest.raises(ConfigError, match=r"data\.public"):
        experiment_from_table({"method": "fedmd"})
    assert experiment_from_table({"method": "fedmd@paper", "data": {"public": 100}}).method == FedMD(
        public_epochs=20, private_epochs=25
    )
