"""FedProtoKD, and FedPKD whose parts it replaces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from toy import same, started

from protea import Prototypes, Server, SplitModel, Upload, losses
from protea.core.devices import torch_threads
from protea.core.errors import PayloadError, ProteaError
from protea.core.message import nbytes
from protea.core.payload import pack
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.trainable_prototypes import contrast
from protea.core.training import Training
from protea.evaluation.client_side import serve
from protea.methods.fedpkd import DualKnowledge, FedPKD, distances, nearest
from protea.methods.fedprotokd import FedProtoKD
from protea.methods.local import Local

PUBLIC = len(toy.PUBLIC)
QUICK: dict[str, Any] = {"actp_epochs": 3, "server_epochs": 2}
KINDS = pytest.mark.parametrize(
    "method",
    [FedPKD(server_epochs=2), FedProtoKD(**QUICK), FedProtoKD(**QUICK, **FedProtoKD.variants["paper"])],
    ids=["fedpkd", "fedprotokd", "paper"],
)


@pytest.fixture(autouse=True)
def one_thread_one_seed():
    with torch_threads(1), Streams(0).default("test"):  # such small tensors lose time to more threads
        yield


def run(method: Any, rounds: int = 2, clients: int = toy.CLIENTS) -> tuple[dict[str, Tensor], Server]:
    """All tensors of the clients' models, and the server, after some rounds."""
    worker, server = toy.play(method, rounds, clients)
    return toy.models(worker), server


def upload(client: int, vectors: Tensor, present: list[int], logits: Tensor | None = None) -> Upload[DualKnowledge]:
    logits = torch.randn(PUBLIC, toy.CLASSES) if logits is None else logits
    return Upload(client, DualKnowledge(Prototypes(vectors, torch.tensor(present).float()), logits), 10)


def one_hot(y: Tensor) -> Tensor:
    return F.one_hot(y, toy.CLASSES).float()


# The teacher


def teacher(weighting: Any, *scores: list[float]) -> list[float]:
    absent = Prototypes.absent(2, 1)
    uploads = [Upload(i, DualKnowledge(absent, torch.tensor([s])), 10 * (i + 1)) for i, s in enumerate(scores)]
    return FedPKD(weighting=weighting).ensemble(uploads)[0].tolist()


def test_clients_count_by_the_variance_of_their_scores():
    """(0, 2), (1, 1) and (0, 4) have variances 1, 0 and 4: shares 0.2, 0 and 0.8."""
    assert teacher("variance", [0.0, 2.0], [1.0, 1.0], [0.0, 4.0]) == pytest.approx([0, 3.6])


def test_clients_count_the_same_where_none_is_sure():
    assert teacher("variance", [1.0, 1.0], [3.0, 3.0]) == [2, 2]


def test_clients_may_count_equally_or_by_their_samples():
    assert teacher("uniform", [0.0, 3.0], [3.0, 3.0]) == [1.5, 3]
    assert teacher("samples", [0.0, 3.0], [3.0, 3.0]) == [2, 3]  # 10 and 20 samples


# Global prototypes

CENTRES = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0], [1.0, 0.0]])


def margins(kind: Any, cap: float, vectors: Tensor = CENTRES, counts: Tensor | None = None) -> Any:
    counts = torch.ones(len(vectors)) if counts is None else counts
    found = FedProtoKD(margins=kind, cap=cap).find_margins(Prototypes(vectors, counts))
    return found.tolist() if isinstance(found, Tensor) else found


def test_a_margin_is_the_distance_to_the_nearest_other_class_up_to_a_cap():
    assert margins("class", 50.0) == [1, 1, 2, 2, 1]
    assert margins("class", 1.5) == [1, 1, 1.5, 1.5, 1]


def test_the_one_margin_of_the_zeta_variant_is_the_largest_of_these():
    assert margins("scalar", 50.0) == 2 and margins("scalar", 1.5) == 1.5
    assert margins("fixed", 50.0) == 50


@pytest.mark.parametrize("kind", ["class", "scalar"])
def test_a_class_without_others_has_the_cap_as_margin(kind: Any):
    alone = margins(kind, 50.0, counts=torch.tensor([0.0, 1, 0, 0, 0]))
    assert (alone if kind == "scalar" else alone[1]) == 50


def test_classes_at_one_point_have_no_margin():
    assert margins("class", 50.0, torch.ones(3, 2)) == [0, 0, 0]


