"""A partition that was saved as a JSON file: ``partition = { kind = "file", path = "..." }``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from protea.config.complaints import complaint
from protea.core.errors import ConfigError, DataError
from protea.data.dataset import Dataset
from protea.data.federated import Federated
from protea.data.partition.pfllib import Positions
from protea.data.partition.split import Share


@dataclass(frozen=True)
class StoredShare:
    """The rows of one client."""

    train: list[NonNegativeInt]
    validation: list[NonNegativeInt]
    test: list[NonNegativeInt]


@dataclass(frozen=True)
class StoredPartition:
    """The content of a partition file; numbers are rows of the data set, its test part after its training part."""

    format: Literal["protea-partition-1"]
    samples: PositiveInt
    clients: list[StoredShare]
    public: list[NonNegativeInt]
    test: list[NonNegativeInt]
    class_counts: list[list[NonNegativeInt]]
    made: dict[str, Any] = field(default_factory=dict)


def load_partition(path: Path | str, dataset: Dataset) -> Federated:
    """Read what ``Federated.save_partition`` wrote; raise :class:`DataError` if it was made for another data set."""
    stored = read_partition(path, len(dataset))
    shares = tuple(Share(*map(as_rows, (one.train, one.validation, one.test))) for one in stored.clients)
    federated = Federated(dataset, shares, as_rows(stored.public), as_rows(stored.test), stored.made)
    if federated.class_counts().tolist() != stored.class_counts:
        raise DataError(
            f"{path}: the clients' class counts are not those it was saved with,\n"
            f"  so it was made for other data, or for the same in another order."
        )
    return federated


def read_partition(path: Path | str, samples: int) -> StoredPartition:
    """Read a partition file; raise :class:`DataError` unless it makes sense for a data set of so many samples."""
    try:
        stored = TypeAdapter(StoredPartition).validate_json(Path(path).read_bytes())
    except OSError as error:
        raise DataError(f"The partition file {path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        raise DataError(f"{path} is not a partition file of Protea: {complaint(error)}.") from error
    if stored.samples != samples:
        raise DataError(f"{path} was made for {stored.samples} samples; this data set has {samples}.")
    if not stored.clients or not all(one.train for one in stored.clients):
        raise DataError(f"{path}: every client needs at least one training sample.")
    own = [row for one in stored.clients for part in (one.train, one.validation, one.test) for row in part]
    row, times = Counter(own + stored.public).most_common(1)[0]
    if times > 1:
        raise DataError(f"{path}: row {row} is given out {times} times; each row can be in one place only.")
    learned = {row for one in stored.clients for row in one.train + one.validation} | set(stored.public)
    if leaked := learned & set(stored.test):
        raise DataError(f"{path}: row {min(leaked)} is both in the global test set and among those to learn from.")
    if (highest := max(own + stored.public + stored.test)) >= samples:
        raise DataError(f"{path}: there is no row {highest}; the {samples} rows are 0 to {samples - 1}.")
    return stored


def as_rows(rows: list[int]) -> torch.Tensor:
    """Return row numbers as an int64 tensor."""
    return torch.tensor(rows, dtype=torch.int64)


@dataclass(frozen=True)
class PartitionFile:
    """``kind = "file"``: the partition, split, public set and shared test set that a file holds."""

    path: str

    def restore(self, dataset: Dataset, clients: int) -> Federated:
        """Return the federation in the file; raise :class:`ConfigError` if it has another number of clients."""
        federated = load_partition(self.path, dataset)
        if len(federated.shares) != clients:
            raise ConfigError(
                f"{self.path} is for {len(federated.shares)} clients; the experiment has {clients}.\n"
                f"  Set clients = {len(federated.shares)}."
            )
        return federated

    def __call__(
        self, labels: npt.NDArray[Any], clients: int, seed: int, keys: npt.NDArray[Any] | None = None
    ) -> list[Positions]:
        """Return all rows of each client, whatever they are for; ``labels`` are those of all rows."""
        stored = read_partition(self.path, len(labels))
        if len(stored.clients) != clients:
            raise ConfigError(f"{self.path} is for {len(stored.clients)} clients.  Set clients to that.")
        return [np.sort(np.array(one.train + one.validation + one.test, np.int64)) for one in stored.clients]
