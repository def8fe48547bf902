"""When a node is late, by times that a reader can check in his head."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

from protea.engines.flower.punctuality import LEAST, Punctuality

TRAIN, BOTH = ("train",), ("evaluate", "train")


def of(factor: float = 2.0, **times: float) -> Punctuality:
    """Nodes 0, 1, ... that have trained once, in so many seconds each."""
    found = Punctuality(factor)
    for place, seconds in enumerate(times.values()):
        found.answered(place, TRAIN, seconds)
    return found


def test_a_node_has_twice_as_long_as_it_and_the_slowest_usually_take() -> None:
    found, asked = of(a=10.0, b=40.0), {0: TRAIN, 1: TRAIN}
    assert found.allowed(0, asked) == found.allowed(1, asked) == 80.0


def test_one_answer_that_took_very_long_changes_little() -> None:
    found = of(a=10.0)
    for seconds in (10.0, 500.0, 10.0):
        found.answered(0, TRAIN, seconds)
    assert found.usual(0, TRAIN) == 10.0


def test_a_node_of_which_nothing_is_known_is_waited_for_until_the_deadline() -> None:
    found = of(a=10.0)
    assert found.allowed(1, {0: TRAIN, 1: TRAIN}) == math.inf
    assert found.allowed(0, {0: TRAIN, 1: TRAIN}) == 20.0


def test_what_was_never_asked_at_once_takes_as_long_as_its_parts() -> None:
    found = of(a=10.0)
    assert found.usual(0, BOTH) == 20.0  # an evaluation takes no longer than a training
    found.answered(0, ("evaluate",), 3.0)
    assert found.usual(0, BOTH) == 13.0
    found.answered(0, BOTH, 12.0)
    assert found.usual(0, BOTH) == 12.0


def test_a_moment_is_not_late() -> None:
    assert of(a=0.1).allowed(0, {0: TRAIN}) == LEAST


def test_nobody_is_late_where_nobody_asks_for_it() -> None:
    assert of(0.0, a=1.0).allowed(0, {0: TRAIN}) == math.inf


def test_who_was_late_sits_out_longer_each_time_and_earns_its_place_back() -> None:
    found = of(a=1.0, b=1.0)

    def sits_out() -> int:
        found.strike(0)
        assert found.late == {0}
        found.back(0)
        assert not found.late
        rounds = 0
        while found.next_round([0, 1]) == {0}:
            rounds += 1
        return rounds

    assert [sits_out() for _ in range(5)] == [0, 1, 3, 7, 7]
    for _ in range(4):
        found.answered(0, TRAIN, 1.0)
    assert sits_out() == 0


def test_who_was_not_late_is_not_back() -> None:
    found = of(a=1.0)
    found.back(0)
    assert found.next_round([0]) == set()
