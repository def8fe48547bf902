from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from torch import Tensor, nn
from toy import ready, same, started

from protea import Client, Needs, Prototypes, Server, SplitModel, Upload, losses
from protea.config.experiment import experiment_from_table
from protea.core.errors import ConfigError, PayloadError
from protea.core.message import nbytes
from protea.core.payload import pack, unpack
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.training import Training
from protea.evaluation.client_side import serve
from protea.methods.fed2pkd import Fed2PKD, PublicTask, PublicView
from protea.methods.local import Local

PUBLIC = len(toy.PUBLIC)
ONE_STEP = Training(epochs=1, batch=1000, lr=1e-9)
EVERY = torch.ones(PUBLIC, dtype=torch.bool)
EVERY_THIRD = torch.arange(PUBLIC) % 3 == 0
ALL = [1] * toy.CLASSES


@pytest.fixture(autouse=True)
def one_seed():
    with Streams(0).default("test"):
        yield


def run(method: Any, rounds: int = 2) -> tuple[dict[str, Tensor], Server]:
    """All tensors of the clients' models, and the server, after some rounds."""
    worker, server = toy.play(method, rounds)
    return toy.models(worker), server


def prototypes(present: list[int]) -> Prototypes:
    counts = torch.tensor(present).float()
    return Prototypes(torch.randn(toy.CLASSES, toy.DIM) * (counts > 0).unsqueeze(1), counts)


def view(rows: int = PUBLIC, known: Prototypes | None = None) -> PublicView:
    scores = torch.randn(rows, toy.CLASSES).log_softmax(1)
    return PublicView(prototypes(ALL) if known is None else known, torch.randn(rows, toy.DIM), scores)


# The contrast to prototypes

THREE = Prototypes(torch.tensor([[1.0, 0.0], [0.0, 3.0], [-2.0, 0.0]]).double(), torch.ones(3))


def test_contrast_of_one_sample():
    """Cosines 1, 0 and -1 become 1, 1/2 and 0; at temperature 0.5 that is 2, 1 and 0."""
    method, z = Fed2PKD(temperature=0.5), torch.tensor([[7.0, 0.0]]).double()
    assert method.nearness(z, THREE).tolist() == [[2, 1, 0]]
    value = F.cross_entropy(method.nearness(z, THREE), torch.tensor([0]))
    assert value.item() == pytest.approx(0.407605964)
    assert losses.contrast(z, torch.tensor([0]), THREE, 2 * 0.5).item() == pytest.approx(0.407605964)


# What a client learns


def cross_entropy(client: Client) -> float:
    x, y = client.train.batch(torch.arange(len(client.train)))
    return F.cross_entropy(client.model(x), y).item()


def test_in_the_first_round_it_is_cross_entropy_alone():
    client = ready(training=ONE_STEP)
    expected = cross_entropy(client)
    Fed2PKD().local_update(client, PublicTask(EVERY))
    assert client.losses == pytest.approx([expected], rel=1e-4)


@pytest.mark.parametrize(("contrast", "alignment"), [(0.9, 0.0), (0.0, 0.9), (0.5, 2.0)])
def test_the_loss_of_a_client_has_two_prongs(contrast: float, alignment: float):
    """Features of a public sample cost 0 where they have the fused direction, 1/2 at a right angle, 1 opposite."""
    method, client = Fed2PKD(contrast=contrast, alignment=alignment), ready(training=ONE_STEP)
    assert client.public is not None
    known, target = prototypes(ALL), torch.randn(int(EVERY_THIRD.sum()), toy.DIM)
    z, y = client.features()
    seen = client.model.features(client.public.batch(EVERY_THIRD.nonzero().squeeze(1))[0])
    angles = F.normalize(z) @ F.normalize(known.vectors).T
    expected = cross_entropy(client)
    expected += contrast * F.cross_entropy((angles + 1) / 2 / 0.07, y).item()
    expected += alignment * (0.5 - 0.5 * (F.normalize(seen) * F.normalize(target)).sum(1)).mean().item()
    method.local_update(client, PublicTask(EVERY, EVERY_THIRD, target, known))
    assert client.losses == pytest.approx([expected], rel=1e-4)


def test_features_of_public_samples_turn_to_the_fused_ones():
    target = F.normalize(torch.rand(PUBLIC, toy.DIM))  # of ReLU: none is negative
    after = {}
    for alignment in (0.0, 50.0):
        client = ready()
        sent = Fed2PKD(alignment=alignment).local_update(client, PublicTask(EVERY, EVERY, target))
        after[alignment] = F.cosine_similarity(sent.features, target).mean()
    assert after[50.0] > after[0.0] + 0.1


