"""Partitions: functions that distribute the samples of a data set over clients.

Each is pure: labels (or keys) and a seed give one sorted array of positions per client.  Every
sample goes to exactly one client, and every client has at least one; where that cannot be, a
:class:`ConfigError` says so.  ``protea.data.partition.schemes`` has them as settings of an experiment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from torch import Tensor

from protea.core.errors import ConfigError, nearest
from protea.core.rng import Streams
from protea.data.partition import pfllib
from protea.data.partition.pfllib import Positions

Labels = npt.NDArray[Any] | Tensor | Sequence[Any]
Dialect = Literal["protea", "pfllib"]


def iid(labels: Labels, clients: int, *, seed: int) -> list[Positions]:
    """Shuffle the samples and cut them into even pieces."""
    labels = checked_labels(labels, clients)
    return in_order(np.array_split(stream(seed).permutation(len(labels)), clients))


def dirichlet(
    labels: Labels,
    clients: int,
    *,
    alpha: float,
    seed: int,
    dialect: Dialect = "protea",
    least: int | None = None,
    keys: Labels | None = None,
) -> list[Positions]:
    """Spread each class over the clients in proportions drawn from Dirichlet(alpha).

    A client that has its even share of all samples gets nothing of the classes that follow.

    ``pfllib`` is the generator of PFLlib and HtFLlib to the sample.  It draws anew until every
    client has ``least`` samples: 1 where not given, as in the version that FedSA and ProtoNorm
    used; since March 2024 it is min(40, half the mean size).

    ``protea`` always ends: a client short of ``least`` (10, or half the mean size if that is
    less) takes samples from the largest one.  It also rounds fairly, where the reference
    leaves the last client one stray sample of nearly every class.

    With ``keys``, whole keys (users, sites, patients) are dealt out in place of samples, each by
    its commonest label; ``least`` then counts keys.
    """
    if keys is not None:
        owner, commonest = commonest_labels(labels, keys)
        if (needed := clients * (least or 1)) > len(commonest):
            raise ConfigError(
                f"dirichlet: {clients} clients with at least {least or 1} keys each need {needed}; there are "
                f"{len(commonest)}, and a key is never split.\n  Use fewer clients or a smaller least."
            )
        dealt = dirichlet(commonest, clients, alpha=alpha, seed=seed, dialect=dialect, least=least)
        return [np.flatnonzero(np.isin(owner, part)) for part in dealt]
    if least is None:
        least = 1 if dialect == "pfllib" else usual_least(labels, clients)
    labels = checked_labels(labels, clients, least, alpha, dialect)
    if dialect == "pfllib":
        return pfllib.dirichlet(labels, clients, alpha, least, legacy_stream(seed))
    random = stream(seed)
    parts = [[np.empty(0, np.int64)] for _ in range(clients)]
    held = np.zeros(clients, np.int64)
    for name in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == name))
        # Dirichlet over some of the clients is Dirichlet over all of them, cut down and normalised.
        takers = np.flatnonzero(held < len(labels) / clients)
        sizes = portions(len(members), random.dirichlet(np.full(len(takers), alpha)))
        for client, piece in zip(takers, np.split(members, np.cumsum(sizes)[:-1]), strict=True):
            parts[client].append(piece)
        held[takers] += sizes
    return in_order(top_up([np.concatenate(pieces) for pieces in parts], least, random))


def pathological(
    labels: Labels,
    clients: int,
    *,
    classes_per_client: int,
    seed: int,
    dialect: Dialect = "protea",
    balanced: bool = False,
) -> list[Positions]:
    """Give each client samples of ``classes_per_client`` classes only.

    Within a class its clients get even shares, or, if not ``balanced``, shares that differ up
    to tenfold.  ``protea`` mixes the classes at random and keeps the number of classes exactly;
    ``pfllib`` deals them out in blocks, as PFLlib and HtFLlib do.
    """
    labels = checked_labels(labels, clients, dialect=dialect)
    names, sizes = np.unique(labels, return_counts=True)
    slots = clients * classes_per_client
    if not 1 <= classes_per_client <= len(names):
        raise ConfigError(
            f"pathological: classes_per_client is {classes_per_client}; it can be 1 to {len(names)}, "
            f"as there are {len(names)} classes."
        )
    if slots < len(names):
        raise ConfigError(
            f"pathological: {clients} clients with {classes_per_client} classes each "
            f"cannot hold all {len(names)} classes.\n"
            f"  Set classes_per_client to at least {math.ceil(len(names) / clients)}, or take more clients."
        )
    if dialect == "pfllib":
        return pfllib.pathological(labels, clients, classes_per_client, balanced, legacy_stream(seed))
    room = np.minimum(sizes, clients)
    if room.sum() < slots:
        raise ConfigError(
            f"pathological: {clients} clients with {classes_per_client} classes each need {slots} samples "
            f"of their own; the {len(names)} classes have {room.sum()}.\n"
            f"  Use fewer clients or fewer classes_per_client."
        )
    random = stream(seed)
    holders = even_counts(room, slots, random)
    budget = np.full(clients, classes_per_client)
    parts: list[list[Positions]] = [[] for _ in range(clients)]
    for index in random.permutation(len(names)):
        members = random.permutation(np.flatnonzero(labels == names[index]))
        order = random.permutation(clients)  # of those with most classes to go, any
        takers = order[np.argsort(-budget[order], kind="stable")[: holders[index]]]
        budget[takers] -= 1
        weights = np.ones(len(takers)) if balanced else random.uniform(0.1, 1, len(takers))
        shares = 1 + portions(len(members) - len(takers), weights)
        for client, piece in zip(takers, np.split(members, np.cumsum(shares)[:-1]), strict=True):
            parts[client].append(piece)
    return in_order([np.concatenate(pieces) for pieces in parts])


def shards(labels: Labels, clients: int, *, shards_per_client: int, seed: int) -> list[Positions]:
    """Sort samples by label, cut them into even shards, and deal these out at random (McMahan et al., 2017)."""
    if shards_per_client < 1:
        raise ConfigError(f"shards: shards_per_client is {shards_per_client}; it must be at least 1.")
    labels = checked_labels(labels, clients, shards_per_client)
    random = stream(seed)
    order = random.permutation(len(labels))
    pieces = np.array_split(order[np.argsort(labels[order], kind="stable")], clients * shards_per_client)
    dealt = random.permutation(len(pieces)).reshape(clients, shards_per_client)
    return in_order([np.concatenate([pieces[piece] for piece in hand]) for hand in dealt])


def quantity(labels: Labels, clients: int, *, alpha: float, seed: int, least: int | None = None) -> list[Positions]:
    """Draw client sizes from Dirichlet(alpha), with the same mix of labels for all; ``least`` as in ``dirichlet``."""
    least = usual_least(labels, clients) if least is None else least
    labels = checked_labels(labels, clients, least, alpha)
    random = stream(seed)
    sizes = portions(len(labels), random.dirichlet(np.full(clients, alpha)))
    parts = np.split(random.permutation(len(labels)), np.cumsum(sizes)[:-1])
    return in_order(top_up(parts, least, random))


def by_key(keys: Labels, clients: int, *, seed: int) -> list[Positions]:
    """Give all samples of a key (a user, a site, a patient) to one client.

    With as many keys as clients, client i has the i-th key in sorted order.  With more, each
    key, largest first, goes to the client that has least so far.
    """
    keys = checked_labels(keys, clients)
    names, index, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    if len(names) < clients:
        raise ConfigError(
            f"by-key: {clients} clients but only {len(names)} keys, and a key is never split.\n"
            f"  Set clients to {len(names)} or fewer."
        )
    owner = np.arange(len(names))
    if len(names) > clients:
        order = stream(seed).permutation(len(names))  # keys of the same size in any order
        load = np.zeros(clients, np.int64)
        for key in order[np.argsort(-sizes[order], kind="stable")]:
            owner[key] = load.argmin()
            load[owner[key]] += sizes[key]
    return [np.flatnonzero(owner[index] == client) for client in range(clients)]


def commonest_labels(labels: Labels, keys: Labels) -> tuple[Positions, npt.NDArray[Any]]:
    """Return the number of each sample's key, and for each key the label that most of its samples have."""
    owner = np.unique(checked_labels(keys, 1), return_inverse=True)[1]
    names, codes = np.unique(checked_labels(labels, 1), return_inverse=True)
    if len(owner) != len(codes):
        raise ConfigError(f"partition: {len(codes)} labels but {len(owner)} keys; each sample needs one of both.")
    counts = np.zeros((owner.max() + 1, len(names)), np.int64)
    np.add.at(counts, (owner, codes), 1)
    return owner, names[counts.argmax(1)]


