"""What clients say of samples that everybody has."""

from __future__ import annotations

import torch
from torch import Tensor

from protea.core.errors import PayloadError
from protea.core.samples import Samples
from protea.core.server import Server


def draw_public(server: Server, count: int) -> Tensor:
    """Some public samples, drawn anew in each round: a bool for each."""
    assert server.public is not None
    mask = torch.zeros(len(server.public), dtype=torch.bool)
    mask[torch.randperm(len(mask), generator=server.rng.at("round", server.round).generator("public"))[:count]] = True
    return mask.to(server.device)


def select_public(public: Samples, mask: Tensor) -> Samples:
    """The public samples that a mask which arrived names."""
    if mask.dtype != torch.bool or mask.shape != (len(public),):
        raise PayloadError(
            f"a choice of {tuple(mask.shape)} of {mask.dtype} arrived; not a bool for each of {len(public)} "
            f"public samples."
        )
    if not mask.any():
        raise PayloadError("a choice of public samples arrived that names none.")
    return public.only(mask)


def check_rows(name: str, found: Tensor, rows: int | None, width: int) -> None:
    """Raise unless ``found`` has a row of ``width`` floats for each of ``rows`` samples (any number if None)."""
    if found.ndim != 2 or found.shape[1] != width or (rows is not None and len(found) != rows):
        samples = "each sample" if rows is None else f"each of {rows} samples"
        raise PayloadError(f"{name} of shape {tuple(found.shape)} arrived; expected are {width} numbers for {samples}.")
    if found.dtype != torch.float32:
        raise PayloadError(f"{name} of {found.dtype} arrived, not of float32.")


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Mean over clients of ``(clients, samples, width)``, each sample with its own ``(clients, samples)`` weights.

    Where all weights are 0, each client counts the same.
    """
    weights = torch.where(weights.sum(0) > 0, weights, 1.0)
    return (weights.unsqueeze(2) * values).sum(0) / weights.sum(0).unsqueeze(1)
