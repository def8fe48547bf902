"""The functions of ``protea.data.partition.algorithms`` as settings: ``partition = { kind = "iid" }``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt
from pydantic import PositiveFloat, PositiveInt

from protea.core.errors import ConfigError
from protea.data.partition import algorithms
from protea.data.partition.algorithms import Dialect, Positions

Array = npt.NDArray[Any]


class Partition(Protocol):
    def __call__(self, labels: Array, clients: int, seed: int, keys: Array | None) -> list[Positions]: ...


@dataclass(frozen=True)
class Iid:
    def __call__(self, labels: Array, clients: int, seed: int, keys: Array | None = None) -> list[Positions]:
        return algorithms.iid(labels, clients, seed=seed)


@dataclass(frozen=True)
class Dirichlet:
    """Each class in proportions drawn from Dirichlet(alpha); ``by_key`` deals out whole keys, by commonest class."""

    alpha: PositiveFloat = 0.1
    dialect: Dialect = "protea"
    least: PositiveInt | None = None
    by_key: bool | None = None  # None, for no, is not written into settings

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
    shards_per_client: PositiveInt = 2

    def __call__(self, labels: Array, clients: int, seed: int, keys: Array | None = None) -> list[Positions]:
        return algorithms.shards(labels, clients, shards_per_client=self.shards_per_client, seed=seed)


@dataclass(frozen=True)
class Quantity:
    alpha: PositiveFloat = 0.5
    least: PositiveInt | None = None

    def __call__(self, labels: Array, clients: int, seed: int, keys: Array | None = None) -> list[Positions]:
        return algorithms.quantity(labels, clients, alpha=self.alpha, seed=seed, least=self.least)


@dataclass(frozen=True)
class ByKey:
    """One client per user, site or patient of the source."""

    def __call__(self, labels: Array, clients: int, seed: int, keys: Array | None = None) -> list[Positions]:
        return algorithms.by_key(require_keys(keys, "by-key"), clients, seed=seed)


def require_keys(keys: Array | None, where: str) -> Array:
    if keys is None:
        raise ConfigError(
            f"{where}: this source does not say whose each sample is.\n"
            f"  Name the column (key = ... for csv), give keys (npz, arrays), or choose another partition."
        )
    return keys
