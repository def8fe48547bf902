"""The reference generator, against the numbers that it is known to give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protea.core.errors import ConfigError
from protea.data.partition import algorithms, pfllib
from protea.data.partition.algorithms import Positions

# CIFAR-10, training and test part merged, 20 clients, alpha 0.1, seed 1: FedTGP's published config.json.
FEDTGP = [
    [0, 9, 0, 668, 476, 287, 5, 167, 0, 9],
    [7, 1, 62, 0, 43, 0, 0, 177, 1524, 0],
    [0, 0, 16, 158, 1034, 3, 0, 0, 0, 0],
    [0, 402, 12, 7, 0, 0, 1, 0, 1, 1657],
    [24, 0, 5104, 0, 0, 0, 0, 0, 0, 0],
    [2832, 0, 0, 1432, 0, 0, 0, 0, 0, 0],
    [36, 0, 578, 708, 114, 0, 0, 0, 4, 0],
    [0, 210, 2, 30, 962, 1, 0, 2, 0, 1415],
    [0, 18, 0, 137, 11, 0, 0, 2568, 8, 232],
    [2, 0, 0, 2511, 723, 0, 0, 0, 0, 0],
    [454, 0, 2, 0, 0, 0, 0, 53, 655, 0],
    [9, 744, 0, 7, 187, 5, 0, 93, 226, 693],
    [248, 0, 2, 0, 360, 1802, 1, 0, 3581, 0],
    [0, 21, 3, 237, 96, 1161, 0, 9, 0, 0],
    [0, 16, 0, 0, 153, 1, 0, 2930, 0, 0],
    [0, 1394, 157, 28, 18, 0, 735, 0, 0, 1993],
    [2358, 9, 61, 2, 1822, 0, 0, 0, 0, 0],
    [0, 3175, 0, 0, 0, 0, 0, 0, 0, 0],
    [29, 0, 0, 74, 0, 89, 5257, 0, 0, 0],
    [1, 1, 1, 1, 1, 2651, 1, 1, 1, 1],
]


def counts(parts: list[Positions], labels: np.ndarray) -> list[list[int]]:
    return [np.bincount(labels[part], minlength=labels.max() + 1).tolist() for part in parts]


@pytest.mark.parametrize("least", [None, 1, 40])
def test_cifar10_as_published_with_fedtgp(least: int | None) -> None:
    labels = np.arange(60_000) % 10  # the order of the labels does not matter, only how many there are
    parts = algorithms.dirichlet(labels, 20, alpha=0.1, seed=1, dialect="pfllib", least=least)
    assert counts(parts, labels) == FEDTGP


def test_small_dirichlet() -> None:
    labels = np.repeat([0, 1, 2], 12)
    parts = algorithms.dirichlet(labels, 4, alpha=0.5, seed=0, dialect="pfllib", least=1)
    assert counts(parts, labels) == [[8, 1, 0], [3, 8, 0], [0, 0, 11], [1, 3, 1]]


def test_it_is_the_shuffled_samples_that_are_cut() -> None:
    labels = np.repeat([0, 1, 2], 12)
    first = np.arange(12)
    np.random.RandomState(0).shuffle(first)
    parts = algorithms.dirichlet(labels, 4, alpha=0.5, seed=0, dialect="pfllib")
    assert parts[0][:8].tolist() == first[:8].tolist()
    assert parts[1][:3].tolist() == first[8:11].tolist()


@pytest.mark.parametrize(
    ("samples", "classes", "clients", "alpha", "percent"),
    [
        (60_000, 10, 20, 0.1, 74.21),
        (60_000, 10, 10, 0.1, 68.89),
        (60_000, 10, 10, 0.3, 55.06),
        (60_000, 10, 100, 0.1, 76.86),
        (60_000, 100, 20, 0.1, 14.45),
        (60_000, 100, 10, 0.1, 9.39),
        (60_000, 100, 100, 0.1, 23.02),
        (100_000, 200, 20, 0.1, 7.95),
        (60_000, 100, 20, 0.01, 19.98),
        (60_000, 100, 20, 0.5, 7.56),
        (60_000, 100, 20, 1.0, 5.33),
    ],
)
def test_majority_class_of_the_papers_settings(
    samples: int, classes: int, clients: int, alpha: float, percent: float
) -> None:
    labels = np.arange(samples) % classes
    table = np.array(counts(algorithms.dirichlet(labels, clients, alpha=alpha, seed=1, dialect="pfllib"), labels))
    assert 100 * table.max(1).sum() / samples == pytest.approx(percent, abs=0.0051)


def test_clients_are_weighted_alike_in_the_other_mean() -> None:
    table = np.array(FEDTGP)
    assert 100 * (table.max(1) / table.sum(1)).mean() == pytest.approx(72.27, abs=0.005)


def test_pathological_on_cifar10() -> None:
    labels = np.arange(60_000) % 10
    table = counts(algorithms.pathological(labels, 20, classes_per_client=2, seed=1, dialect="pfllib"), labels)
    assert [row[:2] for row in table[:4]] == [[1211, 1055], [385, 865], [1246, 997], [3158, 3083]]
    assert np.flatnonzero(np.array(table[:4]).sum(0)).tolist() == [0, 1]  # a block shares its classes
    assert (np.array(table).sum(0) == 6000).all()


def test_balanced_pathological_on_cifar10() -> None:
    labels = np.arange(60_000) % 10
    parts = algorithms.pathological(labels, 20, classes_per_client=2, seed=1, dialect="pfllib", balanced=True)
    assert [len(part) for part in parts] == [3000] * 20


def test_three_of_ten_classes_for_ten_clients_leave_one_with_a_single_class() -> None:
    labels = np.arange(1000) % 10
    parts = algorithms.pathological(labels, 10, classes_per_client=3, seed=0, dialect="pfllib")
    assert sorted(len(np.unique(labels[part])) for part in parts) == [1, 3, 3, 3, 3, 3, 3, 3, 3, 3]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 6), st.floats(1e-5, 50))
@settings(max_examples=100, deadline=None)
def test_a_disjoint_cover_or_a_clear_refusal(labels: list[int], clients: int, alpha: float) -> None:
    try:
        parts = algorithms.dirichlet(labels, clients, alpha=alpha, seed=0, dialect="pfllib")
    except ConfigError:
        return
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(map(len, parts)) >= 1


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
    st.integers(1, 6),
    st.integers(1, 6),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_pathological_is_a_disjoint_cover_or_a_clear_refusal(
    labels: list[int], clients: int, per_client: int, balanced: bool
) -> None:
    try:
        parts = algorithms.pathological(
            labels, clients, classes_per_client=per_client, seed=0, dialect="pfllib", balanced=balanced
        )
    except ConfigError:
        return
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(map(len, parts)) >= 1


def test_where_the_reference_would_try_for_ever_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pfllib, "TRIES", 20)
    with pytest.raises(ConfigError, match=r"in 20 draws some client always had fewer than 4 samples"):
        algorithms.dirichlet(np.arange(1000) % 10, 200, alpha=0.01, seed=0, dialect="pfllib", least=4)


def test_a_tiny_alpha_that_breaks_the_reference_arithmetic_leaves_all_to_the_last_client() -> None:
    random = np.random.RandomState(0)
    classes = [np.arange(4)]
    assert [len(part) for part in pfllib.attempt(classes, 3, 1e-300, random)] == [0, 0, 4]
