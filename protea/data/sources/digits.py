"""Handwritten digits, 1,797 images of 8 x 8, that come with scikit-learn: nothing to download."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from protea.data.dataset import Dataset


@dataclass(frozen=True)
class Digits:
    """Handwritten digits of 8 x 8, embedded; no part of them is a test set by itself."""

    def load(self) -> Dataset:
        from sklearn.datasets import load_digits  # a second to import, for this source only

        digits = load_digits()
        images = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # the file's grey levels are 0 to 16
        labels = torch.from_numpy(digits.target.astype(np.int64))
        return Dataset(torch.from_numpy(images[:, None]), labels, tuple("0123456789"))
