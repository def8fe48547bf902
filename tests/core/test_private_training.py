"""``training.dp``: DP-SGD, step by step, and what cannot train so."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
import wanted
from contract import play, workers
from night import by_night
from torch import Tensor, nn

from protea import Client, SplitModel
from protea.config.experiment import experiment_from_table
from protea.core.accounting import Budget
from protea.core.errors import ConfigError, PrivacyError
from protea.core.ledger import history_of
from protea.core.private_sgd import PrivateTraining, poisson_batches
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.training import Training
from protea.engines.inline import Inline
from protea.methods.fedavg import FedAvg
from protea.methods.fedkd import FedKD
from protea.methods.fedmrl import FedMRL
from protea.methods.fml import FML
from protea.methods.local import Local
from protea.runs.simulation import Simulation

wanted.extra("privacy")


def client(samples: int, dp: PrivateTraining, body: nn.Module | None = None, **training: Any) -> Client:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = SplitModel(body or nn.Linear(8, toy.DIM), nn.Identity(), nn.Linear(toy.DIM, toy.CLASSES))
    train = Samples(toy.BLOBS, torch.arange(samples))
    return Client(0, model, train, toy.CLASSES, toy.DIM, Streams(0), training=Training(dp=dp, **training))


def weights(c: Client) -> Tensor:
    return torch.cat([p.detach().flatten() for p in c.model.parameters()])


def test_a_step_is_the_mean_of_shortened_gradients_of_single_records() -> None:
    """With a batch as large as the data every record is in it, and with next to no noise the step is known."""
    c = client(6, PrivateTraining(noise=1e-9, clip=0.5), batch=6, lr=0.1)
    before, x, y = weights(c), *c.train.batch(torch.arange(6))
    expected = torch.zeros_like(before)
    for row in range(6):
        loss = F.cross_entropy(c.model(x[row : row + 1]), y[row : row + 1])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(c.model.parameters()))])
        assert gradient.norm() > 0.5  # all are shortened
        expected += gradient * (0.5 / gradient.norm()) / 6
    c.fit(lambda x, y: F.cross_entropy(c.model(x), y))
    torch.testing.assert_close(weights(c), before - 0.1 * expected, atol=1e-6, rtol=1e-4)
    assert history_of(c.memory) == [(1e-9, 1.0, 1)]
    assert not any("grad_sample" in vars(p) for p in c.model.parameters())


def test_one_record_moves_a_step_by_the_clip_at_most_whatever_the_loss_does_within_a_batch() -> None:
    """A loss that compares the records of a batch would undo the bound, if it saw more than one of them."""

    def step(rows: Tensor) -> Tensor:
        c = client(12, PrivateTraining(noise=1e-9, clip=0.5), batch=12, lr=1.0)
        c.train = Samples(toy.BLOBS, rows)
        c.training = Training(dp=PrivateTraining(noise=1e-9, clip=0.5), batch=len(rows), lr=float(len(rows)))
        before = weights(c)
        c.fit(lambda x, y: F.cross_entropy(c.model(x), y) + 50 * c.model(x).mean(0).square().sum())
        return weights(c) - before

    whole = step(torch.arange(12))
    for blank in range(0, 12, 4):
        assert (whole - step(torch.tensor([row for row in range(12) if row != blank]))).norm() <= 0.5 + 1e-4


def test_large_batches_are_taken_in_chunks_and_the_noise_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for chunk in (1 << 24, 1000):  # numbers: all at once, or four records
        monkeypatch.setattr("protea.core.private_sgd.CHUNK", chunk)
        c = client(30, PrivateTraining(noise=1.0), batch=15)
        c.fit(lambda x, y, c=c: F.cross_entropy(c.model(x), y))
        found.append(weights(c))
    torch.testing.assert_close(*found)


def test_batches_are_drawn_record_by_record() -> None:
    event = (1.0, 0.25, 400)
    sizes = [len(rows) for rows in poisson_batches(40, event, torch.Generator().manual_seed(1))]
    assert len(sizes) == 400 and sum(sizes) / 400 == pytest.approx(10, rel=0.05)
    assert torch.tensor(sizes).double().var().item() == pytest.approx(40 * 0.25 * 0.75, rel=0.25)


def test_an_empty_batch_takes_a_step_of_noise_alone() -> None:
    c = client(3, PrivateTraining(noise=1.0), batch=1, epochs=4)
    before = weights(c)
    c.train = Samples(toy.BLOBS, torch.arange(3))
    c.fit(lambda x, y: F.cross_entropy(c.model(x), y))  # twelve steps at a third: some have no record
    assert not torch.equal(weights(c), before) and weights(c).isfinite().all()


def test_batchnorm_is_refused_with_a_remedy_before_any_work() -> None:
    table = {"training": {"dp": {"noise": 1.0}}, "models": {"family": "tiny_resnet"}}
    with pytest.raises(ConfigError, match=r"training.dp: tiny_resnet has BatchNorm2d .*GroupNorm.*ModuleValidator.fix"):
        Simulation(experiment_from_table(table)).prepare(None)
    c = client(10, PrivateTraining(noise=1.0), nn.Sequential(nn.Linear(8, toy.DIM), nn.BatchNorm1d(toy.DIM)))
    with pytest.raises(ConfigError, match="BatchNorm1d"):
        c.fit(lambda x, y: F.cross_entropy(c.model(x), y))
    for p in c.model.body.parameters():  # frozen, it stays as it is
        p.requires_grad_(False)
    c.fit(lambda x, y: F.cross_entropy(c.model(x), y))


def test_training_stops_before_the_budget_is_passed() -> None:
    c = client(40, PrivateTraining(noise=3.0, budget=Budget(epsilon=1.2)), batch=10)
    c.begin(1, Streams(0).at("round", 1))
    with pytest.raises(PrivacyError, match=r"client 0, round \d+: the privacy budget is spent"):
        for round in range(1, 50):
            c.begin(round, Streams(0).at("round", round))
            before = weights(c)
            c.fit(lambda x, y: F.cross_entropy(c.model(x), y))
    assert torch.equal(weights(c), before) and round > 1


@pytest.mark.parametrize(
    "method", [FedAvg(), FedMRL(), *by_night(FML(), FedKD(), Local())], ids=lambda method: type(method).__name__
)
def test_private_training_is_the_same_on_every_engine(method: Any) -> None:
    training = Training(epochs=1, batch=16, lr=0.05, dp=PrivateTraining(noise=1.0))
    build = partial(toy.build, training=training, same_architecture=True)
    here = play(method, Inline, build=build, rounds=2)
    assert play(method, workers(2), build=build, rounds=2) == here
    assert any("privacy" in line for line in here["records"] if line["kind"] == "client")


def test_no_record_weighs_much_after_private_training() -> None:
    """The same seed with one label changed: plain training follows it, private training hardly does."""
    far = []
    for dp in (None, PrivateTraining(noise=1e-9, clip=0.01)):
        found = []
        for label in (0, 5):
            c = client(20, PrivateTraining(noise=1.0), batch=5, epochs=3, lr=0.1)
            c.training = Training(batch=5, epochs=3, lr=0.1, dp=dp)
            c.train.y[0] = label
            c.fit(lambda x, y, c=c: F.cross_entropy(c.model(x), y))
            found.append(weights(c))
        far.append((found[0] - found[1]).norm().item())
    assert far[1] < far[0] / 5


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"dp": {"noise": 0.0}}, r"training.dp.noise = 0.0: input should be greater than 0"),
        ({"dp": {"noise": 1.0, "clip": -1.0}}, r"training.dp.clip = -1.0: input should be greater than 0"),
        ({"dp": {"clip": 1.0}}, r"training.dp.noise"),
        ({"dp": {"noise": 1.0, "sigma": 2.0}}, r"training.dp.sigma"),
        ({"dp": {"noise": 1.0, "budget": {"delta": 2.0}}}, r"training.dp.budget.delta"),
        ({"dp": {"noise": 1.0}, "clip": 5.0}, r"training.clip is 5 beside training.dp"),
    ],
)
def test_wrong_values_are_refused_before_any_work(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        experiment_from_table({"training": settings})
