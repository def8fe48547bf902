"""Public samples, which everybody has: which of them are asked about, and what clients answer."""

from __future__ import annotations

import torch
from torch import Tensor

from protea.core.errors import PayloadError
from protea.core.samples import Samples
from protea.core.server import Server


def draw_public(server: Server, count: int) -> Tensor:
    """Draw ``count`` public samples for this round: a bool for each public sample, true where it was drawn."""
    assert server.public is not None
    mask = torch.zeros(len(server.public), dtype=torch.bool)
    mask[torch.randperm(len(mask), generator=server.rng.at("round", server.round).generator("public"))[:count]] = True
    return mask.to(server.device)


def select_public(public: Samples, mask: Tensor) -> Samples:
    """Return the public samples that a received mask names; raise :class:`PayloadError` if it does not fit."""
    if mask.dtype != torch.bool or mask.shape != (len(public),):
        raise PayloadError(
            f"a choice of {tuple(mask.shape)} of {mask.dtype} arrived; not a bool for each of {len(public)} "
            f"public samples."
        )
    if not mask.any():
        raise PayloadError("a choice of public samples arrived that names none.")
    return public.only(mask)


def check_rows(name: str, found: Tensor, rows: int | None, width: int) -> None:
    """Raise :class:`PayloadError` unless ``found`` has ``rows`` rows (any number if ``None``) of ``width`` float32."""
    if found.ndim != 2 or found.shape[1] != width or (rows is not None and len(found) != rows):
        samples = "each sample" if rows is None else f"each of {rows} samples"
        raise PayloadError(f"{name} of shape {tuple(found.shape)} arrived; expected are {width} numbers for {samples}.")
    if found.dtype != torch.float32:
        raise PayloadError(f"{name} of {found.dtype} arrived, not of float32.")


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Return the mean over clients of ``(clients, samples, width)``, with weights ``(clients, samples)``.

    Where all weights of a sample are 0, each client counts the same.

    >>> weighted_mean(torch.tensor([[[1.0]], [[5.0]]]), torch.tensor([[3.0], [1.0]])).tolist()
    [[2.0]]
    """
    weights = torch.where(weights.sum(0) > 0, weights, 1.0)
    return (weights.unsqueeze(2) * values).sum(0) / weights.sum(0).unsqueeze(1)


def note_teacher(server: Server, scores: Tensor, mask: Tensor | None = None) -> None:
    """Note for the record how good a teacher is whose scores of public samples are given, or of those in ``mask``.

    ``teacher_accuracy`` is the share of samples whose label it names, ``teacher_entropy`` the mean entropy of its
    probabilities in nats, ``teacher_commonest`` the share of samples that get its commonest answer: near 1, it has
    collapsed.  Nothing else looks at the labels of public samples; no method learns from this.
    """
    assert server.public is not None
    labels = (server.public if mask is None else select_public(server.public, mask)).y
    answers, chances = scores.argmax(1), scores.softmax(1)
    server.memory["teacher_accuracy"] = float((answers == labels).float().mean())
    server.memory["teacher_entropy"] = float(torch.special.entr(chances).sum(1).mean())
    server.memory["teacher_commonest"] = float(answers.bincount().max()) / len(answers)
