"""Splitting any classifier into body and head, by observing a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from protea.core.errors import ConfigError

REMEDY = "Or return SplitModel(body, adapter, head) of protea.models from a factory of your own."


@contextmanager
def without_trace(model: nn.Module) -> Iterator[None]:
    """Let a forward pass within the block change nothing: neither BatchNorm's statistics nor torch's random state."""
    training = {module: module.training for module in model.modules()}
    lazy = any(is_lazy(p) for p in model.parameters())  # such a forward draws weights, which must count
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[], enabled=not lazy):
            yield
    finally:
        for module, mode in training.items():
            module.training = mode


def probe(name: str, model: nn.Module, x: Tensor, part: Callable[[Tensor], object] | None = None) -> Tensor:
    """Run the model, or a part of it, on ``x``; raise :class:`ConfigError` unless it gives a row per sample."""
    given = f"a batch of {len(x)} samples of shape {tuple(x.shape[1:])}"
    try:
        with without_trace(model):
            out = (part or model)(x)
    except Exception as error:
        raise ConfigError(
            f"architecture {name!r} does not take {given}: {error}\n"
            "  Use another architecture for this data, or change the size of the data."
        ) from error
    if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != len(x):
        found = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise ConfigError(
            f"architecture {name!r} gives {found} for {given}.\n"
            f"  Expected is one tensor of shape ({len(x)}, width): features, or scores of the classes.\n"
            f"  Let it pool or flatten at its end.  {REMEDY}"
        )
    return out


def body_of(name: str, model: nn.Module, x: Tensor, classes: int | None) -> nn.Module:
    """Return a classifier without its head; a model whose output has another width is a body already.

    The head is the linear layer whose output is the model's output.  ``classes=None`` says that
    the model is a classifier, of however many classes.
    """
    seen: list[tuple[nn.Linear, Tensor, int]] = []

    def note(layer: nn.Linear, _: object, out: Tensor) -> None:
        seen.append((layer, out, out._version))

    hooks = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, nn.Linear)]
    try:
        out = probe(name, model, x)
    finally:
        for hook in hooks:
            hook.remove()
    if classes is not None and out.shape[1] != classes:
        return model
    # An activation in place gives the same tensor object on, but in a later version.
    heads = [layer for layer, y, version in seen if y is out and version == out._version]
    if not heads:
        raise ConfigError(
            f"architecture {name!r} gives {out.shape[1]} scores, but not straight from a linear layer: "
            "its head cannot be told from its body.\n"
            f"  Let it end in nn.Linear(width, {out.shape[1]}), with no softmax after it.  {REMEDY}"
        )
    return replace_module(model, heads[-1], nn.Identity())


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Put ``new`` wherever the model has ``old``, and return the model."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)
    return new if model is old else model