def stream(seed: int) -> np.random.Generator:
    """Return the random generator of partitions."""
    return Streams(seed).at("data").numpy("partition")


def legacy_stream(seed: int) -> np.random.RandomState:
    """Return NumPy's old generator, which the dialect ``pfllib`` needs."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"dialect pfllib: seed {seed} does not fit its generator; it can be 0 to {2**32 - 1}.")
    return np.random.RandomState(seed)


def checked_labels(
    labels: Labels, clients: int, least: int = 1, alpha: float = 1.0, dialect: Dialect = "protea"
) -> npt.NDArray[Any]:
    """Return the labels as an array; raise :class:`ConfigError` unless each client can have ``least`` samples."""
    array = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 1:
        raise ConfigError(f"partition: one label for each sample is needed; found an array of shape {array.shape}.")
    if dialect not in get_args(Dialect):
        raise ConfigError(f"partition: there is no dialect {dialect!r}.  {nearest(dialect, get_args(Dialect))}")
    if clients < 1 or least < 1:
        raise ConfigError(f"partition: clients is {clients} and least is {least}; both must be 1 or more.")
    if not 0 < alpha < math.inf:
        raise ConfigError(f"partition: alpha is {alpha}; it must be a positive number, such as 0.1.")
    if clients * least > len(array):
        raise ConfigError(
            f"partition: {clients} clients with at least {least} samples each need {clients * least}; "
            f"there are {len(array)}.\n  Set clients to {len(array) // least} or fewer."
        )
    return array


def usual_least(labels: Labels, clients: int) -> int:
    """Return how many samples a client has at least if nothing is said: 10, or half the mean size if that is less."""
    return max(1, min(10, len(labels) // (2 * max(1, clients))))


def portions(total: int, weights: npt.NDArray[np.float64]) -> Positions:
    """Divide ``total`` into whole numbers in the ratio of the weights, by the method of largest remainders."""
    exact = total * weights / weights.sum()
    whole: Positions = np.floor(exact).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: total - whole.sum()]] += 1
    return whole


def even_counts(room: Positions, total: int, random: np.random.Generator) -> Positions:
    """Deal ``total`` out one by one, always to a place that has least and still has room; return the counts."""
    order = random.permutation(len(room))
    counts = np.zeros(len(room), np.int64)
    for _ in range(total):
        counts[order[np.where(counts < room, counts, total)[order].argmin()]] += 1
    return counts


def top_up(parts: Sequence[npt.NDArray[Any]], least: int, random: np.random.Generator) -> list[npt.NDArray[Any]]:
    """Move random samples from the largest client to clients that have fewer than ``least``."""
    parts = list(parts)
    for client in range(len(parts)):
        while (short := least - len(parts[client])) > 0:
            giver = max(range(len(parts)), key=lambda other: len(parts[other]))
            given, kept = np.split(random.permutation(parts[giver]), [min(short, len(parts[giver]) - least)])
            parts[giver], parts[client] = kept, np.concatenate([parts[client], given])
    return parts


def in_order(parts: Sequence[npt.NDArray[Any]]) -> list[Positions]:
    """Return the positions of each client sorted, as int64."""
    return [np.sort(part).astype(np.int64) for part in parts]
