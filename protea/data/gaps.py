"""Missing numbers of a table, filled in by what each client knows: the medians of its own training samples."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from protea.data.federated import Federated


def medians(rows: Tensor) -> Tensor:
    """Return the median of each feature over samples that have it, the lower of two; 0 where no sample has it.

    >>> medians(torch.tensor([[1.0, torch.nan], [5.0, torch.nan], [torch.nan, torch.nan]]))
    tensor([1., 0.])
    """
    if not len(rows):
        return rows.new_zeros(rows.shape[1:])
    return rows.nanmedian(0).values.nan_to_num(0.0)


def fill_in(x: Tensor, fill: Tensor) -> Tensor:
    """Return samples with ``fill``, of the shape of one sample, where they have nan."""
    return torch.where(torch.isnan(x), fill, x)


def fill_gaps(data: Federated) -> Federated:
    """Return a federation in which nothing is missing; ``fills`` then holds what each client fills in.

    Each client's samples, those to judge it on included, are filled by its training samples alone.  Public samples are
    filled by public samples; a shared test set that belongs to no client by all training samples.
    """
    given = data.dataset.x
    if not data.dataset.gaps or not isinstance(given, Tensor):
        return data
    everyone = medians(given[torch.cat([share.train for share in data.shares])])
    x, fills = fill_in(given, everyone), []
    x[data.public] = fill_in(given[data.public], medians(given[data.public]))
    for client, share in enumerate(data.shares):
        rows = data.rows(client)
        fills.append(medians(given[share.train]))
        x[rows] = fill_in(given[rows], fills[-1])
    return replace(data, dataset=replace(data.dataset, x=x, gaps=False), fills=torch.stack(fills))
