"""Metrics of the user's own: numbers computed where a client's samples are, since only the numbers may travel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from protea.config import registry
from protea.core.errors import ClientError
from protea.evaluation.counts import probabilities


@runtime_checkable
class Metric(Protocol):
    """A number that says how good a client's answers are: a frozen dataclass, registered in the group ``metrics``.

    ``probabilities`` are ``(samples, classes)`` by the method's own rule and ``labels`` are ``(samples,)``, both on
    the CPU.  There is at least one sample.  The number must be finite, also where a client has one class only.
    """

    def __call__(self, probabilities: Tensor, labels: Tensor) -> float: ...


def measured(metrics: Sequence[Metric], scores: Tensor, labels: Tensor, where: str) -> Tensor:
    """Every metric of scores ``(samples, classes)``, as float64 ``(metrics,)``; ``where`` begins an error message."""
    chances, labels = probabilities(scores.cpu()), labels.cpu()
    values = []
    for name, metric in zip(registry.plugin_names("metrics", metrics), metrics, strict=True):
        value = float(metric(chances.clone(), labels.clone()))  # one metric must not change what the next one sees
        if not math.isfinite(value):
            raise ClientError(
                f"{where}: its metric {name!r} is {value}, which is no number to average.  Let it return a finite "
                f"number for every client, also for one with samples of a single class."
            )
        values.append(value)
    return torch.tensor(values, dtype=torch.float64)