def test_without_weights_it_is_local_training_to_the_bit():
    alone, _ = run(Local())
    assert same(run(Fed2PKD(contrast=0.0, alignment=0.0))[0], alone)
    assert not same(run(Fed2PKD(alignment=0.0))[0], alone)
    assert not same(run(Fed2PKD(contrast=0.0))[0], alone)


def test_nobody_looks_at_the_labels_of_public_samples():
    method, found = Fed2PKD(student=True), []
    for labels in (toy.BLOBS.y[toy.PUBLIC], torch.zeros(PUBLIC, dtype=torch.long)):
        public = Samples(toy.BLOBS, toy.PUBLIC).with_targets(labels)
        server, client = started(method), ready()
        server.public = client.public = public
        for _ in range(2):
            with client.rng.default("train"):
                up = method.local_update(client, method.broadcast(server, 0))
            with server.rng.default("aggregate"):
                method.aggregate(server, [Upload(0, up, 10)])
        found.append({**pack(method.broadcast(server, 0)), **server.memory["model"].state_dict()})
    assert same(*found)


def test_a_client_sends_features_and_log_probabilities_of_the_samples_asked_for_by_its_model_at_rest():
    client = ready(1)  # with BatchNorm and dropout
    sent = Fed2PKD().local_update(client, PublicTask(EVERY_THIRD))
    client.model.eval()
    assert client.public is not None
    x, _ = client.public.batch(EVERY_THIRD.nonzero().squeeze(1))
    assert torch.equal(sent.features, client.model.features(x))
    torch.testing.assert_close(sent.scores, client.model(x).log_softmax(1))
    torch.testing.assert_close(sent.scores.exp().sum(1), torch.ones(8))
    z, y = client.features()
    torch.testing.assert_close(sent.prototypes.vectors[1], z[y == 1].mean(0))


def test_a_client_with_one_sample_takes_part():
    one = toy.Share(toy.SHARES[1].train[:1], toy.SHARES[1].test[:0], toy.SHARES[1].test[:0])
    client = ready(1, share=one)  # with BatchNorm
    sent = Fed2PKD().local_update(client, PublicTask(EVERY, EVERY, torch.randn(PUBLIC, toy.DIM), prototypes(ALL)))
    assert all(tensor.isfinite().all() for tensor in sent.flat().values())


def test_one_public_sample_is_enough_also_for_batch_statistics():
    """Client 1 has BatchNorm, which cannot take the mean of a single sample."""
    one = torch.arange(PUBLIC) == 5
    task = PublicTask(one, one, torch.randn(1, toy.DIM), prototypes(ALL))
    assert Fed2PKD(samples=1).local_update(ready(1), task).features.isfinite().all()


# The server

TWO = Prototypes(torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double(), torch.ones(2))
SURE = torch.tensor([[1.0, 0.0]]).double()  # features at the first prototype, at a right angle to the second


def trust(agreement: Any, head: list[float]) -> float:
    method = Fed2PKD(temperature=0.5, agreement=agreement)
    return method.trust(SURE, torch.tensor([head]).double().log(), TWO).item()


def test_a_client_whose_head_agrees_with_the_prototypes_counts_1():
    """Nearness 2 and 1: (0.731, 0.269).  A head that cannot tell is 0.110944 away: e^-0.110944."""
    near = torch.tensor([2.0, 1.0]).double().softmax(0).tolist()
    assert near == pytest.approx([0.731058579, 0.268941421])
    assert trust("divergence", near) == pytest.approx(1)
    assert trust("divergence", [0.5, 0.5]) == pytest.approx(0.894989, abs=1e-6)
    assert trust("divergence", near[::-1]) < trust("divergence", [0.5, 0.5])


def test_the_weight_of_the_authors_code_is_no_divergence_and_may_be_above_1():
    """Entropy 0.582203 of (0.731, 0.269), and 0.5 for probabilities in place of their logarithms: e^1.082203."""
    assert trust("code", [0.5, 0.5]) == pytest.approx(2.951174, abs=1e-5)


def test_classes_without_prototypes_have_no_say():
    known = Prototypes(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), torch.tensor([1.0, 1.0, 0.0]))
    z, scores = torch.tensor([[1.0, 0.0]]), torch.zeros(1, 3)
    for agreement in ("divergence", "code"):
        method = Fed2PKD(agreement=agreement)  # type: ignore[arg-type]
        assert method.trust(z, scores, known).isfinite().all()
    assert Fed2PKD(temperature=0.5).trust(z, scores, known).item() == pytest.approx(0.894989 * 2 / 3, abs=1e-5)


def small(method: Fed2PKD) -> Server:
    """A server of two classes in two dimensions that asked about one sample."""
    server = Server(2, 2, Streams(0), public=Samples(toy.BLOBS, toy.PUBLIC[:1]), make=toy.make)
    method.start_server(server)
    return server


