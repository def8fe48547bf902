"""Training by DP-SGD: the gradient of every record is shortened, and noise hides what any one of them adds.

Abadi et al., CCS 2016, https://arxiv.org/abs/1607.00133.  Clipping, noise and accounting are opacus'.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from protea.core.accounting import Budget, Event
from protea.core.errors import ClientError, ConfigError, PluginError
from protea.core.shell import install_hint

CHUNK = 1 << 24  # numbers of gradients of single records that are in memory at once


@dataclass(frozen=True)
class PrivateTraining:
    """``training.dp = { noise, clip }``: every ``fit`` of a client is DP-SGD, over batches drawn by chance."""

    noise: Annotated[float, Field(gt=0, allow_inf_nan=False)]  # standard deviation, in multiples of clip
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0  # largest length of one record's gradient
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        """Refuse settings that nothing can train with, and an opacus that is not there, before any work."""
        if importlib.util.find_spec("opacus") is None:
            raise PluginError(f"training.dp needs opacus, which is not installed.  Type: {install_hint('privacy')}")

    def event(self, batch: int, records: int, epochs: int) -> Event:
        """Return what a fit costs: as many steps as batches of that size fill its epochs.

        >>> PrivateTraining(noise=1.0).event(batch=20, records=100, epochs=2)
        (1.0, 0.2, 10)
        """
        steps = epochs * max(1, round(records / batch))
        return self.noise, min(1.0, batch / records) if records else 1.0, steps if records else 0


def refuse_shared_statistics(modules: Sequence[nn.Module], name: str) -> None:
    """Raise :class:`ConfigError` for layers that mix the records of a batch, such as BatchNorm, unless frozen."""
    for module in modules:
        for where, part in module.named_modules():
            mixes = isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats
            frozen = [not p.requires_grad for p in part.parameters()]
            if mixes and not (frozen and all(frozen)):
                raise ConfigError(
                    f"training.dp: {name} has {type(part).__name__} ({where}), whose statistics mix the records of a "
                    f"batch; no bound of one record's part holds then.  Use a model without it, such as tiny_mlp, "
                    f"tiny_mixer, cnn or a frozen hf: encoder; in a model of your own put nn.GroupNorm in its place: "
                    f"opacus.validators.ModuleValidator.fix(model) does."
                )


def poisson_batches(records: int, event: Event, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield row numbers, one batch for each step; each has every record with the event's rate.  Some may be empty."""
    _, rate, steps = event
    for _ in range(steps):
        yield (torch.rand(records, generator=generator, dtype=torch.float64) < rate).nonzero().squeeze(1)


def private_descent(
    batches: Iterator[tuple[Tensor, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: Any,
    trouble: Callable[[float, int], ClientError],
) -> list[float]:
    """Take one step of DP-SGD for each batch; return the mean loss of each that was not empty.

    ``optimizer`` is opacus' ``DPOptimizer``.  The loss is asked for one record at a time.  So a record's gradient
    depends on no other one, whatever the method's loss does within a batch.
    """
    parameters: list[Any] = [p for group in optimizer.param_groups for p in group["params"]]
    chunk = max(1, CHUNK // max(1, sum(p.numel() for p in parameters)))
    losses: list[float] = []
    for step, (x, y) in enumerate(batches, 1):
        values: list[float] = []
        for start in range(0, max(1, len(y)), chunk):
            rows = range(start, min(start + chunk, len(y)))
            found: list[Sequence[Tensor | None]] = []
            for row in rows:
                value = loss(x[row : row + 1], y[row : row + 1])
                values.append(value.item())
                if not math.isfinite(values[-1]):
                    raise trouble(values[-1], step)
                found.append(torch.autograd.grad(value, parameters, allow_unused=True))
            for place, p in enumerate(parameters):
                own = [torch.zeros_like(p) if each[place] is None else each[place] for each in found]
                p.grad_sample = torch.stack(own) if own else p.new_zeros(0, *p.shape)  # type: ignore[arg-type]
            optimizer.signal_skip_step(do_skip=start + chunk < len(y))  # the noise comes once, with the last chunk
            optimizer.step()
            optimizer.zero_grad()
        if values:
            losses.append(sum(values) / len(values))
    return losses


def private_optimizer(
    plan: PrivateTraining, inner: torch.optim.Optimizer, batch: float, generator: torch.Generator
) -> Any:
    """Return opacus' optimizer around another one; ``batch`` is the number of records that a batch has on average."""
    from opacus.optimizers import DPOptimizer

    return DPOptimizer(
        inner,
        noise_multiplier=plan.noise,
        max_grad_norm=plan.clip,
        expected_batch_size=batch,  # no whole number: it is only divided by
        loss_reduction="mean",
        generator=generator,
    )
