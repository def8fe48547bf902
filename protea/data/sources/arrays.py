"""Arrays, tensors or a torch data set that a script already has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protea.core.errors import DataError
from protea.data import convert
from protea.data.dataset import Dataset
from protea.data.new_samples import NewSamples, SampleForm, read_in_form


@dataclass(frozen=True, eq=False)
class Arrays:
    """``Arrays(x, y)``, or ``Arrays(torch_dataset)`` whose items are pairs of input and label.

    ``x_test`` is a test part in the same form.  Bytes are images and may be (n, h, w),
    (n, h, w, c) or (n, c, h, w); other numbers become float32, or stay integers with
    ``tokens``, for models that embed them.  ``y`` may be names.  ``keys`` says whose each
    sample is.
    """

    x: Any
    y: Any = None
    x_test: Any = None
    y_test: Any = None
    names: Sequence[str] | None = None
    keys: Any = None
    keys_test: Any = None
    tokens: bool = False

    def load(self) -> Dataset:
        x, y = pairs(self.x, self.y)
        x_test, y_test = pairs(self.x_test, self.y_test)
        return convert.to_dataset(
            x,
            y,
            x_test,
            y_test,
            names=self.names,
            keys=self.keys,
            keys_test=self.keys_test,
            tokens=self.tokens,
        )

    def read_new(self, path: Path, form: SampleForm) -> NewSamples:
        """Read new samples; where the classes were named, labels that are numbers count through these."""
        return read_in_form(path, form, counted=self.names is not None)


def pairs(x: Any, y: Any) -> tuple[Any, Any]:
    """Return inputs and labels; those of a torch data set are gathered item by item."""
    if x is None or y is not None:
        return x, y
    if isinstance(x, torch.Tensor | np.ndarray) or not hasattr(x, "__getitem__") or not hasattr(x, "__len__"):
        raise DataError("Arrays(x, y) needs labels y, unless x is a torch data set of pairs (input, label).")
    items = [x[row] for row in range(len(x))]
    if not items or not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise DataError(f"The items of {type(x).__name__} are not pairs (input, label).")
    shapes = {tuple(np.shape(one)) for one, _ in items}
    if len(shapes) > 1:
        raise DataError(f"The inputs of {type(x).__name__} have different shapes, such as {sorted(shapes)[:2]}.")
    return np.stack([convert.to_array(one) for one, _ in items]), [convert.to_array(label).item() for _, label in items]
