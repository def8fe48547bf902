"""Numbers as whole multiples of a step, modulo a power of two: only so do masks cancel without a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protea.core.errors import ClientError
from protea.core.message import Named

Words = NDArray[Any]  # one row of unsigned whole numbers, of 32 or 64 bits
TensorShapes = tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes of tensors, by name


@dataclass(frozen=True)
class FixedPoint:
    """Whole multiples of ``step``, as words of ``bits``.

    >>> point = FixedPoint(step=0.25, bits=32)
    >>> words = point.words({"a": torch.tensor([1.5, -0.5])}, sites=3)
    >>> words.tolist(), point.tensors(words, shapes_of({"a": torch.zeros(2)}))["a"].tolist()
    ([6, 4294967294], [1.5, -0.5])
    """

    step: float
    bits: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a word, little-endian."""
        return np.dtype(f"<u{self.bits // 8}")

    @property
    def sent(self) -> torch.dtype:
        """The type of tensor in which words travel: torch has few operations for unsigned ones."""
        return torch.int64 if self.bits == 64 else torch.int32

    def largest(self, sites: int) -> float:
        """Return the largest number of which the sum over ``sites`` sites surely fits."""
        return ((1 << (self.bits - 1)) - 1) // sites * self.step

    def words(self, named: Mapping[str, Tensor], sites: int) -> Words:
        """Return all numbers, by the names of their tensors; raise :class:`ClientError` for one that may not fit."""
        for name, tensor in named.items():
            if tensor.numel() and not float(tensor.abs().max()) <= self.largest(sites):
                found = float(tensor.abs().max())
                raise ClientError(
                    f"{name} holds {found:.3g}, which secure_sum cannot add up: with step = {self.step:g} and "
                    f"{self.bits} bits, {sites} sites may have numbers up to {self.largest(sites):.3g} each.  Set a "
                    f"larger step, bits = 64, or the filter clip before secure_sum."
                )
        parts = [np.rint(named[name].double().cpu().numpy().reshape(-1) / self.step) for name in sorted(named)]
        return np.concatenate(parts).astype(np.int64).astype(self.dtype)

    def tensors(self, words: Words, shapes: TensorShapes) -> Named:
        """Return the numbers that words stand for, in tensors of float64."""
        signed = words.view(f"<i{self.bits // 8}").astype(np.float64) * self.step
        return cut(torch.from_numpy(signed), shapes)

    def to_send(self, words: Words, shapes: TensorShapes) -> Named:
        """Return words as tensors that can travel."""
        return {
            name: part.clone()
            for name, part in cut(torch.from_numpy(words.view(f"<i{self.bits // 8}")), shapes).items()
        }

    def received(self, named: Named) -> Words:
        """Return the words that :meth:`to_send` gave."""
        parts = [named[name].cpu().contiguous().numpy().reshape(-1) for name in sorted(named)]
        return np.concatenate(parts).astype(self.dtype)


def shapes_of(named: Mapping[str, Tensor]) -> TensorShapes:
    """Return the names and shapes of tensors, by name."""
    return tuple((name, tuple(named[name].shape)) for name in sorted(named))


def numbers_in(shapes: TensorShapes) -> int:
    """Count the numbers in tensors of these shapes."""
    return sum(int(np.prod(shape, dtype=np.int64)) for _, shape in shapes)


def cut(row: Tensor, shapes: TensorShapes) -> Named:
    """Cut a row of numbers into tensors."""
    sizes: Sequence[int] = [numbers_in((each,)) for each in shapes]
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes, row.split(list(sizes)), strict=True)}
