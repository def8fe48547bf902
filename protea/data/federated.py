"""A federated data set: the samples, and which client has which."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from protea.core.errors import ConfigError
from protea.core.files import writing
from protea.data.dataset import Dataset
from protea.data.partition.split import Share

LONGEST = 80  # letters of a client's name
Part = Literal["all", "train", "validation", "test"]


@dataclass(frozen=True)
class Federated:
    """A data set and the rows that each client has.

    ``public`` rows belong to everybody and to no client.  ``test`` is the shared global test
    set: the source's own, or where it has none or its parts were merged, all clients' test
    rows together.  ``made`` holds the settings of the partition, for the records of a run.
    """

    dataset: Dataset
    shares: tuple[Share, ...]  # one per client
    public: Tensor  # int64 row numbers
    test: Tensor  # int64 row numbers
    made: Mapping[str, object] = field(default_factory=dict)
    fills: Tensor | None = None  # (clients, ...): what each client fills in where a value is missing, if any is

    def rows(self, client: int, part: Part = "all") -> Tensor:
        """Return the row numbers of a client's samples, int64: all, or those of one part."""
        share = self.shares[client]
        if part == "all":
            return torch.cat([share.train, share.validation, share.test])
        return {"train": share.train, "validation": share.validation, "test": share.test}[part]

    def class_counts(self, part: Part = "all") -> Tensor:
        """Return how many samples of each class each client has, ``(clients, classes)``."""
        labels, classes = self.dataset.y, self.dataset.classes
        counts = [labels[self.rows(client, part)].bincount(minlength=classes) for client in range(len(self.shares))]
        return torch.stack(counts)

    def client_names(self) -> list[str | None]:
        """Return what each client is called: as ``data.names`` says, or its key where these have names.

        A client with several keys has their names together, up to three; ``None`` stands for clients without a name.
        """
        dataset, partition, given = self.dataset, self.made.get("partition"), self.made.get("names")
        if isinstance(given, list | tuple):
            return [str(name) for name in given]
        named = isinstance(partition, Mapping) and partition.get("kind") == "by-key"
        if not named or dataset.keys is None or dataset.key_names is None:
            return [None] * len(self.shares)
        own = [dataset.keys[self.rows(client)].unique().tolist() for client in range(len(self.shares))]
        if any(len(keys) > 3 for keys in own):
            return [None] * len(self.shares)
        return [" + ".join(dataset.key_names[key] for key in keys) for keys in own]

    def called(self, names: Sequence[str]) -> Federated:
        """Return the same data with names for the clients; raise :class:`ConfigError` for names that do not fit."""
        if len(names) != len(self.shares) or len(set(names)) < len(names):
            raise ConfigError(
                f"data.names must be as many different names as there are clients, {len(self.shares)}; found "
                f"{', '.join(map(repr, names))}."
            )
        for name in names:
            if not name.strip() or not name.isprintable() or len(name) > LONGEST:
                raise ConfigError(f"data.names: {name[:LONGEST]!r} is no name: use 1 to {LONGEST} printable letters.")
        return replace(self, made={**self.made, "names": list(names)})

    def majority(self) -> float:
        """Return the accuracy, on all clients' test rows, of always answering a client's commonest training class.

        Every row counts once; nan where no client has test rows.  An accuracy near this one says little.
        """
        train, test = self.class_counts("train").numpy(), self.class_counts("test").numpy()
        right = np.take_along_axis(test, train.argmax(1, keepdims=True), 1).sum()
        return float(right / test.sum()) if test.sum() else float("nan")

    def save_partition(self, path: Path | str) -> None:
        """Write which client has which rows to a JSON file, for ``partition = { kind = "file", path = ... }``."""
        content = {
            "format": "protea-partition-1",
            "made": dict(self.made),
            "samples": len(self.dataset),
            "class_counts": self.class_counts().tolist(),
            "clients": [{name: rows.tolist() for name, rows in vars(share).items()} for share in self.shares],
            "public": self.public.tolist(),
            "test": self.test.tolist(),
        }
        with writing(Path(path), shared=True) as file:
            file.write((json.dumps(content) + "\n").encode())
