"""Numbers that bring each feature to mean 0 and deviation 1: fitted once, kept, and applied to new samples too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from protea.core.errors import DataError


@dataclass(frozen=True)
class Scaling:
    """The mean and deviation of each feature, as they are subtracted and divided by.

    >>> Scaling.of(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))(torch.tensor([[3.0, 6.0]]))
    tensor([[1., 1.]])
    """

    mean: Tensor  # float64, of the shape of one sample
    deviation: Tensor  # float64, of the same shape; 1 where a feature never changes

    @classmethod
    def of(cls, rows: Tensor) -> Self:
        """Return the numbers of some samples; raise :class:`DataError` for samples that are not numbers."""
        if not rows.is_floating_point():
            raise DataError(
                f"Only numbers can be standardised, and the samples are {str(rows.dtype).removeprefix('torch.')}.  "
                f"Images as bytes are brought to -1 to 1 without it."
            )
        exact = rows.double()
        deviation = exact.std(0, correction=0)
        return cls(exact.mean(0), torch.where(deviation > 0, deviation, 1.0))

    def __call__(self, x: Tensor) -> Tensor:
        """Return samples ``(samples, ...)`` scaled, as float32; computed in float64."""
        return ((x.double() - self.mean) / self.deviation).float()

    def to_table(self) -> dict[str, Any]:
        """Return the numbers for JSON, which keeps every digit of a float64."""
        return {
            "mean": self.mean.flatten().tolist(),
            "deviation": self.deviation.flatten().tolist(),
            "shape": list(self.mean.shape),
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_table` wrote; raise :class:`DataError` for what cannot be such numbers."""
        try:
            found = [
                torch.tensor(table[name], dtype=torch.float64).reshape(table["shape"]) for name in ("mean", "deviation")
            ]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"These are no means and deviations: {error!r}.") from error
        if not all(torch.isfinite(tensor).all() for tensor in found) or not (found[1] > 0).all():
            raise DataError("Means and deviations must be finite, and deviations above 0.")
        return cls(*found)
