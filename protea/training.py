"""How models are trained: optimizer, learning rate, batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn

Fraction = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Training:
    """Local training, the same for all clients.  The optimizer is made anew each round."""

    epochs: PositiveInt = 1
    batch: PositiveInt = 10
    last: Literal["keep", "drop"] = "keep"  # a last batch that is not full
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: Fraction = 0.0  # of sgd
    weight_decay: NonNegativeFloat = 0.0
    clip: NonNegativeFloat = 0.0  # largest gradient norm of a model; 0 for no limit
    schedule: Literal["constant", "cosine", "exponential"] = "constant"  # of lr, over rounds
    decay: Annotated[float, Field(gt=0, le=1)] = 0.99  # factor per round, exponential only

    def rate(self, round: int, rounds: int) -> float:
        """The learning rate of a round; rounds count from 1, and the first has ``lr``."""
        match self.schedule:
            case "cosine":
                return self.lr * 0.5 * (1 + math.cos(math.pi * (round - 1) / rounds))
            case "exponential":
                return self.lr * self.decay ** (round - 1)
            case _:
                return self.lr

    def make_optimizer(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        trained = [p for p in parameters if p.requires_grad]
        fused = all(p.device.type in ("cpu", "cuda") for p in trained)  # one pass: ten times as fast on a CPU
        match self.optimizer:
            case "adam":
                return torch.optim.Adam(trained, lr=lr, weight_decay=self.weight_decay, fused=fused, foreach=not fused)
            case "adamw":
                return torch.optim.AdamW(trained, lr=lr, weight_decay=self.weight_decay, fused=fused, foreach=not fused)
            case _:
                return torch.optim.SGD(
                    trained, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay, foreach=True
                )


def set_training(modules: Sequence[nn.Module], *, single: bool) -> None:
    """Training mode, but for frozen parts, and for BatchNorm where batches are single samples: these stay at rest."""
    for module in modules:
        module.train()
        for part in module.modules():
            frozen = [not p.requires_grad for p in part.parameters()]
            if (frozen and all(frozen)) or (single and isinstance(part, nn.modules.batchnorm._BatchNorm)):
                part.eval()


def batches(order: Tensor, size: int, last: Literal["keep", "drop"] = "keep") -> Iterator[Tensor]:
    """Cut row numbers into batches.

    A last batch of one joins the batch before it, even if it is kept: BatchNorm cannot train on one sample.
    An only batch is never dropped: a client with few samples trains on those.
    """
    parts = list(order.split(size)) if len(order) else []
    if len(parts) > 1 and len(parts[-1]) < size and last == "drop":
        parts.pop()
    elif len(parts) > 1 and len(parts[-1]) == 1 < size:
        parts[-2:] = [torch.cat(parts[-2:])]
    yield from parts
