"""Handwritten digits, 1,797 images of 8 x 8, that come with scikit-learn: nothing to download."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from protea.data.dataset import Dataset


@dataclass(frozen=True)
class Digits:
    """Handwritten digits of 8 x 8, embedded; no part of them is a test set by itself."""

    def load(self) -> Dataset:
        package = find_spec("sklearn")  # whose import would take longer than all the rest
        assert package is not None and package.origin is not None
        rows = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
        images = np.rint(rows[:, :64] * (255 / 16)).astype(np.uint8)  # the file's grey levels are 0 to 16
        labels = torch.from_numpy(rows[:, 64].astype(np.int64))
        return Dataset(torch.from_numpy(images.reshape(-1, 1, 8, 8)), labels, tuple("0123456789"))
