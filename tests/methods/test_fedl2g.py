"""FedL2G: guiding vectors that learn by a step through a step."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from torch import Tensor, nn

from protea import Client, Prototypes, SplitModel, Upload
from protea.core.errors import ClientError, PayloadError
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.training import Training
from protea.data.dataset import Dataset
from protea.methods.fedl2g import FedL2G, GuidingVectors


def guiding(vectors: list[list[float]]) -> GuidingVectors:
    return GuidingVectors(Prototypes(torch.tensor(vectors), torch.ones(len(vectors))))


def one_weight(method: FedL2G, rounds: int = 1) -> Client:
    """Two samples x = 1 of class 0: one to study, one for the quiz.

    The model has one weight that trains, 0: its feature is w x, its scores are (w x, -w x).
    """
    body = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(body.weight)
    head = nn.Linear(1, 2, bias=False)
    head.weight.data = torch.tensor([[1.0], [-1.0]])
    head.requires_grad_(False)
    client = Client(
        id=0,
        model=SplitModel(body, nn.Identity(), head),
        train=Samples(Dataset(torch.ones(2, 1), torch.zeros(2, dtype=torch.int64), ("a", "b"))),
        classes=2,
        dim=1,
        rng=Streams(1),
        training=Training(lr=0.5),
        rounds=rounds,
    )
    method.start_client(client)
    client.begin(1, Streams(1))
    return client


def test_the_gradient_of_a_feature_s_guiding_vector_by_hand() -> None:
    """At w = 0 the cross entropy has the slope -1, the pull (w - v)^2 has -2v.

    With v = -1/2 both cancel, and the step of learning rate 1/2 ends at w' = w = 0.  There the quiz loss has the slope
    -1, and w' = (1 + 2v) / 2 rises with v by 1: the gradient is -1.
    """
    method = FedL2G(quiz_most=0.5, warm_up=0.9)
    client = one_weight(method, rounds=2)
    up = method.local_update(client, guiding([[-0.5], [7.0]]))
    assert up.of.vectors.tolist() == [[-1.0], [0.0]]
    assert up.of.counts.tolist() == [1.0, 0.0]  # nothing of class 1 was studied


def test_the_gradient_of_scores_guiding_vector_by_hand() -> None:
    """The pull is the mean of (w - v1)^2 and (-w - v2)^2, so w' = (1 + v1 - v2) / 2: the gradient is (-1/2, 1/2)."""
    method = FedL2G(form="logits", quiz_most=0.5, warm_up=0.9)
    up = method.local_update(one_weight(method, rounds=2), guiding([[-0.5, 0.5], [7.0, 7.0]]))
    assert up.of.vectors.tolist() == [[-0.5, 0.5], [0.0, 0.0]]


def test_training_pulls_features_to_the_guiding_vector_of_their_class() -> None:
    """The same slopes train the model: with v = 1 it is -1 - 2, and w becomes 3/2."""
    method = FedL2G(quiz_most=0.5)
    client = one_weight(method)
    method.local_update(client, guiding([[1.0], [7.0]]))
    assert client.model.body.weight.item() == pytest.approx(1.5)


def after_a_step(model: nn.Module, vectors: Tensor, study: Samples, quiz: Samples, form: str, lr: float) -> float:
    """The quiz loss of a model after a step on all study samples, written out; the model itself stays as it is."""
    model = deepcopy(model).train()
    assert isinstance(model, SplitModel)
    x, y = study.batch(torch.arange(len(study)))
    z = model.features(x)
    scores = model.head(z)
    loss = F.cross_entropy(scores, y) + F.mse_loss(z if form == "features" else scores, vectors[y])
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for p, slope in zip(model.parameters(), slopes, strict=True):
            p -= lr * slope
        return F.cross_entropy(model(quiz.batch(torch.arange(len(quiz)))[0]), quiz.y).item()


