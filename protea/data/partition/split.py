"""The split of a client's own samples into training, validation and test parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from protea.config.sections import Split
from protea.data.partition.pfllib import Positions


@dataclass(frozen=True)
class Share:
    """The rows of the data set that one client has, by part."""

    train: Tensor  # int64 row numbers, as the others
    validation: Tensor
    test: Tensor


def split_positions(
    labels: npt.NDArray[Any],
    settings: Split,
    random: np.random.Generator,
    keys: npt.NDArray[Any] | None = None,
) -> tuple[Positions, Positions, Positions]:
    """Return sorted positions for training, validation and test.

    A client with two samples or more has one to test on, wherever that leaves it one to train
    on.  Stratified, the last sample of a class always stays in training.  With ``keys``, all
    samples of a key stay together.
    """
    if keys is not None:
        return split_keys(keys, settings, random)
    groups = np.zeros(len(labels), np.int64)
    if settings.stratify:
        groups = np.unique(labels, return_inverse=True)[1]
    sizes = np.bincount(groups)
    tests = quotas(sizes, settings.test, sizes - 1, random, at_least=1)
    validations = quotas(sizes, settings.validation, sizes - 1 - tests, random)
    order = random.permutation(len(labels))
    order = order[groups[order].argsort(kind="stable")]  # by groups, each in random order
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order)) - (sizes.cumsum() - sizes)[groups[order]]  # of a sample in its group
    tested, kept_back = rank < tests[groups], rank < (tests + validations)[groups]
    return np.flatnonzero(~kept_back), np.flatnonzero(kept_back & ~tested), np.flatnonzero(tested)


def quotas(
    sizes: Positions, fraction: float, room: Positions, random: np.random.Generator, at_least: int = 0
) -> Positions:
    """Return how many to take of each group, so that the total is right and no group gives more than its ``room``."""
    if not fraction:
        return np.zeros_like(sizes)
    goal = min(max(at_least, int(fraction * sizes.sum() + 0.5)), int(room.sum()))
    taken: Positions = np.minimum(np.floor(fraction * sizes).astype(np.int64), room)
    order = random.permutation(len(sizes))  # among groups equally far from their due, any
    while taken.sum() < goal:
        due = np.where(taken < room, fraction * sizes - taken, -np.inf)
        taken[order[due[order].argmax()]] += 1
    return taken


def split_keys(
    keys: npt.NDArray[Any], settings: Split, random: np.random.Generator
) -> tuple[Positions, Positions, Positions]:
    """Give whole keys, in random order, to the test part until it is about large enough; then to validation."""
    names, index, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    order = random.permutation(len(names))
    reached = np.concatenate([[0], np.cumsum(sizes[order])]) / len(keys)
    tests = min(int(np.abs(reached - settings.test).argmin()), len(names) - 1)
    others = min(int(np.abs(reached - settings.test - settings.validation).argmin()), len(names) - 1)
    place = np.empty(len(names), np.int64)
    place[order] = np.arange(len(names))
    rank = place[index]
    return (
        np.flatnonzero(rank >= others),
        np.flatnonzero((rank >= tests) & (rank < others)),
        np.flatnonzero(rank < tests),
    )