def small_upload(client: int, features: list[float], head: list[float]) -> Upload[PublicView]:
    known = Prototypes(TWO.vectors.float(), TWO.counts)
    return Upload(client, PublicView(known, torch.tensor([features]), torch.tensor([head]).log()), 1)


def test_fused_features_are_those_of_clients_that_agree_with_the_prototypes():
    """Weights 1 and 0.894989, features (1, 0) and (3, 0): (1 + 3 * 0.894989) / 1.894989."""
    method = Fed2PKD(temperature=0.5)
    server = small(method)
    near = torch.tensor([2.0, 1.0]).softmax(0).tolist()
    method.aggregate(server, [small_upload(0, [1.0, 0.0], near), small_upload(1, [3.0, 0.0], [0.5, 0.5])])
    down = method.broadcast(server, 0)
    assert down.features is not None
    torch.testing.assert_close(down.features, torch.tensor([[1.944585, 0.0]]), rtol=1e-5, atol=1e-6)


def test_clients_that_are_all_wrong_beyond_measure_count_the_same():
    """e^-500 is 0 in single precision."""
    method = Fed2PKD(temperature=0.001)
    server = small(method)
    wrong = torch.tensor([[-1000.0, 0.0]])
    uploads = [small_upload(i, z, [0.5, 0.5]) for i, z in enumerate(([1.0, 0.0], [3.0, 0.0]))]
    for i, upload in enumerate(uploads):
        uploads[i] = Upload(i, PublicView(upload.payload.prototypes, upload.payload.features, wrong), 1)
    method.aggregate(server, uploads)
    assert method.broadcast(server, 0).features.tolist() == [[2, 0]]  # type: ignore[union-attr]


def test_the_server_averages_who_has_a_class_and_keeps_what_nobody_reports():
    method, server = Fed2PKD(), started(Fed2PKD())
    numbers = torch.arange(6.0).unsqueeze(1).expand(6, toy.DIM)

    def upload(client: int, add: float, counts: list[int]) -> Upload[PublicView]:
        present = torch.tensor(counts).float()
        return Upload(client, view(known=Prototypes((numbers + add) * (present > 0).unsqueeze(1), present)), 1)

    method.aggregate(server, [upload(0, 0.0, [9, 1, 0, 0, 1, 0]), upload(1, 4.0, [1, 0, 1, 0, 0, 0])])
    method.aggregate(server, [upload(0, 10.0, [1, 0, 0, 0, 0, 0])])
    found = method.prototypes(method.broadcast(server, 0))
    assert found is not None and found.vectors[:, 0].tolist() == [10, 1, 6, 0, 4, 0]
    assert found.present.tolist() == [True, True, True, False, True, False]


def test_fused_features_are_of_the_samples_asked_before_and_others_are_asked_next():
    method = Fed2PKD(samples=7)
    server = started(method)
    first = method.broadcast(server, 0)
    assert first.asked is first.features is first.prototypes is None and int(first.ask.sum()) == 7
    server.round = 1
    method.aggregate(server, [Upload(0, view(7), 1)])
    second = method.broadcast(server, 0)
    assert second.asked is not None and torch.equal(second.asked, first.ask)
    assert int(second.ask.sum()) == 7 and not torch.equal(second.ask, first.ask)


# The server's student


def plain(architecture: str) -> SplitModel:
    return SplitModel(nn.Linear(8, toy.DIM), nn.Identity(), nn.Linear(toy.DIM, toy.CLASSES))


def test_a_student_learns_fused_features_and_the_scores_of_clients():
    """One step over all samples, one client: MSE to its features and KL to its scores."""
    method = Fed2PKD(student=True, server_epochs=1, server_batch=PUBLIC)
    server, sent = toy.server(), view()
    server.make = plain
    method.start_server(server)
    assert server.public is not None
    x, _ = server.public.batch(torch.arange(PUBLIC))
    model = server.memory["model"]
    soft = F.kl_div(model(x).log_softmax(1), sent.scores.exp(), reduction="batchmean")
    expected = (F.mse_loss(model.features(x), sent.features) + soft).item()
    method.aggregate(server, [Upload(0, sent, 1)])
    assert server.memory["server_loss"] == pytest.approx(expected, rel=1e-5)


def test_a_student_learns_what_it_is_taught():
    method = Fed2PKD(student=True, server_lr=0.1)
    server = started(method)
    assert server.public is not None
    _, y = server.public.batch(torch.arange(PUBLIC))
    sure = PublicView(prototypes(ALL), torch.zeros(PUBLIC, toy.DIM), (5 * F.one_hot(y, toy.CLASSES)).float())
    for _ in range(4):
        method.aggregate(server, [Upload(0, sure, 1)])
    assert serve(method, server, server.public)["head"] > 0.8


