"""The functions of ``protea.data.partition.algorithms`` as settings: ``partition = { kind = "iid" }``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import PositiveFloat, PositiveInt

from protea.core.errors import ConfigError
from protea.data.partition import algorithms
from protea.data.partition.algorithms import Dialect
from protea.data.partition.pfllib import Positions

Array = npt.NDArray[Any]


class Partition(Protocol):
    """Settings of a partition, which distribute samples when they are called: one array of positions per client."""

    def __call__(self, labels: Array, clients: int, seed: int, keys: Array | None) -> list[Positions]: ...


@dataclass(frozen=True)
class Iid:
    """``kind = "iid"``: samples at random, the same number for each client."""

    def __call__(self, labels: Array, clients: int, seed: int, keys: Array | None = None) -> list[Positions]:
        return algorithms.iid(labels, clients, seed=seed)


@dataclass(frozen=True)
class Dirichlet:
    """``kind = "dirichlet"``: each class in proportions drawn from Dirichlet(alpha)."""

    alpha: PositiveFloat = 0.1
    dialect: Dialect = "protea"  # pfllib: the very samples of PFLlib and HtFLlib
    least: PositiveInt | None = None  # samples of a client; None for the dialect's own number
    by_key: bool | None = None  # deal out whole keys, by their commonest class; None, for no, is not written to files

    def __call__(self, labels: Array, clients: int, seed: int, keys: Array | None = None) -> list[Positions]:
        return algorithms.dirichlet(
            labels,
            clients,
            alpha=self.alpha,
            seed=seed,
            dialect=self.dialect,
            least=self.least,
            keys=require_keys(keys, "dirichlet, by_key") if self.by_key else None,
        )


@dataclass(frozen=True)
class Pathological:
    """``kind = "pathological"``: each client has samples of a few classes only."""

    classes_per_client: PositiveInt = 2
    dialect: Dialect = "protea"
    balanced: bool = False

    def __call__(self, labels: Array, clients: int, seed: int, keys: Array | None = None) -> list[Positions]:
        return algorithms.pathological(
            labels,
            clients,
            classes_per_client=self.classes_per_client,
            seed=seed,
            dialect=self.dialect,
            balanced=self.balanced,
        )


@dataclass(frozen=True)
class Shards:
    """``kind = "shards"``: samples sorted by label, cut into shards that are dealt out at random."""

    shards_per_client: PositiveInt = 2

    def __call__(self, labels: Array, clients: int, seed: int, keys: Array | None = None) -> list[Positions]:
        return algorithms.shards(labels, clients, shards_per_client=self.shards_per_client, seed=seed)


@dataclass(frozen=True)
class Quantity:
    """``kind = "quantity"``: the same mix of classes for all, but client sizes drawn from Dirichlet(alpha)."""

    alpha: PositiveFloat = 0.5
    least: PositiveInt | None = None  # samples of a client; None for 10, or half the mean size if that is less

    def __call__(self, labels: Array, clients: int, seed: int, keys: Array | None = None) -> list[Positions]:
        return algorithms.quantity(labels, clients, alpha=self.alpha, seed=seed, least=self.least)


@dataclass(frozen=True)
class ByKey:
    """``kind = "by-key"``: one client per user, site or patient of the source; with fewer clients, several each."""

    def __call__(self, labels: Array, clients: int, seed: int, keys: Array | None = None) -> list[Positions]:
        return algorithms.by_key(require_keys(keys, "by-key"), clients, seed=seed)


@dataclass(frozen=True)
class OfSource:
    """``kind = "source"``: the clients of the source's own files, each with the test samples that these give it."""

    def __call__(self, labels: Array, clients: int, seed: int, keys: Array | None = None) -> list[Positions]:
        keys = require_keys(keys, "source")
        if (keys < 0).any():
            raise ConfigError("partition: the source gives its test part to nobody.  Set data.pool=train.")
        if (there := len(np.unique(keys))) != clients:
            raise ConfigError(
                f"partition: the source has {there} clients; the experiment has {clients}.  Set clients={there}."
            )
        return algorithms.by_key(keys, clients, seed=seed)


def require_keys(keys: Array | None, where: str) -> Array:
    """Return the keys; raise :class:`ConfigError` for a source that has none."""
    if keys is None:
        raise ConfigError(
            f"{where}: this source does not say whose each sample is.\n"
            f"  Name the column (key = ... for csv), give keys (npz, arrays), or choose another partition."
        )
    return keys
