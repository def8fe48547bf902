"""Weights as products of two thin matrices each: fewer numbers, nearly the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from protea.core.errors import PayloadError
from protea.core.payload import Payload
from protea.core.weights import Weights

Matrices = Literal["rows", "kernels"]
RankRule = Literal["enough", "code"]


@dataclass(frozen=True)
class LowRank(Payload):
    """The weights of a module, each whole or as ``left @ right``."""

    whole: Mapping[str, Tensor]  # those that would not become smaller
    left: Mapping[str, Tensor]
    right: Mapping[str, Tensor]

    @classmethod
    def of(cls, weights: Weights, energy: float, matrices: Matrices = "rows", rule: RankRule = "enough") -> Self:
        """Compress weights: keep so many singular values that their squares have the share ``energy`` of the sum.

        A tensor with more than two axes is one matrix with a row for each output, or
        (``kernels``) as many as there are kernels, all of one rank.  One that would not
        become smaller stays whole, but for the rule ``code``, which cuts off every one.
        """
        whole, left, right = dict(weights.tensors), {}, {}
        for name, tensor in weights.tensors.items():
            if tensor.ndim < 2 or not tensor.is_floating_point():
                continue
            matrix = as_matrix(tensor, matrices)
            singular, basis, wide = spectrum(matrix)
            count = rank_for_energy(singular, energy, rule)
            if rule == "code" or count * sum(matrix.shape[-2:]) < matrix.shape[-2] * matrix.shape[-1]:
                del whole[name]
                kept = basis[..., :count]
                left[name], right[name] = (kept, kept.mT @ matrix) if wide else (matrix @ kept, kept.mT)
        return cls(whole, {k: t.contiguous() for k, t in left.items()}, {k: t.contiguous() for k, t in right.items()})

    def weights(self, like: Weights) -> Weights:
        """Multiply the matrices out; raise :class:`PayloadError` unless names and shapes are those of ``like``."""
        found = dict(self.whole)
        for name, left in self.left.items():
            target, right = like.tensors.get(name), self.right.get(name)
            if name in found or target is None or right is None or not fits(left, right, target):
                raise PayloadError(f"Weights {name!r} arrived as matrices that make no weights like those expected.")
            longest = min(left.norm(dim=-2).max(), right.norm(dim=-1).max()) if left.numel() else 0.0
            if longest > 1.01:  # or the product may be far larger than what was sent, whose size has been checked
                raise PayloadError(f"Weights {name!r} arrived as matrices of which neither has vectors of length 1.")
            found[name] = (left @ right).reshape(target.shape)
        if self.right.keys() != self.left.keys():
            raise PayloadError(
                f"Of {len(self.left)} and {len(self.right)} thin matrices not all have their other half."
            )
        weights = Weights({name: found[name] for name in like.tensors if name in found} | found)
        weights.check_like(like)
        return weights


def as_matrix(tensor: Tensor, matrices: Matrices) -> Tensor:
    """Return a tensor as one matrix with a row per output, or as it is: a stack of matrices, one per kernel."""
    return tensor.flatten(1) if matrices == "rows" or tensor.ndim == 2 else tensor


def spectrum(matrix: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Return the singular values, largest first, their vectors on the shorter side, and whether that is the left one.

    They come from the products of rows, or columns: several times as fast as a decomposition of the
    matrix itself, and as exact for the large values, which alone are kept.
    """
    wide = matrix.shape[-2] <= matrix.shape[-1]
    values, vectors = torch.linalg.eigh(matrix @ matrix.mT if wide else matrix.mT @ matrix)
    return values.flip(-1).clamp(min=0).sqrt(), vectors.flip(-1), wide


def rank_for_energy(singular: Tensor, energy: float, rule: RankRule = "enough") -> int:
    """Return how many singular values, largest first, have the share ``energy`` of the sum of squares; at least one.

    For a stack of matrices the sums over them count.  ``code`` is the rule of the reference code: the
    first number that has *more* than the share, among all but the last, and 0 if there is none.

    >>> rank_for_energy(torch.tensor([3.0, 1.0, 0.1]), 0.95)  # 9 and 1 of 10.01
    2
    """
    squares = singular.square().reshape(-1, singular.shape[-1]).sum(0)
    reached = squares.cumsum(0)
    if rule == "code":
        more = (reached[:-1] > energy * squares.sum()).nonzero()
        return int(more[0]) + 1 if len(more) else 0
    return min(int((reached < energy * squares.sum()).sum()) + 1, len(squares))


def fits(left: Tensor, right: Tensor, target: Tensor) -> bool:
    """Tell whether ``left @ right`` has the target's type and, once reshaped, its shape."""
    shapes = {(target.shape[0], target[0].numel()), tuple(target.shape)} if target.ndim > 1 else set()
    floats = left.dtype == right.dtype == target.dtype
    if left.ndim < 2 or left.ndim != right.ndim or left.shape[:-2] != right.shape[:-2] or not floats:
        return False
    return left.shape[-1] == right.shape[-2] and (*left.shape[:-1], right.shape[-1]) in shapes
