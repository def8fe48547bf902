"""The data generator of PFLlib and HtFLlib, whose splits FedTGP, FedSA and ProtoNorm report on.

Written from its description; it gives the same samples to the same clients.  The order of
the draws is what makes it the same, so nothing here may be drawn earlier, later or not at all.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from protea.core.errors import ConfigError

Positions = npt.NDArray[np.int64]

TRIES = 1000  # the reference tries for ever


def dirichlet(
    labels: npt.NDArray[Any], clients: int, alpha: float, least: int, random: np.random.RandomState
) -> list[Positions]:
    """Draw the whole partition again and again until the smallest client has ``least`` samples."""
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(TRIES):
        parts = attempt(classes, clients, alpha, random)
        if min(map(len, parts)) >= least:
            return parts
    raise ConfigError(
        f"dirichlet, dialect pfllib: {len(labels)} samples, {clients} clients, alpha {alpha}: "
        f"in {TRIES} draws some client always had fewer than {least} samples.\n"
        f"  Lower least or clients, raise alpha, or set dialect = 'protea', which always ends."
    )


def attempt(classes: list[Positions], clients: int, alpha: float, random: np.random.RandomState) -> list[Positions]:
    """Draw one partition, in which clients may have any number of samples."""
    even = sum(map(len, classes)) / clients
    parts: list[list[Positions]] = [[] for _ in range(clients)]
    held = np.zeros(clients, np.int64)
    for members in classes:
        order = members.copy()
        random.shuffle(order)
        # With all weight on full clients, or a tiny alpha, the reference divides 0 by 0 or inf by inf.
        # Nan as a cutting point then leaves all to its last client.
        with np.errstate(invalid="ignore"):
            weights = random.dirichlet(np.full(clients, alpha)) * (held < even)
            total = weights.sum()
        sound = 0 < total < math.inf
        ends = np.cumsum(weights / total) * len(order) if sound else np.zeros(clients)
        for client, piece in enumerate(np.split(order, ends.astype(np.int64)[:-1])):
            parts[client].append(piece)
            held[client] += len(piece)
    return [np.concatenate(pieces) for pieces in parts]


def pathological(
    labels: npt.NDArray[Any],
    clients: int,
    classes_per_client: int,
    balanced: bool,
    random: np.random.RandomState,
) -> list[Positions]:
    """Give each class to the first clients, by number, that may still take one.

    So clients come in blocks that share the same classes, and unless ``balanced`` the last
    of a block holds most.
    """
    names = np.unique(labels)
    at_once = math.ceil(clients / len(names) * classes_per_client)
    least = int(min(40, len(labels) / clients / 2)) / len(names)
    budget = np.full(clients, classes_per_client)
    parts: list[list[Positions]] = [[] for _ in range(clients)]
    for name in names:
        members = np.flatnonzero(labels == name)
        takers = np.flatnonzero(budget > 0)[:at_once]
        mean = len(members) / max(1, len(takers))
        low, high = int(max(mean / 10, least)), int(mean)
        if not len(takers) or (not balanced and len(takers) > 1 and low >= high):
            raise ConfigError(
                f"pathological, dialect pfllib: class {name} ({len(members)} samples) cannot be spread "
                f"over {len(takers)} clients.\n"
                f"  Use fewer clients, other classes_per_client, or dialect = 'protea'."
            )
        sizes = np.full(len(takers) - 1, high)
        if not balanced:
            sizes = random.randint(low, high, len(takers) - 1)
        for client, piece in zip(takers, np.split(members, np.cumsum(sizes)), strict=True):
            parts[client].append(piece)
        budget[takers] -= 1
    empty = [client for client, pieces in enumerate(parts) if not sum(map(len, pieces))]
    if empty:
        raise ConfigError(
            f"pathological, dialect pfllib: nothing was left for client {empty[0]}.\n"
            f"  Use fewer clients, more classes_per_client, or dialect = 'protea'."
        )
    return [np.concatenate(pieces) for pieces in parts]