def test_equal_margins_give_the_loss_of_fedtgp():
    """P = (0, 0) of class 0 at 5 from its prototype and 1 from the other: log(1 + e^(5 + 2 - 1))."""
    point, label = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0])
    prototypes = torch.tensor([[3.0, 4.0], [0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    values = [contrast(point, label, prototypes, margin) for margin in (2.0, torch.full((2,), 2.0).double())]
    assert values[0].item() == values[1].item() == pytest.approx(6.002475685)
    (gradient,) = torch.autograd.grad(values[1], prototypes)
    expected = torch.tensor([[0.598516426, 0.798021901], [0, -0.997527377]], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-8)


def test_each_class_is_held_to_its_own_margin():
    """With the other class's margin at 100 the loss of class 0 does not change."""
    points, labels = torch.zeros(1, 2), torch.tensor([0])
    prototypes = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    assert contrast(points, labels, prototypes, torch.tensor([2.0, 100.0])).item() == pytest.approx(6.0024757)


def test_fedpkd_averages_prototypes_by_samples():
    """P_1 = (1, 0) of one sample, P_2 = (0, 2) of three."""
    parts = [
        Prototypes(torch.tensor([[1.0, 0.0]]), torch.tensor([1.0])),
        Prototypes(torch.tensor([[0.0, 2.0]]), torch.tensor([3.0])),
    ]
    assert FedPKD().merge(toy.server(), parts).vectors.tolist() == [[0.25, 1.5]]
    assert FedPKD(average="uniform").merge(toy.server(), parts).vectors.tolist() == [[0.5, 1.0]]


def test_a_class_that_nobody_reports_keeps_its_prototype():
    method = FedPKD(server_epochs=1)
    server, vectors = started(method), torch.arange(6.0).unsqueeze(1).expand(6, toy.DIM)
    method.aggregate(server, [upload(0, vectors, [1, 1, 1, 1, 0, 0])])
    method.aggregate(server, [upload(0, vectors + 10, [1, 0, 0, 0, 1, 0])])
    down = method.broadcast(server, 0)
    assert down is not None and down.prototypes.vectors[:, 0].tolist() == [10, 1, 2, 3, 14, 0]
    assert down.prototypes.present.tolist() == [True] * 5 + [False]


def test_only_fedpkd_tells_the_server_how_many_samples_of_a_class_a_client_has():
    client = toy.build(3, Streams(1))
    counts = client.train.counts(toy.CLASSES)
    assert FedPKD().local_update(client, None).prototypes.counts.tolist() == counts.tolist()
    assert FedProtoKD().local_update(client, None).prototypes.counts.tolist() == (counts > 0).float().tolist()


# Public samples


def test_importance_of_three_samples():
    """At 0, 1 and 3 with guard 1: inverse distances 1, 1/2 and 1/4; the middle one is at the sigmoid's centre."""
    away = torch.tensor([0.0, 1.0, 3.0])
    assert FedProtoKD(guard=1.0, closeness=1.0).importance(away).tolist() == [2, 1.5, 1.25]
    assert FedProtoKD(guard=1.0, closeness=0.5).importance(away)[1].item() == pytest.approx(0.5 * 1.5 + 0.5 * 0.5)
    steps = FedProtoKD(guard=1.0, closeness=0.0, steepness=3.0).importance(away)
    expected = [1 - torch.tensor(3 * (far - 1 / 3)).sigmoid().item() for far in (0, 1 / 3, 1)]
    assert steps.tolist() == pytest.approx(expected)


def test_importance_as_printed_has_its_sigmoid_of_the_inverse_distance():
    away = torch.tensor([0.0, 1.0, 3.0])
    literal = FedProtoKD(guard=0.5, closeness=0.0, steepness=3.0, sigmoid_of="inverse", inverse="raw")
    expected = [1 - torch.tensor(3 * (near - 1 / 3)).sigmoid().item() for near in (2, 1 / 1.5, 1 / 3.5)]
    assert literal.importance(away).tolist() == pytest.approx(expected)
    assert expected == sorted(expected)  # the farther, the heavier


lengths = st.lists(st.floats(0, 1e4, width=32), min_size=1, max_size=20)
share = st.floats(0, 1)


@given(lengths, share)
def test_the_nearer_a_sample_the_more_it_counts_within_bounds(away: list[float], closeness: float):
    found = FedProtoKD(closeness=closeness).importance(torch.tensor(sorted(away)))
    assert torch.isfinite(found).all() and (found.diff() <= 1e-6).all()
    assert closeness - 1e-6 <= found.min() and found.max() <= 1 + closeness + 1e-6


@pytest.mark.parametrize("fields", [{}, FedProtoKD.variants["paper"]])
def test_samples_at_their_prototypes_count_the_same(fields: dict[str, Any]):
    found = FedProtoKD(**fields).importance(torch.zeros(3))
    assert torch.isfinite(found).all() and len(set(found.tolist())) == 1


def test_the_filter_keeps_a_share_of_each_class_and_at_least_one():
    away, labels = torch.tensor([4.0, 1, 3, 2, 9]), torch.tensor([2, 2, 2, 2, 0])
    assert nearest(away, labels, 0.5).tolist() == [False, True, False, True, True]
    assert nearest(away, labels, 0.01).tolist() == [False, True, False, False, True]
    assert nearest(away, labels, 1.0).all()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=30), st.floats(0.05, 1))
def test_the_filter_drops_nothing_nearer_than_what_it_keeps(samples: list[tuple[int, int]], keep: float):
    labels, away = (torch.tensor(column) for column in zip(*samples, strict=True))
    kept = nearest(away.float(), labels, keep)
    for label in labels.unique():
        mine = labels == label
        assert int((kept & mine).sum()) == max(1, (torch.tensor(keep) * mine.sum()).round())
        if (mine & ~kept).any():
            assert away[mine & kept].max() <= away[mine & ~kept].min()


def test_a_sample_whose_class_has_no_prototype_is_as_far_as_the_farthest():
    prototypes = Prototypes(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([1.0, 0.0]))
    z, labels = torch.tensor([[3.0, 4.0], [0.0, 1.0], [50.0, 0.0]]), torch.tensor([0, 0, 1])
    assert distances(z, labels, prototypes).tolist() == [5, 1, 5]
    assert distances(z, torch.tensor([1, 1, 1]), prototypes).tolist() == [0, 0, 0]


# Distillation


def test_divergence_of_one_sample_in_both_directions():
    """Scores (2, 0, 0), that is (0.787, 0.107, 0.107), and the uniform distribution."""
    scores, flat = torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)
    p = scores.softmax(1)
    assert losses.divergence(flat, scores, 1.0).item() == pytest.approx(0.474265811)
    assert losses.divergence(scores, flat, 1.0).item() == pytest.approx((p * (3 * p).log()).sum().item())
    assert losses.divergence(flat, 2 * scores, 2.0).item() == pytest.approx(4 * 0.474265811)


