"""Class vectors of bounded length: what a client may say loudly is limited, whatever it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from protea.core.payload import Named, places_of
from protea.core.prototypes import Prototypes
from protea.filters.base import Filter, Passage

SLACK = 1e-6  # a vector that was shortened may be longer by rounding, and is not shortened again


@dataclass(frozen=True)
class Clip(Filter):
    """Shortens prototypes, and other vectors of a class, that are longer than ``norm``; the server does so too."""

    norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0

    summable = True

    def leave(self, up: Named, at: Passage) -> Named:
        places = {f"{place}.vectors".lstrip(".") for place in places_of(Prototypes, at.kind, up)}
        return {name: shortened(t, self.norm) if name in places and t.ndim == 2 else t for name, t in up.items()}

    def arrive(self, up: Named, at: Passage) -> Named:
        return self.leave(up, at)


def shortened(rows: Tensor, norm: float) -> Tensor:
    """The rows, those that are longer than ``norm`` scaled down to it.

    >>> shortened(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    if not rows.is_floating_point():
        return rows
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return torch.where(lengths > norm * (1 + SLACK), rows * (norm / lengths), rows)
