from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protea.config.sections import Split
from protea.core.errors import ConfigError
from protea.data.partition.split import split_positions


def cut(labels: list[int], settings: Split, keys: list[int] | None = None) -> list[list[int]]:
    whose = None if keys is None else np.array(keys)
    parts = split_positions(np.array(labels), settings, np.random.default_rng(0), whose)
    return [part.tolist() for part in parts]


fractions = st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.4])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=80), fractions, fractions, st.booleans())
@settings(max_examples=150, deadline=None)
def test_parts_are_disjoint_and_all_and_there_is_always_something_to_train_on(
    labels: list[int], test: float, validation: float, stratify: bool
) -> None:
    parts = cut(labels, Split(test, validation, stratify))
    assert sorted(row for part in parts for row in part) == list(range(len(labels)))
    assert parts[0]
    if stratify:
        assert {labels[row] for row in parts[0]} == set(labels)


def test_ten_of_two_classes() -> None:
    train, validation, test = cut([0] * 10 + [1] * 10, Split(test=0.2, validation=0.1))
    labels = np.array([0] * 10 + [1] * 10)
    assert [np.bincount(labels[part]).tolist() for part in (train, validation, test)] == [
        [7, 7],
        [1, 1],
        [2, 2],
    ]


def test_many_small_classes_still_give_a_test_part_of_the_right_size() -> None:
    labels = list(range(10)) * 2  # two of each: a fifth of each class, rounded, would be none
    train, validation, test = cut(labels, Split(test=0.2, validation=0.1))
    assert (len(train), len(validation), len(test)) == (14, 2, 4)


def test_a_class_with_one_sample_stays_in_training() -> None:
    train, _, test = cut([0, 1, 2, 3, 3, 3, 3], Split(test=0.4, validation=0))
    assert {0, 1, 2} <= set(train)
    assert len(test) == 3


def test_two_samples_are_one_to_train_on_and_one_to_test_on() -> None:
    assert [len(part) for part in cut([0, 0], Split())] == [1, 0, 1]
    assert [len(part) for part in cut([0], Split())] == [1, 0, 0]


def test_without_stratify_a_class_may_be_tested_only() -> None:
    labels = list(range(40))
    train, _, test = cut(labels, Split(test=0.25, validation=0, stratify=False))
    assert (len(train), len(test)) == (30, 10)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60))
@settings(max_examples=80, deadline=None)
def test_a_key_is_in_one_part_only(keys: list[int]) -> None:
    parts = cut([0] * len(keys), Split(test=0.3, validation=0.2), keys)
    held = [{keys[row] for row in part} for part in parts]
    assert sum(map(len, held)) == len(set(keys))
    assert sorted(row for part in parts for row in part) == list(range(len(keys)))
    assert parts[0]


def test_ten_keys_of_ten() -> None:
    keys = [key for key in range(10) for _ in range(10)]
    assert [len(part) for part in cut([0] * 100, Split(test=0.2, validation=0.1), keys)] == [70, 10, 20]


@pytest.mark.parametrize(("test", "validation"), [(0.6, 0.4), (-0.1, 0.0), (0.5, 0.7)])
def test_nothing_left_to_train_on_is_refused(test: float, validation: float) -> None:
    with pytest.raises(ConfigError, match="leave nothing to train on"):
        Split(test, validation)
