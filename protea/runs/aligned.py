"""Where an alignment of prototypes leads, step by step, for figures, which know no torch themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def aligned_after(vectors: NDArray[np.float32], steps: Sequence[int]) -> list[NDArray[np.float32]]:
    """Return unit vectors as ProtoNorm's alignment leaves them after each number of steps; after none, as they are."""
    import torch  # only where such a figure is drawn

    from protea.core import geometry

    rows = torch.from_numpy(vectors)
    unit = rows / rows.norm(dim=1, keepdim=True)
    return [(geometry.align(rows, steps=count).vectors if count else unit).numpy() for count in steps]
