"""ProtoNorm's alignment of prototypes that a run has left, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from protea.core.geometry import align


def alignment_path(vectors: NDArray[np.float32], steps: Sequence[int]) -> list[NDArray[np.float32]]:
    """Return the rows, brought to length 1, after each of these numbers of steps of the alignment.

    >>> start, end = alignment_path(np.array([[2.0, 0.0], [1.0, 1.0]], np.float32), [0, 100])
    >>> print(start[0], round(float(np.linalg.norm(end[0] - end[1])), 3))  # two rows end opposite each other
    [1. 0.] 2.0
    """
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = torch.from_numpy(vectors)
    return [np.asarray(align(rows, steps=count).vectors.numpy()) if count else unit for count in steps]
