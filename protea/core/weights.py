"""The weights of a module as a payload."""

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
    """A module's parameters and buffers by name.

    >>> layer = nn.Linear(2, 1)
    >>> sorted(Weights.of(layer).tensors)
    ['bias', 'weight']
    """

    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, module: nn.Module, *, buffers: bool = True) -> Self:
        """Copy a module's weights; without ``buffers`` the parameters alone, so not BatchNorm's statistics."""
        parts = module.state_dict() if buffers else dict(module.named_parameters())
        return cls({name: as_sent(t.detach()) for name, t in parts.items()})

    def load_into(self, module: nn.Module, *, buffers: bool = True) -> None:
        """Load these weights into a module; raise :class:`PayloadError` unless names, shapes and types are its own."""
        self.check_like(Weights.of(module, buffers=buffers))
        module.load_state_dict(dict(self.tensors), strict=buffers)

    def below(self, part: str) -> Weights:
        """Return the weights of one part of the module, such as ``head``, by their names in that part."""
        return Weights({
            name.removeprefix(f"{part}."): t for name, t in self.tensors.items() if name.startswith(f"{part}.")
        })  # fmt: skip

    def run(self, module: nn.Module, x: Tensor) -> Tensor:
        """Return ``module(x)`` computed with these weights; the module itself does not change.

        Buffers that are not among them, such as BatchNorm's statistics, are the module's own.
        """
        if lacking := {name for name, _ in module.named_parameters()} - self.tensors.keys():
            raise PayloadError(f"Weights {min(lacking)!r}: nothing arrived.")
        out: Tensor = functional_call(module, dict(self.tensors), x)
        return out

    def features(self, model: SplitModel, x: Tensor) -> Tensor:
        """Return the model's features with these weights; part by part, as the model may reuse features of its own."""
        return self.below("adapter").run(model.adapter, self.below("body").run(model.body, x))

    def scores(self, model: SplitModel, x: Tensor) -> Tensor:
        """Return the model's class scores with these weights."""
        return self.below("head").run(model.head, self.features(model, x))

    @classmethod
    def mean(cls, parts: Sequence[Weights], samples: Sequence[float] | None = None) -> Self:
        """Return the mean of several modules' weights, weighted by ``samples`` where given.

        Of whole numbers (BatchNorm's step counter), which have no mean, the largest is taken.

        >>> zero, four = Weights({"w": torch.zeros(1)}), Weights({"w": torch.full((1,), 4.0)})
        >>> Weights.mean([zero, four], [3, 1]).tensors["w"].item()
        1.0
        """
        shares = [1.0] * len(parts) if samples is None else list(samples)
        total = sum(shares)
        return cls(
            {name: _mean([p.tensors[name] for p in parts], [s / total for s in shares]) for name in parts[0].tensors}
        )

    def check_like(self, other: Weights) -> None:
        """Raise :class:`PayloadError` unless names, shapes and types are those of ``other``."""
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