def test_a_student_changes_nothing_for_the_clients():
    assert Fed2PKD().needs == Needs(public_data=True)
    assert Fed2PKD(student=True).needs == Needs(public_data=True, server_model=True)
    without, plain_server = run(Fed2PKD(samples=7), rounds=3)  # the student's draws must not choose the samples
    taught, server = run(Fed2PKD(samples=7, student=True), rounds=3)
    assert same(without, taught)
    assert Fed2PKD().server_model(plain_server) is None and Fed2PKD(student=True).server_model(server) is not None


# Answers


def test_it_answers_by_head_or_by_the_prototype_at_the_smallest_angle():
    client = ready()
    client.set_evaluation()
    x, _ = client.train.batch(torch.arange(9))
    known = prototypes(ALL)
    down = PublicTask(EVERY, EVERY, torch.zeros(PUBLIC, toy.DIM), known)
    assert torch.equal(Fed2PKD().predict(client, x, down), client.model(x))
    by_angle = Fed2PKD(answer="global")
    assert torch.equal(by_angle.predict(client, x, down), known.scores(client.model.features(x), "cosine"))
    assert torch.equal(by_angle.predict(client, x, PublicTask(EVERY)), client.model(x))
    assert by_angle.prototypes(down) is known and by_angle.prototypes(None) is None


def test_agreement_counts_in_what_clients_learn():
    default = run(Fed2PKD())[0]
    assert not same(run(Fed2PKD(agreement="code"))[0], default)
    assert not same(run(Fed2PKD(temperature=1.0))[0], default)
    assert not same(run(Fed2PKD(samples=5))[0], default)


# What travels


def test_features_and_scores_go_up_and_fused_features_and_prototypes_come_down():
    """Seven of 24 samples, six classes in 16 dimensions; client 0 has three classes."""
    method = Fed2PKD(samples=7)
    server, client = started(method), ready()
    first = method.broadcast(server, 0)
    assert nbytes(pack(first)) == PUBLIC
    sent = method.local_update(client, first)
    assert nbytes(pack(sent)) == 4 * (3 * 16 + 6 + 7 * (16 + 6))
    method.aggregate(server, [Upload(0, sent, 1)])
    assert nbytes(pack(method.broadcast(server, 0))) == 2 * PUBLIC + 4 * (7 * 16 + 3 * 16 + 6)


def test_uploads_that_are_not_as_declared_are_refused():
    method = Fed2PKD(samples=7)
    server, good = started(method), view(7)
    good.check(toy.CLASSES, toy.DIM)
    method.check(server, good)
    for wrong, why in [
        (view(6), r"Features of shape \(6, 16\) arrived; expected are 16 numbers for each of 7 samples"),
        (PublicView(good.prototypes, good.features[:, 1:], good.scores), r"expected are 16 numbers for each sample"),
        (PublicView(good.prototypes, good.features, good.scores[:6]), r"Scores of shape \(6, 6\)"),
        (PublicView(good.prototypes, good.features, good.scores[:, 1:]), r"Scores of shape \(7, 5\)"),
        (PublicView(good.prototypes, good.features.double(), good.scores), "Features of torch.float64"),
        (PublicView(good.prototypes, good.features, good.scores.half()), "Scores of torch.float16"),
        (PublicView(good.prototypes, good.features / 0, good.scores), "not finite"),
        (PublicView(Prototypes.absent(2, 2), good.features, good.scores), "classes in"),
    ]:
        with pytest.raises(PayloadError, match=why):
            wrong.check(toy.CLASSES, toy.DIM)
            method.check(server, wrong)
    flat = pack(good)
    for part in ("features", "scores", "prototypes.counts"):
        with pytest.raises(PayloadError, match="found"):
            unpack(PublicView, {name: tensor for name, tensor in flat.items() if name != part})


def test_a_task_that_does_not_fit_the_public_samples_is_refused():
    target = torch.zeros(PUBLIC, toy.DIM)
    for down, why in [
        (PublicTask(EVERY[1:]), "not a bool for each"),
        (PublicTask(EVERY, EVERY[1:], target), "not a bool for each"),
        (PublicTask(EVERY, EVERY, target[1:]), "expected are"),
        (PublicTask(EVERY, EVERY, target[:, 1:]), "expected are"),
    ]:
        with pytest.raises(PayloadError, match=why):
            Fed2PKD().local_update(ready(), down)


def test_it_needs_public_data_and_a_student_a_model():
    with pytest.raises(ConfigError, match=r"data\.public"):
        experiment_from_table({"method": "fed2pkd"})
    with pytest.raises(ConfigError, match=r"models\.server"):
        experiment_from_table({"method": "fed2pkd@student", "data": {"public": 100}})
