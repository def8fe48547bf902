"""The samples of a site, in whatever form its owner gives them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from protea.core.errors import DataError
from protea.data import Arrays, Dataset


def as_dataset(given: Any, names: tuple[str, ...]) -> Dataset:
    """Make a data set of ``(x, y)`` or ``(x, y, x_test, y_test)``, a torch data set, or a source like ``Csv(...)``."""
    if isinstance(given, Dataset):
        return given
    if hasattr(given, "load") and not isinstance(given, torch.utils.data.Dataset):
        found = given.load()
        if not isinstance(found, Dataset):
            raise DataError(f"load() of {type(given).__name__} gives a {type(found).__name__}, not a Dataset.")
        return found
    if isinstance(given, tuple):
        if len(given) not in (2, 4):
            raise DataError(f"{len(given)} things were returned; expected are x, y, or x, y, x_test, y_test.")
        x, y, x_test, y_test = (*given, None, None)[:4]
        return Arrays(x, y, x_test, y_test, names=names).load()
    return Arrays(given, names=names).load()


def with_classes(dataset: Dataset, classes: tuple[str, ...]) -> Dataset:
    """Return the samples with labels numbered as in the task; raise :class:`DataError` for a class it has not."""
    if dataset.names == classes:
        return dataset
    place = {name: number for number, name in enumerate(classes)}
    if unknown := [name for name in dataset.names if name not in place]:
        raise DataError(f"there are samples of the class {unknown[0]!r}; the task has {', '.join(classes)}.")
    codes = torch.tensor([place[name] for name in dataset.names])
    return replace(dataset, y=codes[dataset.y], names=classes)
