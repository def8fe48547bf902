"""The filter noise: how far one record moves what it hides, what leaves, and where its draws come from."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from protea import Prototypes
from protea.config.experiment import experiment_from_table
from protea.core.errors import ConfigError
from protea.core.payload import pack
from protea.core.prototypes import shortened
from protea.core.rng import Streams
from protea.filters.base import Passage
from protea.filters.noise import Noise
from protea.methods.fedpkd import DualKnowledge

CLASSES, DIM = 4, 3


def at(client: int = 0, system: bool = False) -> Passage:
    return Passage(client, 1, Prototypes, CLASSES, DIM, Streams(1).at("client", client), system)


def statistic(z: torch.Tensor, y: torch.Tensor, filter: Noise, presence: bool) -> torch.Tensor:
    """What the noise is added to, in units of its standard deviation: sums and counts, from what a method packs."""
    own = Prototypes.of(shortened(z, filter.clip), y, CLASSES)
    if presence:  # as FedTGP sends them: means, and which there are
        own = Prototypes(own.vectors, own.present.float())
    sums = shortened(own.vectors.double(), filter.clip) * own.counts.double().unsqueeze(1)
    return torch.cat([(sums / (filter.noise * filter.clip)).flatten(), own.counts.double() / filter.count_noise])


@pytest.mark.parametrize("presence", [False, True])
def test_one_record_moves_a_release_by_mu_at_most_and_some_do(presence: bool) -> None:
    """Brute force over small data sets of extreme records: each is blanked in turn."""
    filter, corners = Noise(clip=2.0, noise=1.5, counts=4.0), torch.tensor([[9.0, 0, 0], [-9, 0, 0], [0, 0.5, 0]])
    farthest = 0.0
    for size in (1, 2, 3):
        records = list(itertools.product(range(len(corners)), range(2)))  # a feature, a class
        for chosen in itertools.combinations_with_replacement(records, size):
            z, y = corners[[c for c, _ in chosen]], torch.tensor([label for _, label in chosen])
            whole = statistic(z, y, filter, presence)
            for blank in range(size):
                rest = torch.arange(size) != blank
                moved = (whole - statistic(z[rest], y[rest], filter, presence)).norm().item()
                farthest = max(farthest, moved)
    assert farthest == pytest.approx(filter.mu, rel=1e-6)  # the bound is reached, and never passed


def test_noise_has_the_size_that_is_accounted_for() -> None:
    filter = Noise(clip=50.0, noise=0.1, counts=2.0, least=1.0)  # noise of 5 on sums
    own = Prototypes(torch.tensor([[3.0, 4.0, 0.0]] * CLASSES), torch.full((CLASSES,), 1000.0))
    found = [filter.noisy(own, at(client)) for client in range(400)]
    counts = torch.stack([each.counts for each in found]) - 1000
    sums = torch.stack([each.vectors * each.counts.unsqueeze(1) for each in found]) - 1000 * own.vectors
    assert counts.std().item() == pytest.approx(math.sqrt(4 + 1 / 12), rel=0.06)  # whole numbers
    assert sums.std().item() == pytest.approx(5.0, rel=0.06)
    assert abs(sums.mean().item()) < 0.3


def test_all_classes_get_noise_and_only_noisy_counts_decide_which_are_sent() -> None:
    filter = Noise(clip=1.0, noise=1.0, counts=1.0, least=0.0)
    one = Prototypes(torch.tensor([[1.0, 0, 0]] + 3 * [[0.0, 0, 0]]), torch.tensor([3.0, 0, 0, 0]))
    sent = torch.stack([filter.noisy(one, at(client)).present for client in range(200)]).float().mean(0)
    assert sent[0] > 0.95
    assert ((sent[1:] > 0.2) & (sent[1:] < 0.45)).all()  # an absent class seems present where its noise is above 1/2
    careful = Noise(clip=1.0, noise=1.0, counts=1.0)  # two standard deviations
    seen = torch.stack([careful.noisy(one, at(client)).present for client in range(400)]).float().mean(0)
    assert seen[1:].max() < 0.12


def test_what_leaves_is_a_payload_like_any_other() -> None:
    own = Prototypes(torch.randn(CLASSES, DIM), torch.tensor([30.0, 0.0, 50.0, 1.0]))
    up = Noise(clip=1.0, noise=0.5).leave(pack(own), at())
    found = Prototypes.from_flat(up)
    found.check(CLASSES, DIM)
    assert found.present[0] and found.present[2]
    assert found.vectors.norm(dim=1).max() <= 1 + 1e-5


def test_only_class_vectors_get_noise() -> None:
    own = Prototypes(torch.randn(CLASSES, DIM), torch.tensor([30.0, 40.0, 50.0, 20.0]))
    up = pack(DualKnowledge(own, torch.ones(5, CLASSES)))
    left = Noise().leave(up, replace(at(), kind=DualKnowledge))
    assert {name for name in up if up[name].equal(left[name])} == {"logits"}


def test_draws_are_named_in_simulations_and_nobody_s_at_a_site() -> None:
    own = Prototypes(torch.randn(CLASSES, DIM), torch.full((CLASSES,), 40.0))
    filter = Noise(noise=0.5)
    assert torch.equal(filter.noisy(own, at()).vectors, filter.noisy(own, at()).vectors)
    assert not torch.equal(filter.noisy(own, at(0)).vectors, filter.noisy(own, at(1)).vectors)
    drawn = [filter.noisy(own, at(system=True)).vectors for _ in range(2)]
    assert not torch.equal(*drawn)
    wide = Prototypes(torch.zeros(1, 20_000), torch.tensor([1000.0]))
    noise = Noise(clip=1000.0, noise=0.001, counts=0.001).noisy(wide, at(system=True)).vectors * 1000
    assert noise.std().item() == pytest.approx(1.0, rel=0.03)
    assert (noise.abs() < 1).float().mean().item() == pytest.approx(0.683, abs=0.02)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"clip": 0.0}, r"filters\[0\].clip = 0.0: input should be greater than 0"),
        ({"noise": -1.0}, r"filters\[0\].noise = -1.0: input should be greater than 0"),
        ({"counts": 0.0}, r"filters\[0\].counts"),
        ({"least": -1.0}, r"filters\[0\].least"),
        ({"least": float("inf")}, r"filters\[0\].least = inf: input should be a finite number"),
        ({"budget": {"epsilon": 0.0}}, r"filters\[0\].budget.epsilon = 0.0: input should be greater than 0"),
        ({"budget": {"delta": 1.0}}, r"filters\[0\].budget.delta = 1.0: input should be less than 1"),
        ({"sigma": 1.0}, r"filters\[0\].sigma is not a setting of noise"),
    ],
)
def test_wrong_values_are_refused_before_any_work(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        experiment_from_table({"filters": [{"name": "noise", **settings}]})


def test_noise_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="noise is there twice"):
        experiment_from_table({"filters": ["noise", {"name": "noise", "budget": {"epsilon": 1.0}}]})


def test_a_method_without_class_vectors_is_refused() -> None:
    table = {"method": {"name": "fedavg"}, "models": {"family": "tiny_mlp"}, "filters": ["noise"]}
    with pytest.raises(ConfigError, match="the filter noise is for class vectors, and fedavg sends none"):
        experiment_from_table(table)
