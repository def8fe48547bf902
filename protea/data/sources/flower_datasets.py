"""Data sets dealt out by the partitioners of ``flwr-datasets``, as users of Flower have them."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from protea.core.errors import ConfigError, DataError, nearest
from protea.data.dataset import Dataset
from protea.data.sources.hugging_face import HuggingFace, kind_of

ROW = "row of protea"  # a column of row numbers, by which a partition's samples are known
SEED = 42  # by which FederatedDataset shuffles


@dataclass(frozen=True)
class FlowerDatasets(HuggingFace):
    """The settings of the source ``datasets``, and a partitioner by its class and ``options``.

    Use it with ``partition = "source"``, and with as many clients as there are partitions.  The training part is
    shuffled before, as ``FederatedDataset`` does, by the seed ``shuffle``; with 0 it is left in its order.  In Python
    ``partitioner`` may be an object.
    """

    partitioner: Any = "IidPartitioner"
    options: dict[str, Any] = field(default_factory=dict)
    shuffle: int = SEED

    def load(self) -> Dataset:
        if self.key is not None:
            raise ConfigError("flwr-datasets: key is set, and partitions are the keys here.  Leave it out.")
        train, test = self.parts()
        dealt = train.shuffle(seed=self.shuffle) if self.shuffle else train
        owners = self.owners(dealt)
        kept = sorted(owners)  # a partitioner may leave samples out
        data = self.to_dataset(dealt.select(kept), test)
        keys = [owners[row] for row in kept] + [-1] * data.tests  # the test part is nobody's
        return replace(data, keys=torch.tensor(keys, dtype=torch.int64))

    def owners(self, part: Any) -> dict[int, int]:
        """Return the partition of each row that is in one; raise :class:`DataError` for a row that is in two."""
        partitioner = self.made()
        columns = [name for name, feature in part.features.items() if kind_of(feature) in ("number", "text", "other")]
        partitioner.dataset = part.select_columns(columns).add_column(ROW, list(range(len(part))))
        found = dict[int, int]()
        try:
            for client in range(partitioner.num_partitions):
                for row in partitioner.load_partition(client)[ROW][:]:
                    if found.setdefault(row, client) != client:
                        raise DataError(f"{self.where}: a sample is in partitions {found[row]} and {client}.")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"flwr-datasets: {type(partitioner).__name__} cannot deal out this set: {error}"
            ) from error
        return found

    def made(self) -> Any:
        """Return the partitioner, with no data set yet."""
        kinds = partitioners()
        if isinstance(self.partitioner, kinds["Partitioner"]):
            if self.partitioner.is_dataset_assigned():
                raise ConfigError("flwr-datasets: the partitioner has a data set already.  Give it without one.")
            return copy.deepcopy(self.partitioner)  # a data set can be assigned only once
        names = [name for name in kinds if name != "Partitioner"]
        if self.partitioner not in names:
            raise ConfigError(
                f"flwr-datasets: there is no partitioner {self.partitioner!r}.  {nearest(str(self.partitioner), names)}"
            )
        try:
            return kinds[self.partitioner](**self.options)
        except (TypeError, ValueError) as error:
            shown = ", ".join(f"{name} = {value!r}" for name, value in self.options.items()) or "none"
            raise ConfigError(f"flwr-datasets: {self.partitioner} with the options {shown}: {error}") from error


def partitioners() -> dict[str, Any]:
    """Return the partitioners that deal out samples, by name; raise :class:`ConfigError` if there is no library.

    Vertical ones, which deal out columns, are left out.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # nothing may leave this machine unasked
    try:
        from flwr_datasets import partitioner
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"The source flwr-datasets needs the package {error.name}.  Install it: pip install -e '.[flwr-datasets]'"
        ) from error
    return {name: getattr(partitioner, name) for name in partitioner.__all__ if not name.startswith("Vertical")}
