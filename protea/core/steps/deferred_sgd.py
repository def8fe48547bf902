"""Steps of gradient descent; plain SGD updates large linear layers without ever storing their gradients.

The gradient of a linear layer's weight is ``g.T @ x``, where both have but one row per sample.  Written out it is as
large as the weight, and plain SGD only ever adds it.  So such layers keep ``g`` and ``x`` in the backward pass, and
after it ``weight.addmm_(g.T, x, alpha=-lr)`` does the rest: the same numbers to float tolerance, and a matrix less to
write and to read.  As an update waits for the end of the pass, a layer may be used many times in a loss, or its weight
in other ways too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGE = 1 << 16  # numbers in a weight; for smaller ones it does not pay to defer

Trouble = Callable[[float, int], Exception]  # makes the error for a loss that is not finite, and its step


def descend(
    values: Iterable[Tensor],
    optimizer: torch.optim.Optimizer,
    modules: Sequence[nn.Module],
    *,
    clip: float = 0.0,
    trouble: Trouble,
) -> list[float]:
    """Take one step for each loss, and return all losses as numbers.

    ``values`` is a generator that computes a loss when it is asked for, so each is one of the changed weights.
    ``clip`` is the largest norm of a module's gradient; 0 for no limit.
    """
    losses: list[float] = []
    with DeferredSGD.of(optimizer, modules) if _plain(optimizer) and not clip else nullcontext() as late:
        for value in values:
            losses.append(value.item())
            if not math.isfinite(losses[-1]):
                raise trouble(losses[-1], len(losses))
            if late is not None:
                late.step(value)
                continue
            optimizer.zero_grad()
            value.backward()
            if clip:
                for module in modules:
                    nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimizer.step()
    return losses


class DeferredSGD:
    """Plain SGD that changes the weights of large linear layers after a backward pass, from its inputs and slopes."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.rates: list[tuple[Tensor, float]] = [
            (p, group["lr"]) for group in optimizer.param_groups for p in group["params"]
        ]
        self.collects = False  # during a backward pass; one that a loss makes for itself has ordinary gradients
        self.changes: list[tuple[Tensor, Tensor, Tensor, float]] = []  # weight, g, x, rate

    @classmethod
    @contextmanager
    def of(cls, optimizer: torch.optim.Optimizer, modules: Iterable[nn.Module]) -> Iterator[DeferredSGD]:
        """Take over, within the block, the large linear layers of these modules that the optimizer trains."""
        late = cls(optimizer)
        rates = {id(p): rate for p, rate in late.rates}
        layers = [part for module in modules for part in module.modules() if _large(part) and id(part.weight) in rates]
        for layer in layers:
            vars(layer)["forward"] = partial(late.linear, layer, layer.weight, rates[id(layer.weight)])
        try:
            yield late
        finally:
            for layer in layers:
                vars(layer).pop("forward", None)

    def linear(self, layer: nn.Linear, weight: Tensor, rate: float, x: Tensor) -> Tensor:
        """Run the layer on ``x``; in the ordinary way if it has other weights for now, or gradients are off."""
        lent = layer.weight is not weight or torch._C._are_functorch_transforms_active()
        if lent or x.dim() < 2 or not torch.is_grad_enabled():
            return F.linear(x, layer.weight, layer.bias)
        out: Tensor = _Linear.apply(x, weight, layer.bias, self, rate)  # type: ignore[no-untyped-call]
        return out

    def step(self, value: Tensor) -> None:
        """Backpropagate a loss and change all weights."""
        for weight, _ in self.rates:
            weight.grad = None
        self.collects = True
        try:
            value.backward()
        finally:
            self.collects = False
        with torch.no_grad():
            for weight, rate in self.rates:
                if weight.grad is not None:
                    weight.add_(weight.grad, alpha=-rate)
            for weight, g, x, rate in self.changes:
                weight.addmm_(g.T, x, alpha=-rate)
        self.changes.clear()


class _Linear(torch.autograd.Function):
    """``F.linear`` whose weight is changed after the backward pass.

    The forward takes ``ctx``: without it, torch would inspect its signature at every call.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, late: DeferredSGD, rate: float) -> Tensor:
        ctx.bias, ctx.late, ctx.rate = bias is not None, late, rate
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (x, weight) = slopes, ctx.saved_tensors
        below = g @ weight if ctx.needs_input_grad[0] else None
        x, g = x.flatten(0, -2), g.flatten(0, -2)
        own = None
        if ctx.late.collects:
            ctx.late.changes.append((weight, g, x, ctx.rate))
        else:
            own = g.T @ x
        return below, own, g.sum(0) if ctx.bias else None, None, None


def _large(part: nn.Module) -> TypeGuard[nn.Linear]:
    """Tell whether a module is a plain linear layer that is large, and whose gradient no hook waits for."""
    if type(part) is not nn.Linear or "forward" in vars(part) or part.weight.numel() < LARGE:
        return False
    return not part.weight._backward_hooks and not part.weight._post_accumulate_grad_hooks


def _plain(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether a step of the optimizer is ``weight -= lr * gradient`` and no more."""
    return type(optimizer) is torch.optim.SGD and not any(
        group[name] for group in optimizer.param_groups for name in ("momentum", "weight_decay", "maximize")
    )
