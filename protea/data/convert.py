"""Conversion of users' inputs and labels, of many forms, to the one form that a ``Dataset`` has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protea.core.errors import DataError
from protea.data.dataset import Dataset


def to_inputs(given: Any, *, tokens: bool = False) -> Tensor:
    """Return images as bytes (n, c, h, w); anything else as float32, or with ``tokens`` as integers.

    Bytes may be (n, h, w), (n, h, w, c) or (n, c, h, w), with 1 or 3 channels.  Where both of
    the last two are possible, (n, c, h, w) is meant.
    """
    x = to_numbers(given)
    if x.dtype != torch.uint8 or x.ndim < 3:
        return x.to(torch.int64 if tokens else torch.float32).contiguous()
    if x.ndim == 3:
        return x.unsqueeze(1).contiguous()
    if x.ndim == 4 and x.shape[1] in (1, 3):
        return x.contiguous()
    if x.ndim == 4 and x.shape[3] in (1, 3):
        return x.permute(0, 3, 1, 2).contiguous()
    raise DataError(
        f"Images of shape {tuple(x.shape[1:])}: expected (h, w), (h, w, c) or (c, h, w), with c 1 or 3.\n"
        f"  Other arrays of numbers can be given as float32."
    )


def to_numbers(x: Any) -> Tensor:
    """Return an array or tensor of numbers as a tensor on the CPU; raise :class:`DataError` for anything else."""
    if isinstance(x, Tensor):
        return x.detach().cpu()
    copied = np.array(x)  # torch wants an array that it may write to
    if copied.dtype.kind not in "buif":
        raise DataError(f"The inputs are of type {copied.dtype}; expected numbers.")
    return torch.from_numpy(copied)


def to_labels(y: Any, names: Sequence[str] | None = None) -> tuple[Tensor, tuple[str, ...]]:
    """Return labels as 0, 1, 2, ..., int64 (n,), and the names of these classes.

    With ``names`` given, labels are such names, or numbers that count through them.  Without,
    the distinct labels, sorted, are the classes; whole numbers are sorted as numbers.
    """
    given = to_array(y)
    if given.ndim != 1:
        raise DataError(f"Labels of shape {given.shape}: one label for each input is needed.")
    if given.dtype.kind == "f" and np.array_equal(given, np.trunc(given)):
        given = given.astype(np.int64)
    if given.dtype.kind not in "buiUS":
        raise DataError(f"The labels are of type {given.dtype}; expected whole numbers or names.")
    text = given.dtype.kind in "US"
    given = given.astype(str if text else np.int64)
    if names is not None and not text:
        return torch.from_numpy(given), tuple(map(str, names))
    found, index = np.unique(given, return_inverse=True)
    if names is None:
        if text and all(name.isdecimal() and str(int(name)) == name for name in found):
            return to_labels(given.astype(np.int64))
        return torch.from_numpy(index.astype(np.int64)), tuple(map(str, found))
    place = {str(name): number for number, name in enumerate(names)}
    if unknown := [str(name) for name in found if str(name) not in place]:
        raise DataError(f"The label {unknown[0]!r} is not among the classes {', '.join(place)}.")
    codes = np.array([place[str(name)] for name in found], np.int64)
    return torch.from_numpy(codes[index]), tuple(map(str, names))


def to_dataset(
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    *,
    names: Sequence[str] | None = None,
    keys: Any = None,
    keys_test: Any = None,
    tokens: bool = False,
) -> Dataset:
    """Make one ``Dataset`` of a training part and, if there is one, a test part."""
    parts = [(x, y, keys)] if x_test is None else [(x, y, keys), (x_test, y_test, keys_test)]
    images = [to_inputs(part, tokens=tokens) for part, _, _ in parts]
    if len({(image.dtype, image.shape[1:]) for image in images}) > 1:
        raise DataError(
            f"The training inputs are {images[0].dtype} of shape {tuple(images[0].shape[1:])}, "
            f"the test inputs {images[1].dtype} of shape {tuple(images[1].shape[1:])}: they must be the same."
        )
    for image, (_, given, whose) in zip(images, parts, strict=True):
        if given is None or len(given) != len(image):
            raise DataError(
                f"{len(image)} inputs but {0 if given is None else len(given)} labels: give each input one."
            )
        if keys is not None and (whose is None or len(whose) != len(image)):
            raise DataError(f"{len(image)} inputs but {0 if whose is None else len(whose)} keys: give each input one.")
    y_all, names = to_labels(np.concatenate([to_array(given) for _, given, _ in parts]), names)
    whose_all = called = None
    if keys is not None:
        joined = np.concatenate([to_array(whose) for _, _, whose in parts])
        whose_all, called = number_keys(joined), names_of_keys(joined)
    tests = 0 if x_test is None else len(images[1])
    return Dataset(torch.cat(images), y_all, names, tests, whose_all, called)


def number_keys(keys: Any) -> Tensor:
    """Return keys of any kind as numbers 0, 1, ..., int64 (n,): equal where they were equal, in sorted order."""
    keys = to_array(keys)
    if keys.dtype.kind not in "buifUS" or keys.ndim != 1:
        raise DataError(f"Keys of type {keys.dtype} and shape {keys.shape}: each sample needs one number or name.")
    return torch.from_numpy(np.unique(keys, return_inverse=True)[1].astype(np.int64))


def names_of_keys(keys: Any) -> tuple[str, ...] | None:
    """Return what the keys are called, in the order of :func:`number_keys`; ``None`` where they are only numbers.

    >>> names_of_keys(["south", "north", "south"]), names_of_keys([4, 2])
    (('north', 'south'), None)
    """
    names = tuple(map(str, np.unique(to_array(keys)).tolist()))
    if not all(name.isprintable() for name in names):
        return None
    return None if all(name.lstrip("-").replace(".", "", 1).isdecimal() for name in names) else names


def to_array(values: Any) -> np.ndarray[Any, Any]:
    """Return a NumPy array of a tensor, a list, or a column of pandas."""
    found = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if found.dtype.kind in "OT" and all(isinstance(value, str) for value in found.flat):
        return found.astype(str)  # how pandas gives a column of names
    return found
