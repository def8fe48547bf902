from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from torch import Tensor, nn

from protea import Client, SplitModel
from protea.core.errors import ClientError
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.training import Training, batches
from protea.evaluation.client_side import examine
from protea.methods.local import Local


def client(samples: int, body: nn.Module | None = None, **training: Any) -> Client:
    model = SplitModel(body or nn.Linear(8, toy.DIM), nn.Identity(), nn.Linear(toy.DIM, toy.CLASSES))
    train = Samples(toy.BLOBS, torch.arange(samples))
    return Client(0, model, train, toy.CLASSES, toy.DIM, Streams(0), training=Training(**training))


def cross_entropy(c: Client) -> Any:
    return lambda x, y: F.cross_entropy(c.model(x), y)


@pytest.mark.parametrize(
    ("samples", "sizes"),
    [(1, [1]), (2, [2]), (9, [9]), (10, [10]), (11, [11]), (12, [10, 2]), (21, [10, 11])],
)
def test_batches_use_every_sample_and_never_end_with_one(samples: int, sizes: list[int]) -> None:
    parts = list(batches(torch.randperm(samples), 10))
    assert [len(part) for part in parts] == sizes
    assert sorted(torch.cat(parts).tolist()) == list(range(samples))


@pytest.mark.parametrize(
    ("samples", "sizes"), [(0, []), (1, [1]), (9, [9]), (10, [10]), (11, [10]), (19, [10]), (20, [10, 10])]
)
def test_a_last_batch_that_is_not_full_can_be_dropped_but_never_all_samples(samples: int, sizes: list[int]) -> None:
    assert [len(part) for part in batches(torch.randperm(samples), 10, "drop")] == sizes


def test_dropping_the_last_batch_is_a_setting_of_training() -> None:
    for last, steps in (("keep", 3), ("drop", 2)):
        c, seen = client(25, batch=10, last=last), list[int]()

        def loss(x: Tensor, y: Tensor, c: Client = c, seen: list[int] = seen) -> Tensor:
            seen.append(len(x))
            return F.cross_entropy(c.model(x), y)

        c.fit(loss)
        assert seen == [10, 10, 5][:steps]


