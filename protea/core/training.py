"""Settings of training: optimizer, learning rate, batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from protea.core.choices import choice_of, table_or_none
from protea.core.errors import ConfigError
from protea.core.private_sgd import PrivateTraining
from protea.core.ranges import Fraction
from protea.core.rng import Streams
from protea.core.samples import Samples


class Optimizer(Protocol):
    """Makes the optimizer of one round's training; a frozen dataclass whose fields are its own settings."""

    def __call__(self, parameters: Sequence[nn.Parameter], lr: float, training: Training) -> torch.optim.Optimizer: ...


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, with the momentum and weight decay of ``[training]``."""

    def __call__(self, parameters: Sequence[nn.Parameter], lr: float, training: Training) -> torch.optim.Optimizer:
        momentum, decay = training.momentum, training.weight_decay
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay, foreach=True)


@dataclass(frozen=True)
class Adam:
    """Adam with torch's defaults and the weight decay of ``[training]``."""

    def __call__(self, parameters: Sequence[nn.Parameter], lr: float, training: Training) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=lr, weight_decay=training.weight_decay, **_kernels(parameters))


@dataclass(frozen=True)
class AdamW:
    """Adam whose weight decay does not go through the gradient."""

    def __call__(self, parameters: Sequence[nn.Parameter], lr: float, training: Training) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=training.weight_decay, **_kernels(parameters))


OPTIMIZERS: dict[object, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def _kernels(parameters: Sequence[nn.Parameter]) -> dict[str, Any]:
    """One fused pass where torch has it, which is ten times as fast on a CPU; else one pass per operation."""
    fused = all(p.device.type in ("cpu", "cuda") for p in parameters)
    return {"fused": fused, "foreach": not fused}


@dataclass(frozen=True)
class Training:
    """``[training]``: how clients train, the same for all.  The optimizer is made anew each round."""

    epochs: PositiveInt = 1
    batch: PositiveInt = 10
    last: Literal["keep", "drop"] = "keep"  # a last batch that is not full
    order: Literal["shuffled", "fixed", "once"] = "shuffled"  # in each epoch; as the client has them; shuffled once
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    optimizer: Any = choice_of("optimizers", "name", lambda: SGD(), word=True)
    momentum: Fraction = 0.0  # of sgd
    weight_decay: NonNegativeFloat = 0.0
    clip: NonNegativeFloat = 0.0  # largest gradient norm of a model; 0 for no limit
    schedule: Literal["constant", "cosine", "exponential"] = "constant"  # of lr, over rounds
    decay: Annotated[float, Field(gt=0, le=1)] = 0.99  # factor per round, exponential only
    dp: PrivateTraining | None = table_or_none(PrivateTraining)  # DP-SGD: { noise, clip }, see docs/privacy.md

    def __post_init__(self) -> None:
        if self.optimizer in OPTIMIZERS:
            object.__setattr__(self, "optimizer", OPTIMIZERS[self.optimizer]())  # in Python a word will do, too
        if self.dp is not None and self.clip:
            raise ConfigError(
                f"training.clip is {self.clip:g} beside training.dp, which shortens the gradient of every record to "
                f"training.dp.clip.  Remove training.clip."
            )

    def rate(self, round: int, rounds: int) -> float:
        """Return the learning rate of a round; rounds count from 1, and the first has ``lr``.

        >>> Training(lr=0.1, schedule="cosine").rate(round=6, rounds=10)
        0.05
        """
        match self.schedule:
            case "cosine":
                return self.lr * 0.5 * (1 + math.cos(math.pi * (round - 1) / rounds))
            case "exponential":
                return self.lr * self.decay ** (round - 1)
            case _:
                return self.lr

    def seen(self, samples: int) -> int:
        """Return how many samples of a client are ever in a batch: all, unless always the same ones are dropped.

        >>> Training(batch=10, order="fixed", last="drop").seen(27), Training(batch=10, last="drop").seen(27)
        (20, 27)
        """
        dropped = samples % self.batch if self.order != "shuffled" and self.last == "drop" else 0
        return samples - dropped if dropped < samples else samples

    def arrange(self, samples: Samples, rng: Streams) -> Samples:
        """Put a client's training samples into the order that they keep in all rounds; only ``once`` changes it."""
        if self.order != "once":
            return samples
        return samples.only(torch.randperm(len(samples), generator=rng.generator("order")))

    def make_optimizer(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """Return a new optimizer of those parameters that are not frozen."""
        made: torch.optim.Optimizer = self.optimizer([p for p in parameters if p.requires_grad], lr, self)
        return made


def set_training(modules: Sequence[nn.Module], *, single: bool) -> None:
    """Set training mode; frozen parts, and BatchNorm where batches are ``single`` samples, stay in evaluation mode."""
    for module in modules:
        module.train()
        for part in module.modules():
            frozen = [not p.requires_grad for p in part.parameters()]
            if (frozen and all(frozen)) or (single and isinstance(part, nn.modules.batchnorm._BatchNorm)):
                part.eval()


def batches(order: Tensor, size: int, last: Literal["keep", "drop"] = "keep") -> Iterator[Tensor]:
    """Yield batches of row numbers, in the given order.

    A last batch of one joins the batch before it, even if it is kept: BatchNorm cannot train on one sample.
    An only batch is never dropped: a client with few samples trains on those.

    >>> [len(batch) for batch in batches(torch.arange(7), 3)]
    [3, 4]
    >>> [len(batch) for batch in batches(torch.arange(8), 3, last="drop")]
    [3, 3]
    """
    parts = list(order.split(size)) if len(order) else []
    if len(parts) > 1 and len(parts[-1]) < size and last == "drop":
        parts.pop()
    elif len(parts) > 1 and len(parts[-1]) == 1 < size:
        parts[-2:] = [torch.cat(parts[-2:])]
    yield from parts