@pytest.mark.parametrize("form", ["features", "logits"])
def test_the_gradient_is_that_of_the_quiz_loss_by_finite_differences(form: Any) -> None:
    """In double precision, of a model with BatchNorm; the step aside is written out here."""
    method = FedL2G(form=form, study_batches=2)
    dataset = Dataset(toy.BLOBS.x.double(), toy.BLOBS.y, toy.BLOBS.names)
    client = toy.build(1, Streams(1), training=Training(batch=8, lr=0.3))
    layers = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, toy.DIM))
    client.model = SplitModel(layers, nn.Identity(), nn.Linear(toy.DIM, toy.CLASSES)).double()
    client.train = Samples(dataset, toy.SHARES[1].train)
    method.start_client(client)
    client.begin(1, Streams(1))
    quiz, study = (client.train.only(rows) for rows in (client.memory["quiz"], ~client.memory["quiz"]))
    width = toy.DIM if form == "features" else toy.CLASSES
    vectors = torch.randn(toy.CLASSES, width, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found = method.quizzed(client, Prototypes(vectors, torch.ones(toy.CLASSES)), study, quiz)
    rows = torch.randperm(len(study), generator=client.rng.generator("study"))[:16]
    y = study.y[rows]
    assert found.counts.tolist() == y.bincount(minlength=toy.CLASSES).tolist() and len(quiz) == 8

    def quiz_loss(vectors: Tensor) -> float:
        return after_a_step(client.model, vectors, study.only(rows), quiz, form, 0.3)

    for row in y.unique().tolist():
        for column in (0, width - 1):
            away = torch.zeros_like(vectors)
            away[row, column] = 1e-4
            slope = (quiz_loss(vectors + away) - quiz_loss(vectors - away)) / 2e-4
            assert found.vectors[row, column].item() == pytest.approx(slope, rel=1e-4, abs=1e-9)
            assert slope != 0


def test_warm_up_is_a_share_of_the_rounds_and_never_all_of_them() -> None:
    assert [FedL2G().warm_up_rounds(rounds) for rounds in (2000, 100, 10, 2, 1)] == [50, 3, 1, 1, 0]
    assert FedL2G(warm_up=0.0).warm_up_rounds(100) == 0


def started(method: FedL2G, id: int = 1, rounds: int = 10, **options: Any) -> tuple[Client, GuidingVectors]:
    """The toy's client 1 has BatchNorm and dropout."""
    client, server = toy.build(id, Streams(1), **options), toy.started(method)
    client.rounds = rounds
    with client.rng.default("start"):
        method.start_client(client)
    return client, method.broadcast(server, id)


@pytest.mark.parametrize("form", ["features", "logits"])
def test_in_warm_up_a_client_sends_gradients_and_its_model_stays_as_it_is(form: Any) -> None:
    """With BatchNorm's statistics, and ready for evaluation; then it trains."""
    method = FedL2G(form=form)
    client, down = started(method)
    before = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}
    client.begin(1, Streams(1))
    up = method.local_update(client, down)
    assert up.of.vectors.any() and not client.losses and not client.model.training
    assert toy.same(before, client.model.state_dict()) and all(p.grad is None for p in client.model.parameters())
    client.begin(2, Streams(2))
    method.local_update(client, down)
    assert len(client.losses) == 1 and not toy.same(before, client.model.state_dict())


def test_quiz_samples_are_chosen_once_and_never_trained_on() -> None:
    method = FedL2G(warm_up=0.0)
    client, down = started(method, training=Training(batch=5))
    quiz = set(client.train.index[client.memory["quiz"]].tolist())
    assert len(quiz) == 5 and len(client.train) > 20
    trained: list[set[int]] = []
    client.fit = lambda loss, data: trained.append(set(data.index.tolist())) or 0.0
    for round in (1, 2):
        client.begin(round, Streams(1).at("round", round))
        method.local_update(client, down)
    assert trained == [set(client.train.index.tolist()) - quiz] * 2


@pytest.mark.parametrize(("samples", "kept"), [(100, 10), (20, 5), (7, 1), (3, 0), (1, 0)])
def test_a_client_keeps_back_a_batch_but_no_more_than_a_quarter(samples: int, kept: int) -> None:
    client = toy.build(1, Streams(1), training=Training(batch=10))
    client.train = Samples(toy.BLOBS, torch.arange(samples))
    FedL2G().start_client(client)
    assert client.memory["quiz"].shape == (samples,) and int(client.memory["quiz"].sum()) == kept


def test_a_client_without_a_quiz_trains_and_says_nothing_of_guiding_vectors() -> None:
    method = FedL2G(warm_up=0.0)
    client = toy.build(1, Streams(1))
    client.train = Samples(toy.BLOBS, torch.arange(3))
    method.start_client(client)
    client.begin(1, Streams(1))
    up = method.local_update(client, method.broadcast(toy.started(method), 1))
    assert len(client.losses) == 1 and not up.of.present.any()