def test_divergence_is_that_of_torch_and_so_are_its_gradients():
    first, second = (torch.randn(4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    value = losses.divergence(first, second, 1.0)
    other = F.kl_div(second.log_softmax(1), first.softmax(1), reduction="batchmean")
    torch.testing.assert_close(value, other)
    torch.testing.assert_close(torch.autograd.grad(value, [first, second]), torch.autograd.grad(other, [first, second]))


def test_scores_far_apart_give_gradients_that_are_finite():
    for order in (1, -1):
        student = torch.tensor([[500.0, -500.0]], requires_grad=True)
        pair = (student, torch.tensor([[-500.0, 500.0]]))[::order]
        (gradient,) = torch.autograd.grad(losses.divergence(*pair, 1.0), student)
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("kl", ["forward", "reverse"])
def test_who_agrees_with_the_teacher_has_nothing_to_learn_from_its_scores(kl: Any):
    scores = torch.tensor([[1.0, 3.0]], requires_grad=True)
    value = FedPKD(soft=1.0, kl=kl).study(scores, scores.detach())
    assert value.item() == 0 and torch.autograd.grad(value, scores)[0].abs().max() < 1e-6
    labels = FedPKD(soft=0.0, kl=kl).study(scores, torch.tensor([[0.0, 1.0]]))
    torch.testing.assert_close(labels, F.cross_entropy(scores, torch.tensor([1])))


def plain(architecture: str) -> SplitModel:
    return SplitModel(nn.Linear(8, toy.DIM), nn.Identity(), nn.Linear(toy.DIM, toy.CLASSES))


@pytest.mark.parametrize("selection", ["importance", "filter"])
def test_the_loss_of_the_server_is_equation_12(selection: Any):
    """One step over all samples that teach: 0.3 (KL + mean of importance times CE) + 0.7 MSE."""
    method = FedProtoKD(trained=False, selection=selection, balance=0.3, server_epochs=1, server_batch=PUBLIC)
    server, sent = toy.server(), upload(0, torch.randn(toy.CLASSES, toy.DIM), [1] * toy.CLASSES)
    server.make = plain
    method.start_server(server)
    assert server.public is not None
    x, _ = server.public.batch(torch.arange(PUBLIC))
    z = server.memory["model"].features(x)
    scores, teacher = server.memory["model"](x), sent.payload.logits  # of one client: its own scores
    labels = teacher.argmax(1)
    targets = sent.payload.prototypes.vectors[labels]
    away = (z - targets).norm(dim=1)
    rows = nearest(away, labels, 0.7) if selection == "filter" else torch.ones(PUBLIC, dtype=torch.bool)
    weights = method.importance(away) if selection == "importance" else torch.ones(PUBLIC)
    soft = F.kl_div(scores[rows].log_softmax(1), teacher[rows].softmax(1), reduction="batchmean")
    hard = (weights * F.cross_entropy(scores, labels, reduction="none"))[rows].mean()
    expected = 0.3 * (soft + hard) + 0.7 * F.mse_loss(z[rows], targets[rows])

    method.aggregate(server, [sent])
    assert server.memory["server_loss"] == pytest.approx(expected.item(), rel=1e-5)
    down = method.broadcast(server, 0)
    assert down is not None  # the server's scores after that step, of the samples that taught it
    torch.testing.assert_close(down.logits, server.memory["model"](x)[rows])


@pytest.mark.parametrize("some", [None, torch.arange(PUBLIC) % 3 == 0])
def test_the_losses_of_a_client_are_equations_14_and_15(some: Tensor | None):
    prototypes = Prototypes(torch.randn(toy.CLASSES, toy.DIM), torch.ones(toy.CLASSES))
    rows = torch.arange(PUBLIC) if some is None else some.nonzero().squeeze(1)
    down = DualKnowledge(prototypes, torch.randn(len(rows), toy.CLASSES), some)
    client = toy.build(0, Streams(1), training=Training(epochs=1, batch=1000, lr=1e-9))
    model = client.model
    assert client.public is not None
    x, _ = client.public.batch(rows)
    soft = F.kl_div(model(x).log_softmax(1), down.logits.softmax(1), reduction="batchmean")
    public = 0.3 * soft + 0.7 * F.cross_entropy(model(x), down.logits.argmax(1))
    x, y = client.train.batch(torch.arange(len(client.train)))
    private = F.cross_entropy(model(x), y) + 2 * F.mse_loss(model.features(x), prototypes.vectors[y])
    FedPKD(soft=0.3, pull=2.0).local_update(client, down)
    assert client.losses == pytest.approx([public.item(), private.item()], rel=1e-4)


def test_with_the_teacher_alone_the_server_learns_nothing_from_prototypes():
    logits = torch.randn(PUBLIC, toy.CLASSES)
    models = []
    for vectors in (torch.zeros(toy.CLASSES, toy.DIM), torch.randn(toy.CLASSES, toy.DIM)):
        method = FedPKD(balance=1.0, keep=1.0, server_epochs=2)
        server = started(method)
        with server.rng.default("aggregate"):
            method.aggregate(server, [upload(0, vectors, [1] * toy.CLASSES, logits)])
        models.append(server.memory["model"].state_dict())
    assert same(*models)


@KINDS
def test_the_server_learns_what_it_is_taught(method: FedPKD):
    method = replace(method, server_lr=0.1)
    server = started(method)
    assert server.public is not None
    _, y = server.public.batch(torch.arange(PUBLIC))
    for _ in range(12):
        method.aggregate(server, [upload(0, torch.randn(toy.CLASSES, toy.DIM), [1] * toy.CLASSES, 5 * one_hot(y))])
    assert serve(method, server, server.public)["head"] > 0.8


def test_the_server_says_when_its_training_ends_in_nothing():
    method = FedPKD(server_lr=1e30)
    with pytest.raises(ProteaError, match="server_lr"):
        method.aggregate(started(method), [upload(0, torch.randn(toy.CLASSES, toy.DIM), [1] * toy.CLASSES)])


# The whole


@pytest.mark.parametrize("kind", [FedPKD, FedProtoKD])
def test_without_pull_and_public_phase_it_is_local_training_to_the_bit(kind: type[FedPKD]):
    alone, _ = run(Local())
    assert same(run(kind(pull=0.0, public_epochs=0, server_epochs=1))[0], alone)
    assert not same(run(kind(pull=0.0, server_epochs=1))[0], alone)
    assert not same(run(kind(public_epochs=0, server_epochs=1))[0], alone)


def test_with_averaged_prototypes_and_a_filter_it_is_fedpkd_to_the_bit():
    for keep, selection in ((0.7, "filter"), (1.0, "none")):
        older, server = run(FedPKD(keep=keep))
        newer, other = run(FedProtoKD(trained=False, selection=selection))  # type: ignore[arg-type]
        assert same(older, newer) and same(server.memory.flat()[0], other.memory.flat()[0])


def test_nobody_looks_at_the_labels_of_public_samples():
    method, results = FedProtoKD(**QUICK), []
    for labels in (toy.BLOBS.y[toy.PUBLIC], torch.zeros(PUBLIC, dtype=torch.long)):
        public = Samples(toy.BLOBS, toy.PUBLIC).with_targets(labels)
        server, client = started(method), toy.build(0, Streams(1))
        server.public = client.public = public
        for _ in range(2):
            with client.rng.default("train"):
                up = method.local_update(client, method.broadcast(server, 0))
            with server.rng.default("aggregate"):
                method.aggregate(server, [Upload(0, up, 10)])
        results.append({**pack(method.broadcast(server, 0)), **client.model.state_dict()})
    assert same(*results)


def test_all_public_samples_come_down_or_those_kept():
    """Six classes in 16 dimensions: 102 numbers for prototypes and their counts, then six for each sample."""
    for method in (FedProtoKD(**QUICK), FedPKD(server_epochs=1)):
        server = started(method)
        assert method.broadcast(server, 0) is None
        method.aggregate(server, [upload(0, torch.randn(toy.CLASSES, toy.DIM), [1] * toy.CLASSES)])
        down = method.broadcast(server, 0)
        assert down is not None
        if isinstance(method, FedProtoKD):
            assert down.kept is None and nbytes(pack(down)) == 4 * (102 + 6 * PUBLIC)
        else:
            assert down.kept is not None and 0 < (rows := int(down.kept.sum())) < PUBLIC
            assert nbytes(pack(down)) == 4 * (102 + 6 * rows) + PUBLIC  # and a byte for each that says if it is kept


def test_a_client_studies_the_samples_kept_each_with_its_own_scores():
    public = Samples(toy.BLOBS, toy.PUBLIC)
    for asked_before in (False, True):
        if asked_before:
            public.batch(torch.arange(2))
        some = public.only(torch.arange(PUBLIC) % 2 == 1).with_targets(torch.arange(1.0, PUBLIC, 2))
        assert len(some) == PUBLIC // 2
        x, targets = some.batch(torch.tensor([1, 0]))
        assert targets.tolist() == [3, 1] and torch.equal(x, public.batch(torch.tensor([3, 1]))[0])


def test_it_answers_by_head_or_by_the_nearest_prototype():
    client = toy.build(0, Streams(1))
    client.model.eval()
    x, _ = client.train.batch(torch.arange(20))
    prototypes = Prototypes(torch.randn(toy.CLASSES, toy.DIM), torch.ones(toy.CLASSES))
    down = DualKnowledge(prototypes, torch.zeros(PUBLIC, toy.CLASSES))
    assert torch.equal(FedProtoKD().predict(client, x, down), client.model(x))
    by_prototype = FedProtoKD(answer="global")
    assert torch.equal(by_prototype.predict(client, x, down), prototypes.scores(client.model.features(x)))
    assert torch.equal(by_prototype.predict(client, x, None), client.model(x))
    assert by_prototype.prototypes(down) is prototypes and by_prototype.prototypes(None) is None


def test_the_server_answers_with_its_own_model_at_rest():
    """The toy's server model has dropout, which must be off."""
    server = started(FedProtoKD())
    server.memory["model"].train()
    test = toy.build(0, Streams(1)).train
    found = serve(FedProtoKD(), server, test)
    assert not server.memory["model"].training
    x, y = test.batch(torch.arange(len(test)))
    assert found == {"head": float((server.memory["model"](x).argmax(1) == y).double().mean())}


def test_what_is_not_as_declared_is_refused():
    server, vectors = started(FedProtoKD()), torch.zeros(toy.CLASSES, toy.DIM)

    def refuse(message: str, logits: Tensor, kept: Tensor | None = None, vectors: Tensor = vectors) -> None:
        payload = DualKnowledge(Prototypes(vectors, torch.ones(len(vectors))), logits, kept)
        with pytest.raises(PayloadError, match=message):
            payload.check(toy.CLASSES, toy.DIM)
            FedProtoKD().check(server, payload)

    good = torch.zeros(PUBLIC, toy.CLASSES)
    refuse("23 logits arrived for 24 public samples", good[1:])
    refuse("expected are 6 numbers", good[:, 1:])
    refuse("expected are 6 numbers", good[:, 0])
    refuse("not finite", good / 0)
    refuse("dimensions", good, None, vectors[:, 1:])
    refuse("makes no selection", good, torch.ones(PUBLIC, dtype=torch.bool))


# Next to nothing


def with_norm(architecture: str) -> SplitModel:
    return SplitModel(
        nn.Sequential(nn.Linear(8, toy.DIM), nn.BatchNorm1d(toy.DIM)), nn.Identity(), nn.Linear(toy.DIM, toy.CLASSES)
    )


@KINDS
@pytest.mark.parametrize("public", [1, PUBLIC])
def test_it_stays_finite_on_next_to_nothing(method: FedPKD, public: int):
    """Nothing at all; one client with one class; two the same; all at one point; a class nobody has, but all see."""
    one, none = torch.randn(toy.CLASSES, toy.DIM), [0] * toy.CLASSES
    flat, wrong = torch.zeros(public, toy.CLASSES), torch.eye(toy.CLASSES)[5].expand(public, -1)
    cases = [
        [upload(0, 0 * one, none, flat)],
        [upload(0, one, [0, 1, 0, 0, 0, 0], flat)],
        [upload(0, one, [1, 1, 1, 0, 0, 0], wrong), upload(1, one, [1, 1, 1, 0, 0, 0], wrong)],
        [upload(0, torch.ones(toy.CLASSES, toy.DIM), [1] * toy.CLASSES, wrong)],
    ]
    for uploads in cases:
        server = toy.server()
        server.make, server.public = with_norm, Samples(toy.BLOBS, toy.PUBLIC[:public])
        method.start_server(server)
        for _ in range(2):
            method.aggregate(server, uploads)
        for tensor in server.memory.flat()[0].values():
            assert torch.isfinite(tensor.float()).all()


@KINDS
def test_one_client_alone_can_run_it(method: FedPKD):
    models, server = run(method, rounds=3, clients=1)
    for tensor in (*models.values(), *server.memory.flat()[0].values()):
        assert torch.isfinite(tensor.float()).all()


# What is known of the teacher


def test_a_client_that_never_saw_a_class_rules_it_out_in_a_mean_of_scores_only():
    """One client knows that it is class 0; two have never seen it, and favour class 1 and class 2 a little."""
    absent = Prototypes.absent(4, 1)
    scores = [[4.0, 0.0, 0.0, 0.0], [-9.0, 0.5, 0.0, 0.0], [-9.0, 0.0, 0.5, 0.0]]
    uploads = [Upload(i, DualKnowledge(absent, torch.tensor([s])), 10) for i, s in enumerate(scores)]
    assert FedPKD(weighting="uniform").ensemble(uploads).argmax(1).tolist() != [0]
    mixed = FedPKD(weighting="uniform", teacher="probabilities").ensemble(uploads)
    expected = torch.tensor(scores).softmax(1).mean(0)
    torch.testing.assert_close(mixed[0].exp(), expected)
    assert mixed.argmax(1).tolist() == [0] and FedProtoKD.variants["mixture"] == FedPKD.variants["mixture"]


def test_the_record_of_a_round_says_how_good_the_teacher_is():
    """Scores that are the labels of the first public samples and class 0 elsewhere: right there, and where it is 0."""
    server, scores = started(FedPKD(server_epochs=1)), one_hot(server_labels())
    scores[5:] = one_hot(torch.zeros(PUBLIC - 5, dtype=torch.int64))
    FedPKD(server_epochs=1).aggregate(server, [upload(0, torch.randn(toy.CLASSES, toy.DIM), [1] * toy.CLASSES, scores)])
    labels, answers = server_labels(), scores.argmax(1)
    assert server.memory["teacher_accuracy"] == pytest.approx(float((answers == labels).float().mean()))
    assert server.memory["teacher_commonest"] == pytest.approx(int(answers.bincount().max()) / PUBLIC)
    chances = scores[0].softmax(0)
    assert server.memory["teacher_entropy"] == pytest.approx(float(-(chances * chances.log()).sum()))


def server_labels() -> Tensor:
    return toy.BLOBS.y[toy.PUBLIC]
