"""Samples of a site, and those that all parties have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from protea.data.dataset import Dataset
from protea.data.samples import Samples
from protea.data.sources.arrays import Arrays
from protea.errors import ConfigError, DataError
from protea.network.task import Task


def as_dataset(given: Any, names: tuple[str, ...]) -> Dataset:
    """Arrays ``(x, y)`` or ``(x, y, x_test, y_test)``, a torch data set, or a source such as ``Csv(...)``."""
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
    """The same samples, their labels counted as the task does."""
    if dataset.names == classes:
        return dataset
    place = {name: number for number, name in enumerate(classes)}
    if unknown := [name for name in dataset.names if name not in place]:
        raise DataError(f"there are samples of the class {unknown[0]!r}; the task has {', '.join(classes)}.")
    codes = torch.tensor([place[name] for name in dataset.names])
    return Dataset(dataset.x, codes[dataset.y], classes, dataset.tests, dataset.keys)


def public_samples(path: Path, task: Task, device: str = "cpu") -> Samples:
    """Inputs that all parties have; nobody has labelled them."""
    try:
        named = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if named.keys() != {"x"}:
        raise ConfigError(f"{path} holds {', '.join(sorted(named)) or 'nothing'}; expected is x alone.")
    x = named["x"]
    if tuple(x.shape[1:]) != task.shape:
        raise ConfigError(f"{path} has samples of shape {tuple(x.shape[1:])}; the task's are {task.shape}.")
    return Samples(Dataset(x, torch.zeros(len(x), dtype=torch.int64), task.classes), device=device)