def test_a_step_is_the_step_of_plain_sgd() -> None:
    c = client(10, lr=0.1, batch=10)
    weight, bias = c.model.head.weight.detach().clone(), c.model.head.bias.detach().clone()
    x, y = c.train.batch(torch.arange(10))
    F.cross_entropy(c.model(x), y).backward()
    expected = weight - 0.1 * c.model.head.weight.grad, bias - 0.1 * c.model.head.bias.grad
    c.fit(cross_entropy(c))
    torch.testing.assert_close(c.model.head.weight.detach(), expected[0])
    torch.testing.assert_close(c.model.head.bias.detach(), expected[1])


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"optimizer": "adam"}, {"optimizer": "adamw"}, {"clip": 0.1}])
def test_every_optimizer_lowers_the_loss(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    c = client(200, epochs=1, lr=0.02, **settings)
    losses = [c.fit(cross_entropy(c)) for _ in range(4)]
    assert losses[-1] < losses[0]


def test_gradients_are_clipped() -> None:
    c = client(10, lr=1.0, batch=10, clip=1e-3)
    before = [p.detach().clone() for p in c.model.parameters()]
    c.fit(cross_entropy(c))
    moved = sum((p - b).square().sum() for p, b in zip(c.model.parameters(), before, strict=True)).sqrt()
    assert moved.item() == pytest.approx(1e-3, rel=1e-3)


def test_learning_rates_of_rounds() -> None:
    assert Training(lr=0.1).rate(7, 10) == 0.1
    exponential = Training(lr=0.1, schedule="exponential", decay=0.5)
    assert [exponential.rate(r, 9) for r in (1, 2, 3)] == [0.1, 0.05, 0.025]
    cosine = Training(lr=0.1, schedule="cosine")
    assert [round(cosine.rate(r, 4), 6) for r in (1, 3)] == [0.1, 0.05]


@pytest.mark.parametrize("samples", [1, 2, 11])
def test_batchnorm_never_meets_a_batch_of_one(samples: int) -> None:
    c = client(samples, nn.Sequential(nn.Linear(8, toy.DIM), nn.BatchNorm1d(toy.DIM)), batch=10, epochs=2)
    c.fit(cross_entropy(c))
    assert all(torch.isfinite(p).all() for p in c.model.parameters())


def test_a_loss_that_is_not_finite_names_client_round_and_step() -> None:
    c = client(30, batch=10)
    c.begin(12, Streams(0))
    seen: list[int] = []

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        value = F.cross_entropy(c.model(x), y)
        return value * torch.nan if len(seen) == 3 else value

    with pytest.raises(ClientError, match="client 0, round 12: the loss became nan at step 3"):
        c.fit(loss)


def test_each_fit_and_each_epoch_shuffles_anew_and_repeatably() -> None:
    def orders() -> list[list[int]]:
        c, seen = client(20, batch=20, epochs=2), []
        c.begin(1, Streams(5))

        def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            seen.append(y.tolist())
            return F.cross_entropy(c.model(x), y)

        c.fit(loss)
        c.fit(loss)
        return seen

    first = orders()
    assert len({tuple(order) for order in first}) == 4
    assert orders() == first


def test_a_second_model_may_be_trained_along() -> None:
    c, second = client(20), nn.Linear(8, toy.CLASSES)
    before = second.weight.detach().clone()
    c.fit(lambda x, y: F.cross_entropy(c.model(x) + second(x), y), second)
    assert not torch.equal(second.weight, before)


def test_fitting_on_nothing_changes_nothing() -> None:
    c = client(20)
    before = c.model.head.weight.detach().clone()
    assert c.fit(cross_entropy(c), data=c.train.only(torch.arange(0))) == 0
    assert torch.equal(c.model.head.weight, before)


def test_draws_made_aside_do_not_disturb() -> None:
    c = client(4)
    with c.rng.default("x"):
        plain = torch.rand(4)
    with c.rng.default("x"):
        first = torch.rand(2)
        with c.separate_draws("other"):
            a = torch.rand(3)
        rest = torch.rand(2)
        with c.separate_draws("other"):
            b = torch.rand(3)
    assert torch.equal(torch.cat([first, rest]), plain)
    assert not torch.equal(a, b)


def test_features_are_those_of_the_model_in_evaluation_mode() -> None:
    c = client(300, nn.Sequential(nn.Linear(8, toy.DIM), nn.Dropout(0.5)))
    c.model.train()
    z, y = c.features()
    assert z.shape == (300, toy.DIM) and torch.equal(y, toy.BLOBS.y[:300]) and not z.requires_grad
    torch.testing.assert_close(z, c.model.body[0](toy.BLOBS.x[:300]).detach())


def looked_at(c: Client) -> list[int]:
    """From now on: how many samples each pass through the client's body has."""
    found: list[int] = []
    c.model.body.register_forward_hook(lambda module, given, out: found.append(len(given[0])))
    return found


@pytest.mark.parametrize(("samples", "passes"), [(40, [60]), (108, [128]), (109, [109, 13, 7])])
def test_all_samples_of_a_small_client_are_looked_at_together(samples: int, passes: list[int]) -> None:
    c = client(samples)
    c.test, c.validation = Samples(toy.BLOBS, torch.arange(300, 313)), Samples(toy.BLOBS, torch.arange(400, 407))
    found = looked_at(c)
    for _ in range(2):
        assert examine(Local(), c, None).tallies.keys() == {"test", "validation"}
    assert found == passes + passes[1:]  # the second time the features of what was looked at first are known
    z, _ = c.features()
    torch.testing.assert_close(z, c.model.body(toy.BLOBS.x[:samples]).detach())
    for name, part in c.parts.items():
        if name in c.cached_features():
            torch.testing.assert_close(c.cached_features()[name], c.outputs(c.model.features, part)[0])


def test_what_is_known_of_test_samples_is_forgotten_with_the_weights() -> None:
    c = client(40)
    c.test = Samples(toy.BLOBS, torch.arange(300, 313))
    before = examine(Local(), c, None)
    c.model.body.weight.data.neg_()
    found, after = looked_at(c), examine(Local(), c, None)
    assert found == [53]
    assert not torch.equal(before.tallies["test"].certain, after.tallies["test"].certain)


def test_a_rule_that_changes_features_in_place_spoils_nothing() -> None:
    class Rough(Local):
        def predict(self, client: Client, x: Tensor, down: None) -> Tensor:
            return client.model.head(client.model.features(x)).relu_()

    class Rougher(Local):
        def predict(self, client: Client, x: Tensor, down: None) -> Tensor:
            return client.model.head(client.model.features(x).zero_())

    c = client(40)
    c.test = Samples(toy.BLOBS, torch.arange(300, 313))
    known = c.cached_features()["test"].clone()
    for method in (Rough(), Rougher()):
        examine(method, c, None)
        assert torch.equal(c.cached_features()["test"], known)
