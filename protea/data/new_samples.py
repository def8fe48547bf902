"""Samples that a trained model has not seen: read from a file, and brought into the form that it was trained on.

A table (.csv, .csv.gz), arrays (.npz) or a folder of images will do.  Labels are optional.  The source that a run was
trained on reads new samples itself where it can (:class:`NewSampleReader`): a table knows its columns, their means and
deviations, a folder of images its size and mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from protea.core.errors import DataError
from protea.data import convert, images

TABLES = (".csv", ".csv.gz")


@dataclass(frozen=True)
class SampleForm:
    """What a run's samples look like, and what its classes are called."""

    names: tuple[str, ...]  # of the classes, in the order of their labels
    shape: tuple[int, ...]  # of one sample; empty for texts
    dtype: torch.dtype  # uint8 for images that the run read as bytes
    texts: bool = False
    resize: bool = False  # scale images that have another size
    fill: Tensor | None = None  # of the shape of a sample: what its client puts for missing numbers
    gaps: bool = False  # whether nan stands for missing numbers, which are filled in later

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3 and self.dtype == torch.uint8

    @property
    def mode(self) -> images.Mode:
        """Grey, or red, green and blue."""
        return "L" if self.shape[:1] == (1,) else "RGB"


@dataclass(frozen=True)
class NewSamples:
    """Inputs in the form that a model was trained on, what each is called, and its label where that is known."""

    x: Tensor | list[str]  # (samples, ...), images as bytes; or texts
    keys: list[str]  # one for each sample
    key: str = "index"  # what the keys are: row numbers, file names, or a column of a table
    labels: Tensor | None = None  # int64 (samples,)
    left_out: int = 0  # rows in which something is missing, where the source drops such rows
    unseen: int = 0  # values of categories that the training samples had not

    def __len__(self) -> int:
        return len(self.x)

    def part(self, start: int, count: int) -> Tensor | list[str]:
        """Return some of the inputs."""
        return self.x[start : start + count]


@runtime_checkable
class NewSampleReader(Protocol):
    """A source that can read new samples as it reads its own."""

    def read_new(self, path: Path, form: SampleForm) -> NewSamples:
        """Read samples into the form of the run; raise :class:`DataError` for what does not fit."""
        ...


def read_new_samples(path: Path, source: object, form: SampleForm) -> NewSamples:
    """Read samples from a table, an .npz file or a folder of images, as a run on ``source`` sees them."""
    if not path.exists():
        raise DataError(f"There is no {path}.  Give a table (.csv), arrays (.npz), or a folder of images.")
    found = source.read_new(path, form) if isinstance(source, NewSampleReader) else read_in_form(path, form)
    if not len(found):
        raise DataError(f"{path} has no samples.")
    return fitted(found, path, form)


def read_in_form(path: Path, form: SampleForm, *, counted: bool = True) -> NewSamples:
    """Read samples for a run whose source says no more about them than their form.

    With ``counted``, labels that are numbers count through the names of the classes, from 0; else they are the names.
    """
    if path.is_dir():
        return read_folder(path, form)
    if path.suffix == ".npz":
        return read_npz(path, form, counted=counted)
    if not path.name.endswith(TABLES):
        raise DataError(f"{path} is neither a table (.csv, .csv.gz), nor arrays (.npz), nor a folder of images.")
    if form.texts:
        from protea.data.sources.csv_table import Csv

        return Csv(str(path), label="label", text="text").read_new(path, form)
    raise DataError(
        f"{path} is a table, and this run was trained on {form.shape} numbers whose columns have no names.  "
        f"Give an .npz file: numpy.savez(path, x=..., y=...)."
    )


# Images


def read_folder(path: Path, form: SampleForm, mode: images.Mode | None = None) -> NewSamples:
    """Read images that lie in a folder, or in one folder for each class, whose names then are their labels."""
    if not form.is_image:
        raise DataError(f"{path} is a folder of images, and this run was trained on {described(form)}.")
    flat = sorted(file for file in path.iterdir() if file.is_file() and file.suffix.lower() in images.SUFFIXES)
    nested = sorted(file for file in path.glob("*/*") if file.suffix.lower() in images.SUFFIXES)
    if not flat and not nested:
        raise DataError(f"{path} has no images.  Expected are files with {', '.join(images.SUFFIXES)}.")
    if flat and nested:
        raise DataError(
            f"{path} has images of its own, such as {flat[0].name}, and folders with images, such as "
            f"{nested[0].parent.name}.  Put all into folders, one for each class, or none."
        )
    labels = label_numbers([file.parent.name for file in nested], form.names, path) if nested else None
    files = flat or nested
    _, height, width = form.shape
    read = [resized(images.read_image(file, None, mode or form.mode), (height, width), file, form) for file in files]
    x = torch.from_numpy(np.stack(read).transpose(0, 3, 1, 2).copy())
    return NewSamples(x, [str(file.relative_to(path)) for file in files], "file", labels)


def resized(image: np.ndarray[Any, Any], size: tuple[int, int], what: object, form: SampleForm) -> np.ndarray[Any, Any]:
    """Scale an image (height, width, channels) of bytes to the run's size; refuse to, unless the form says resize."""
    height, width = size
    if image.shape[:2] == size:
        return image
    if not form.resize:
        raise DataError(
            f"{what} is {image.shape[1]} x {image.shape[0]} pixels; the run was trained on {width} x {height}.  "
            f"Add --resize to scale it, or scale it yourself."
        )
    grey = image.shape[2] == 1
    found = Image.fromarray(image[:, :, 0] if grey else image).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(found)[:, :, None] if grey else np.asarray(found)