@pytest.mark.parametrize(
    ("clip", "expected"), [(100.0, (0.7, 0.4)), (0.0, (0.7, 0.4)), (1.0, (0.94, 0.72))], ids=["long", "none", "short"]
)
def test_the_server_steps_by_the_mean_of_those_who_studied_a_class(clip: float, expected: tuple[float, float]) -> None:
    """Class 0: gradients (0, 2) and (0, 4) have the mean (0, 3); of class 1 (4, 0) alone; of class 2 nobody tells.

    Together they have the norm 5; clipped to 1 they are (0, 0.6) and (0.8, 0).  The step is a tenth.
    """
    method, server = FedL2G(server_lr=0.1, server_clip=clip), toy.server()
    server.memory["guiding"] = guiding([[1.0, 1.0], [0.8, 1.0], [5.0, 5.0]])
    first = Prototypes(torch.tensor([[0.0, 2.0], [4.0, 0.0], [0.0, 0.0]]), torch.tensor([1.0, 9.0, 0.0]))
    second = Prototypes(torch.tensor([[0.0, 4.0], [0.0, 0.0], [0.0, 0.0]]), torch.tensor([3.0, 0.0, 0.0]))
    method.aggregate(server, [Upload(i, GuidingVectors(part), 10) for i, part in enumerate((first, second))])
    found = server.memory["guiding"].of
    torch.testing.assert_close(found.vectors, torch.tensor([[1.0, expected[0]], [expected[1], 1.0], [5.0, 5.0]]))
    assert found.present.all()


def test_guiding_vectors_learn_to_lower_the_quiz_loss() -> None:
    """Alone with its server, a client's quiz after a step gets easier in warm-up, though its model does not change."""
    method = FedL2G(server_lr=1000.0, quiz_batches=2, study_batches=9)
    client, _ = started(method, id=2, rounds=1000, training=Training(batch=16, lr=0.5))
    server = toy.started(method)
    quiz, study = (client.train.only(rows) for rows in (client.memory["quiz"], ~client.memory["quiz"]))
    losses: list[float] = []
    for _ in range(20):
        down = method.broadcast(server, 2)
        client.begin(1, Streams(1))
        method.aggregate(server, [Upload(2, method.local_update(client, down), 10)])
        losses.append(after_a_step(client.model, down.of.vectors, study, quiz, "features", 0.5))
    assert losses[-1] < losses[0] - 0.01


class Attention(nn.Module):
    """Whose fast kernel has no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.raise_ = nn.Linear(1, 16)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.raise_(x.unsqueeze(2)).view(len(x), 8, 2, 8).transpose(1, 2)
        seen: Tensor = F.scaled_dot_product_attention(heads, heads, heads)
        return seen.transpose(1, 2).flatten(2).mean(1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(1, 8, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.layer(x.unsqueeze(2))[0]
        return states.mean(1)


@pytest.mark.parametrize("body", [Attention, Recurrent])
def test_models_with_attention_or_recurrence_can_take_the_quiz(body: type[nn.Module]) -> None:
    client, down = started(FedL2G())
    client.model = SplitModel(body(), nn.Identity(), nn.Linear(toy.DIM, toy.CLASSES))
    client.begin(1, Streams(1))
    assert FedL2G().local_update(client, down).of.vectors.any()


def test_a_model_that_diverged_is_named() -> None:
    client, down = started(FedL2G())
    nn.init.constant_(client.model.head.bias, torch.nan)
    client.begin(1, Streams(1))
    with pytest.raises(ClientError, match=r"client 1, round 1: its quiz loss is nan .*Try a smaller training.lr"):
        FedL2G().local_update(client, down)


def test_gradients_in_another_space_are_refused() -> None:
    server = toy.started(FedL2G())
    scores = GuidingVectors(Prototypes(torch.zeros(toy.CLASSES, toy.CLASSES), torch.ones(toy.CLASSES)))
    scores.check(toy.CLASSES, toy.DIM)
    with pytest.raises(PayloadError, match=r"shape \(6, 6\) arrived; guiding vectors are \(6, 16\)"):
        FedL2G().check(server, scores)
    with pytest.raises(PayloadError, match="vectors of 5 numbers arrived; features have 16 here, scores 6"):
        GuidingVectors(Prototypes(torch.zeros(toy.CLASSES, 5), torch.ones(toy.CLASSES))).check(toy.CLASSES, toy.DIM)


def test_guiding_vectors_of_features_are_prototypes_those_of_scores_are_not() -> None:
    down = FedL2G().broadcast(toy.started(FedL2G()), 0)
    assert FedL2G().prototypes(down) is down.of and FedL2G().prototypes(None) is None
    assert FedL2G(form="logits").prototypes(down) is None
