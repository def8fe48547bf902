"""Every partition gives each sample to exactly one client, none goes without, and a seed settles it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protea.core.errors import ConfigError
from protea.core.rng import Streams
from protea.data.partition import algorithms
from protea.data.partition.algorithms import Dialect, Positions

Scheme = Callable[[np.ndarray, int, int], list[Positions]]

SCHEMES: dict[str, Scheme] = {
    "iid": lambda y, m, seed: algorithms.iid(y, m, seed=seed),
    "dirichlet": lambda y, m, seed: algorithms.dirichlet(y, m, alpha=0.1, seed=seed),
    "dirichlet, tiny alpha": lambda y, m, seed: algorithms.dirichlet(y, m, alpha=1e-4, seed=seed),
    "dirichlet, large alpha": lambda y, m, seed: algorithms.dirichlet(y, m, alpha=1e6, seed=seed),
    "shards": lambda y, m, seed: algorithms.shards(y, m, shards_per_client=1, seed=seed),
    "quantity": lambda y, m, seed: algorithms.quantity(y, m, alpha=0.3, seed=seed),
    "pathological": lambda y, m, seed: algorithms.pathological(y, m, classes_per_client=len(np.unique(y)), seed=seed),
}


@st.composite
def labels_and_clients(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    labels = draw(st.lists(st.integers(-3, 6), min_size=1, max_size=120))
    return np.array(labels), draw(st.integers(1, len(labels)))


def counts(parts: list[Positions], labels: np.ndarray) -> list[list[int]]:
    classes = int(labels.max()) + 1
    return [np.bincount(labels[part], minlength=classes).tolist() for part in parts]


@pytest.mark.parametrize("name", SCHEMES)
@given(labels_and_clients(), st.integers(0, 2**63))
@settings(max_examples=60, deadline=None)
def test_every_sample_goes_to_one_client_and_none_goes_without(
    name: str, case: tuple[np.ndarray, int], seed: int
) -> None:
    labels, clients = case
    try:
        parts = SCHEMES[name](labels, clients, seed)
    except ConfigError:
        assert name == "pathological"  # the only one that may find too few samples of a class
        return
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(map(len, parts)) >= 1
    assert all(part.dtype == np.int64 for part in parts)
    again = SCHEMES[name](labels, clients, seed)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(1, 8), st.integers(1, 10))
@settings(max_examples=80, deadline=None)
def test_a_client_short_of_least_is_topped_up(labels: list[int], clients: int, least: int) -> None:
    if clients * least > len(labels):
        with pytest.raises(ConfigError, match=f"need {clients * least}; there are {len(labels)}"):
            algorithms.dirichlet(labels, clients, alpha=0.05, seed=3, least=least)
        return
    parts = algorithms.dirichlet(labels, clients, alpha=0.05, seed=3, least=least)
    assert min(map(len, parts)) >= least
    assert min(map(len, algorithms.quantity(labels, clients, alpha=0.05, seed=3, least=least))) >= least


def test_many_clients_and_a_small_alpha_end() -> None:
    labels = np.repeat(np.arange(10), 100)
    parts = algorithms.dirichlet(labels, 500, alpha=0.01, seed=1)
    assert min(map(len, parts)) == 1  # half the mean size of 2


def test_the_seed_and_the_named_stream_decide() -> None:
    labels = np.arange(50) % 5
    assert counts(algorithms.dirichlet(labels, 4, alpha=0.3, seed=1), labels) != counts(
        algorithms.dirichlet(labels, 4, alpha=0.3, seed=2), labels
    )
    first = np.array_split(Streams(7).at("data").numpy("partition").permutation(50), 4)[0]
    assert algorithms.iid(labels, 4, seed=7)[0].tolist() == sorted(first.tolist())


def test_labels_may_be_a_tensor() -> None:
    labels = torch.arange(40) % 4
    one = algorithms.dirichlet(labels, 3, alpha=0.5, seed=0)
    other = algorithms.dirichlet(labels.numpy(), 3, alpha=0.5, seed=0)
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_alpha_sets_how_much_clients_differ() -> None:
    labels = np.repeat(np.arange(10), 600)
    even = np.array(counts(algorithms.dirichlet(labels, 10, alpha=1e5, seed=1), labels))
    assert abs(even - 60).max() <= 2
    skewed = np.array(counts(algorithms.dirichlet(labels, 10, alpha=0.1, seed=1), labels))
    assert skewed.max(1).sum() / 6000 > 0.5  # of the samples are of their client's commonest class


def test_the_last_client_gets_no_stray_samples() -> None:
    labels = np.repeat(np.arange(10), 6000)
    last = counts(algorithms.dirichlet(labels, 20, alpha=0.1, seed=1), labels)[-1]
    assert last.count(1) < 5  # the reference leaves it one sample of nearly every class


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 99), st.booleans())
@settings(max_examples=60, deadline=None)
def test_pathological_gives_each_client_exactly_its_number_of_classes(
    clients: int, per_client: int, seed: int, balanced: bool
) -> None:
    labels = np.arange(6 * 20) % 6
    if clients * per_client < 6:
        with pytest.raises(ConfigError, match="cannot hold all 6 classes"):
            algorithms.pathological(labels, clients, classes_per_client=per_client, seed=seed)
        return
    parts = algorithms.pathological(labels, clients, classes_per_client=per_client, seed=seed, balanced=balanced)
    assert [len(np.unique(labels[part])) for part in parts] == [per_client] * clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(120))


def test_balanced_pathological_splits_a_class_evenly() -> None:
    labels = np.repeat(np.arange(10), 600)
    even = algorithms.pathological(labels, 20, classes_per_client=2, seed=4, balanced=True)
    assert [len(part) for part in even] == [300] * 20
    uneven = algorithms.pathological(labels, 20, classes_per_client=2, seed=4)
    assert max(map(len, uneven)) > 400


def test_pathological_clients_do_not_come_in_blocks() -> None:
    labels = np.repeat(np.arange(10), 600)
    parts = algorithms.pathological(labels, 20, classes_per_client=2, seed=1)
    assert len({tuple(np.unique(labels[part])) for part in parts}) > 5  # in the reference, 5


def test_pathological_refuses_classes_too_small_to_share() -> None:
    with pytest.raises(ConfigError, match=r"need 8 samples of their own; the 2 classes have 5"):
        algorithms.pathological([0, 0, 0, 0, 0, 1], 4, classes_per_client=2, seed=0)
    with pytest.raises(ConfigError, match=r"classes_per_client is 3; it can be 1 to 2"):
        algorithms.pathological([0, 0, 1, 1], 2, classes_per_client=3, seed=0)


def test_two_shards_hold_at_most_two_classes_when_shards_divide_classes() -> None:
    labels = np.repeat(np.arange(10), 20)
    parts = algorithms.shards(labels, 10, shards_per_client=2, seed=0)
    assert [len(part) for part in parts] == [20] * 10
    assert max(len(np.unique(labels[part])) for part in parts) <= 2


def test_quantity_skews_sizes_and_not_labels() -> None:
    labels = np.arange(10_000) % 2
    parts = algorithms.quantity(labels, 5, alpha=0.5, seed=1)
    sizes = [len(part) for part in parts]
    assert max(sizes) > 2 * min(sizes)
    assert all(abs(labels[part].mean() - 0.5) < 0.1 for part in parts if len(part) > 500)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 10), st.integers(0, 9))
@settings(max_examples=80, deadline=None)
def test_a_key_is_never_split(keys: list[int], clients: int, seed: int) -> None:
    if len(set(keys)) < clients:
        with pytest.raises(ConfigError, match=f"only {len(set(keys))} keys|there are {len(keys)}"):
            algorithms.by_key(keys, clients, seed=seed)
        return
    parts = algorithms.by_key(keys, clients, seed=seed)
    held = [{keys[row] for row in part} for part in parts]
    assert sum(map(len, held)) == len(set(keys))
    assert all(held)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(keys)))


def test_as_many_keys_as_clients_means_one_each_in_sorted_order() -> None:
    parts = algorithms.by_key(np.array(["oslo", "bern", "oslo", "rome"]), 3, seed=5)
    assert [part.tolist() for part in parts] == [[1], [0, 2], [3]]


def test_more_keys_are_dealt_out_by_size() -> None:
    keys = np.repeat(np.arange(5), [50, 30, 20, 25, 25])
    assert sorted(len(part) for part in algorithms.by_key(keys, 2, seed=0)) == [75, 75]


@pytest.mark.parametrize("dialect", ["protea", "pfllib"])
@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.integers(1, 6), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_dirichlet_by_key_never_splits_a_key(dialect: Dialect, keys: list[int], clients: int, seed: int) -> None:
    labels = [7 * row % 3 for row in range(len(keys))]
    if len(set(keys)) < clients:
        with pytest.raises(ConfigError, match=f"need {clients}; there are {len(set(keys))}, and a key is never split"):
            algorithms.dirichlet(labels, clients, alpha=0.5, seed=seed, dialect=dialect, keys=keys)
        return
    parts = algorithms.dirichlet(labels, clients, alpha=0.5, seed=seed, dialect=dialect, keys=keys)
    held = [{keys[row] for row in part} for part in parts]
    assert sum(map(len, held)) == len(set(keys))
    assert all(held)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(keys)))


def test_a_key_counts_as_its_commonest_label() -> None:
    owner, commonest = algorithms.commonest_labels(["b", "b", "a", "c", "c"], ["x", "x", "x", "y", "w"])
    assert owner.tolist() == [1, 1, 1, 2, 0]
    assert commonest.tolist() == ["c", "b", "c"]  # of w, x, y


def test_keys_of_a_small_alpha_are_as_uneven_as_samples() -> None:
    keys = np.repeat(np.arange(600), 3)
    labels = keys % 6
    labels[::3] = 0  # one of a patient's three notes says nothing about the patient
    parts = algorithms.dirichlet(labels, 6, alpha=0.1, seed=1, keys=keys)
    most = [np.bincount(keys[part] % 6).max() / len(part) for part in parts]
    assert np.mean(most) > 0.5
    even = algorithms.dirichlet(labels, 6, alpha=1e5, seed=1, keys=keys)
    assert max(abs(len(part) - 300) for part in even) <= 18


def test_keys_that_each_have_one_sample_change_nothing() -> None:
    labels = np.arange(90) % 4
    with_keys = algorithms.dirichlet(labels, 5, alpha=0.3, seed=2, keys=np.arange(90))
    without = algorithms.dirichlet(labels, 5, alpha=0.3, seed=2)
    assert all(np.array_equal(one, other) for one, other in zip(with_keys, without, strict=True))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: algorithms.iid([0, 1], 3, seed=0), "there are 2"),
        (lambda: algorithms.iid([0, 1], 0, seed=0), "clients is 0"),
        (lambda: algorithms.iid(np.zeros((2, 2)), 1, seed=0), r"shape \(2, 2\)"),
        (lambda: algorithms.dirichlet([0, 1], 1, alpha=0, seed=0), "alpha is 0"),
        (lambda: algorithms.dirichlet([0, 1], 1, alpha=float("nan"), seed=0), "alpha is nan"),
        (lambda: algorithms.dirichlet([0, 1], 1, alpha=1, seed=0, least=0), "least is 0"),
        (lambda: algorithms.dirichlet([0, 1], 1, alpha=1, seed=0, dialect="pflib"), "Did you mean pfllib?"),  # type: ignore[arg-type]
        (lambda: algorithms.dirichlet([0, 1], 1, alpha=1, seed=-1, dialect="pfllib"), "seed -1"),
        (lambda: algorithms.dirichlet([0, 1], 1, alpha=1, seed=0, keys=[0]), "2 labels but 1 keys"),
        (lambda: algorithms.dirichlet([0, 1, 1], 1, alpha=1, seed=0, keys=[0, 1, 1], least=3), "3 keys each need 3"),
        (lambda: algorithms.shards([0, 1], 2, shards_per_client=2, seed=0), "need 4; there are 2"),
        (lambda: algorithms.shards([0, 1], 2, shards_per_client=0, seed=0), "at least 1"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()
