"""Fewer bytes for each number of an upload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from protea.core.errors import ClientError, PayloadError
from protea.core.message import Named
from protea.filters.base import Filter, Passage

HALF, BYTES, SCALES = "~float16", "~int8", "~scale"  # after the name of a tensor that is sent so
LEVELS = 127  # of an int8, on either side of zero


@dataclass(frozen=True)
class Quantize(Filter):
    """Sends float32 rows as ``float16`` (half the bytes) or as ``int8`` with one scale for each row (a quarter).

    Whole numbers, and single rows such as the counts of all classes, are sent as they are.  What the server gets back
    differs by rounding: by one part in 2,000 of a number, or by one part in 254 of the largest number of its row.
    """

    to: Literal["float16", "int8"] = "float16"

    def leave(self, up: Named, at: Passage) -> Named:
        found: Named = {}
        for name, tensor in up.items():
            if tensor.dtype != torch.float32 or tensor.ndim < 2:
                found[name] = tensor
            elif self.to == "float16":
                found[name + HALF] = self._halved(tensor, name, at)
            else:
                found[name + BYTES], found[name + SCALES] = to_int8(tensor)
        return found

    def _halved(self, tensor: Tensor, name: str, at: Passage) -> Tensor:
        half = tensor.half()
        if half.isinf().any():
            raise ClientError(
                f"client {at.client}, round {at.round}: {name} holds numbers up to {float(tensor.abs().max()):.3g}; "
                f'float16 has none above 65,504.  Set to = "int8" for the filter quantize, or clip before it.'
            )
        return half

    def arrive(self, up: Named, at: Passage) -> Named:
        found: Named = {}
        for name, tensor in up.items():
            if name.endswith(HALF):
                found[name.removesuffix(HALF)] = _of_kind(tensor, torch.float16, name).float()
            elif name.endswith(BYTES):
                stem = name.removesuffix(BYTES)
                scales = up.get(stem + SCALES)
                if scales is None or scales.shape != (*tensor.shape[:-1], 1):
                    raise PayloadError(f"{name!r} arrived without one scale for each of its rows.")
                found[stem] = _of_kind(tensor, torch.int8, name).float() * _of_kind(scales, torch.float32, stem)
            elif not name.endswith(SCALES):
                found[name] = tensor
        return found


def to_int8(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Rows, along the last axis, as whole numbers from -127 to 127, and what one step is worth in each row.

    >>> to_int8(torch.tensor([[1.27, -0.5]]))[0]
    tensor([[127, -50]], dtype=torch.int8)
    """
    if not tensor.numel():
        return tensor.to(torch.int8), tensor.new_zeros(*tensor.shape[:-1], 1)
    scales = tensor.abs().amax(-1, keepdim=True) / LEVELS
    steps = tensor / torch.where(scales > 0, scales, 1.0)
    return steps.round().clamp(-LEVELS, LEVELS).to(torch.int8), scales


def _of_kind(tensor: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    if tensor.dtype != dtype:
        raise PayloadError(f"{name!r} arrived in {tensor.dtype}; {dtype} was expected.")
    return tensor
