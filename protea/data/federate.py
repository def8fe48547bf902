"""From one data set to a federation: who has which samples, and for what."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from protea.config.registry import name_of
from protea.config.sections import Split
from protea.core.errors import ConfigError, DataError
from protea.core.rng import Streams
from protea.data.dataset import Dataset
from protea.data.federated import Federated
from protea.data.gaps import fill_gaps
from protea.data.partition.file import PartitionFile
from protea.data.partition.schemes import OfSource, Partition
from protea.data.partition.split import Share, split_positions

PooledParts = Literal["train", "all"]


def federate(
    dataset: Dataset,
    clients: int,
    partition: Partition,
    *,
    seed: int,
    split: Split | None = None,
    pool: PooledParts = "train",
    samples: int | None = None,
    public: int = 0,
) -> Federated:
    """Set a public set aside, give each client its share of the rest, and split each share.

    With ``samples``, only so many of the pool, drawn at random, are used at all.

    ``pool = "train"`` deals out the source's training part and keeps its test part as the shared
    test set; ``"all"`` merges the two first, as PFLlib and HtFLlib do.  A partition file
    holds all of this already, and is taken as it is.

    Where ``split.by_key`` is set, no key (user, site, patient) has samples both to train and to test on.
    """
    settings = split or Split()
    if settings.by_key and dataset.keys is None:
        raise ConfigError("split: by_key is set, but this source does not say whose each sample is.")
    if isinstance(partition, PartitionFile):
        given = partition.restore(dataset, clients)
        if settings.by_key:
            refuse_shared_keys(given)
        return fill_gaps(given)
    streams = Streams(seed).at("data")
    held_back = dataset.tests if pool == "train" else 0
    rows = torch.arange(len(dataset) - held_back)
    if samples is not None:
        if samples > len(rows):
            raise ConfigError(f"data.samples is {samples}, but there are only {len(rows)}.  Set it to that or less.")
        drawn = torch.randperm(len(rows), generator=streams.generator("samples"))[:samples]
        rows = rows[drawn.sort().values]
    if not 0 <= public < len(rows):
        raise ConfigError(f"public = {public}, but there are {len(rows)} samples; some must be left for the clients.")
    shuffled = torch.randperm(len(rows), generator=streams.generator("public"))
    public_rows = rows[shuffled[:public].sort().values]
    rows = rows[shuffled[public:].sort().values]

    labels = dataset.y[rows].numpy()
    keys = None if dataset.keys is None else dataset.keys[rows].numpy()
    parts = partition(labels, clients, seed, keys)
    split_one = split_as_given if isinstance(partition, OfSource) else split_share
    shares = tuple(
        split_one(rows[torch.from_numpy(part)], dataset, settings, streams.at("client", client).numpy("split"))
        for client, part in enumerate(parts)
    )
    test = torch.arange(len(dataset) - held_back, len(dataset))
    if not held_back:
        test = torch.cat([part.test for part in shares]).sort().values
    options: dict[str, object] = asdict(partition) if is_dataclass(partition) else {}
    made = {
        "partition": {"kind": name_of("partitions", type(partition)), **options},
        "split": asdict(settings),
        "pool": pool,
        "samples": samples,
        "public": public,
        "seed": seed,
    }
    federated = Federated(dataset, shares, public_rows, test, made)
    if settings.by_key:
        refuse_shared_keys(federated)
    return fill_gaps(federated)


def split_share(rows: Tensor, dataset: Dataset, settings: Split, random: np.random.Generator) -> Share:
    """Split the rows of one client into training, validation and test rows."""
    keys = dataset.keys[rows].numpy() if settings.by_key and dataset.keys is not None else None
    return Share(
        *(rows[torch.from_numpy(part)] for part in split_positions(dataset.y[rows].numpy(), settings, random, keys))
    )


def split_as_given(rows: Tensor, dataset: Dataset, settings: Split, random: np.random.Generator) -> Share:
    """Split the rows of one client: test rows are those that the source says; validation rows are of the others."""
    if dataset.judged is None:
        return split_share(rows, dataset, settings, random)
    judged = dataset.judged[rows]
    if judged.all():
        raise DataError("partition: the source gives a client samples to test on, and none to train on.")
    share = split_share(rows[~judged], dataset, replace(settings, test=0.0), random)
    return replace(share, test=rows[judged])


def refuse_shared_keys(data: Federated) -> None:
    """Raise :class:`ConfigError` if a key has samples in any client's training part and in another part."""

    def keys(*rows: Tensor) -> set[int]:
        assert data.dataset.keys is not None
        return set(data.dataset.keys[torch.cat(rows)].tolist())

    judged = [part for share in data.shares for part in (share.validation, share.test)]
    train, own, public = keys(*(share.train for share in data.shares)), keys(*judged), keys(data.public)
    source = keys(data.test[~torch.isin(data.test, torch.cat(judged))])
    clashes = (
        (public & (train | own | source), "in the public set", "data.public=0"),
        (train & own, "what clients are judged on", "data.partition to by-key, or to dirichlet with by_key=true"),
        (train & source, "in the source's own test part", "data.pool=all"),
    )
    if found := [f"  {len(both)} are also {where}: set {instead}.\n" for both, where, instead in clashes if both]:
        raise ConfigError(
            f"split.by_key is set, but of {len(train | public)} keys whose samples are learned from\n{''.join(found)}"
            f"  Or set data.split.by_key=false, if whoever is learned from may be judged on."
        )