# Arrays


def read_npz(path: Path, form: SampleForm, *, counted: bool = True) -> NewSamples:
    """Read the field ``x`` of an .npz file, and if there are any ``y`` and ``keys``."""
    from protea.data.sources.npz import Npz

    if form.texts:
        raise DataError(
            f"{path} holds arrays, and this run was trained on texts.  Give a table with a column of texts."
        )
    fields = Npz(str(path)).fields(needed=("x",))
    x = convert.to_inputs(fields["x"], tokens=form.dtype == torch.int64)
    names, y = fields.get("names"), fields.get("y")
    if y is not None and len(y) != len(x):
        raise DataError(f"{path} has {len(x)} inputs but {len(y)} labels: give each input one, or leave out y.")
    if names is not None and y is not None:  # numbers count through the file's own names
        own, listed = convert.to_labels(y, names.tolist())
        y = np.array(listed)[own.numpy()]
    labels = None if y is None else label_numbers(y, form.names, path, counted=counted)
    if "keys" in fields:
        return NewSamples(x, [str(key) for key in fields["keys"].tolist()], "key", labels)
    return NewSamples(x, [str(row) for row in range(len(x))], "index", labels)


def label_numbers(given: Any, names: Sequence[str], where: object, *, counted: bool = False) -> Tensor:
    """Return labels as places among ``names``; with ``counted``, whole numbers are such places already.

    >>> label_numbers(["dog", "cat"], ["cat", "dog"], "here").tolist()
    [1, 0]
    """
    values = convert.to_array(given)
    if values.dtype.kind == "f" and np.array_equal(values, np.trunc(values)):
        values = values.astype(np.int64)
    if values.ndim != 1 or values.dtype.kind not in "buiUS":
        raise DataError(f"{where}: labels must be class names or whole numbers, one for each sample.")
    if counted and values.dtype.kind in "bui":
        if len(values) and not 0 <= values.min() <= values.max() < len(names):
            raise DataError(
                f"{where}: labels run from {values.min()} to {values.max()}; the run has {len(names)} classes, "
                f"from 0 to {len(names) - 1}."
            )
        return torch.from_numpy(values.astype(np.int64))
    place = {name: number for number, name in enumerate(names)}
    found, index = np.unique(values.astype(str), return_inverse=True)
    if unknown := [name for name in found.tolist() if name not in place]:
        shown = ", ".join(list(place)[:10]) + (", ..." if len(place) > 10 else "")
        raise DataError(f"{where}: the label {unknown[0]!r} is not a class of this run.  It has: {shown}.")
    return torch.from_numpy(np.array([place[name] for name in found.tolist()], np.int64)[index])


# All


def fitted(samples: NewSamples, path: Path, form: SampleForm) -> NewSamples:
    """Return the samples in the run's own shape; raise :class:`DataError` for what cannot be one of its samples."""
    if isinstance(samples.x, list):
        return samples
    x = samples.x
    if x.ndim == len(form.shape) and form.shape[:1] == (1,):
        x = x.unsqueeze(1)  # grey images without an axis of channels
    if form.is_image and x.dtype == torch.uint8 and x.ndim == 4 and tuple(x.shape[1:]) != form.shape:
        x = torch.from_numpy(images_in_form(x.numpy(), path, form))
    if tuple(x.shape[1:]) != form.shape:
        raise DataError(
            f"{path}: samples are of shape {tuple(x.shape[1:])}; this run was trained on {described(form)}."
        )
    if x.is_floating_point():
        bad = x.isinf() if form.gaps else ~x.isfinite()
        if bad.any():
            row = int(bad.flatten(1).any(1).nonzero()[0])
            raise DataError(f"{path}: sample {samples.keys[row]} holds a value that is not finite (nan or inf).")
        if form.is_image and not -1.01 <= float(x.min()) <= float(x.max()) <= 1.01:
            raise DataError(
                f"{path}: images as floats must run from -1 to 1, which is bytes / 127.5 - 1; these run from "
                f"{float(x.min()):g} to {float(x.max()):g}.  Save them as bytes (uint8)."
            )
    return replace(samples, x=x)


def images_in_form(x: np.ndarray[Any, Any], path: Path, form: SampleForm) -> np.ndarray[Any, Any]:
    """Return images of bytes (samples, channels, height, width) in the size that the run has."""
    channels, height, width = form.shape
    if x.shape[1] != channels:
        raise DataError(
            f"{path}: images have {x.shape[1]} channels; this run was trained on {described(form)}.  "
            f"{'Make them grey first.' if channels == 1 else 'Give red, green and blue.'}"
        )
    rows = [resized(image, (height, width), f"{path}: an image", form) for image in x.transpose(0, 2, 3, 1)]
    return np.stack(rows).transpose(0, 3, 1, 2).copy()


def described(form: SampleForm) -> str:
    """Say in words what the samples of a run are."""
    if form.texts:
        return "texts"
    if form.is_image:
        channels, height, width = form.shape
        return f"{'grey' if channels == 1 else 'coloured'} images of {width} x {height} pixels"
    return f"samples of shape {form.shape}"
