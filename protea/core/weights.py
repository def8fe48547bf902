"""Weights of a module, as a payload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from protea.core.errors import PayloadError
from protea.core.payload import Payload, as_sent
from protea.core.split_model import SplitModel


@dataclass(frozen=True)
class Weights(Payload):
    """A module's parameters and buffers by name."""

    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, module: nn.Module, *, buffers: bool = True) -> Self:
        """Copies; without ``buffers`` the parameters alone, so not BatchNorm's statistics."""
        parts = module.state_dict() if buffers else dict(module.named_parameters())
        return cls({name: as_sent(t.detach()) for name, t in parts.items()})

    def load_into(self, module: nn.Module, *, buffers: bool = True) -> None:
        """Give the module these weights; :class:`PayloadError` unless they are like its own."""
        self.check_like(Weights.of(module, buffers=buffers))
        module.load_state_dict(dict(self.tensors), strict=buffers)

    def below(self, part: str) -> Weights:
        """Those of one part of the module, ``head`` say, by their names in that part."""
        return Weights({
            name.removeprefix(f"{part}."): t for name, t in self.tensors.items() if name.startswith(f"{part}.")
        })  # fmt: skip

    def run(self, module: nn.Module, x: Tensor) -> Tensor:
        """What the module makes of ``x`` with these weights; it keeps its own, and lends its buffers if need be."""
        if lacking := {name for name, _ in module.named_parameters()} - self.tensors.keys():
            raise PayloadError(f"Weights {min(lacking)!r}: nothing arrived.")
        out: Tensor = functional_call(module, dict(self.tensors), x)
        return out

    def features(self, model: SplitModel, x: Tensor) -> Tensor:
        """The model's features with these weights.  Part by part, as it may remember features of its own."""
        return self.below("adapter").run(model.adapter, self.below("body").run(model.body, x))

    def scores(self, model: SplitModel, x: Tensor) -> Tensor:
        """The model's answer with these weights."""
        return self.below("head").run(model.head, self.features(model, x))

    @classmethod
    def mean(cls, parts: Sequence[Weights], samples: Sequence[float] | None = None) -> Self:
        """Mean name by name, weighted by ``samples`` where given.

        Whole numbers (BatchNorm's step counter) cannot be averaged and are the largest seen.
        """
        shares = [1.0] * len(parts) if samples is None else list(samples)
        total = sum(shares)
        return cls(
            {name: _mean([p.tensors[name] for p in parts], [s / total for s in shares]) for name in parts[0].tensors}
        )

    def check_like(self, other: Weights) -> None:
        """Raise unless names, shapes and kinds of numbers are those of ``other``."""
        found = {name: (tuple(t.shape), t.dtype) for name, t in self.tensors.items()}
        expected = {name: (tuple(t.shape), t.dtype) for name, t in other.tensors.items()}
        if found != expected:
            name = sorted(k for k in found.keys() | expected.keys() if found.get(k) != expected.get(k))[0]
            raise PayloadError(
                f"Weights {name!r}: {_shown(found.get(name))} arrived, not {_shown(expected.get(name))}."
            )


def _shown(kind: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "nothing" if kind is None else f"{kind[0]} of {kind[1]}"


def _mean(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    if not tensors[0].is_floating_point():
        return torch.stack(list(tensors)).amax(0)
    result = shares[0] * tensors[0]
    for tensor, share in zip(tensors[1:], shares[1:], strict=True):
        result += share * tensor
    return result
