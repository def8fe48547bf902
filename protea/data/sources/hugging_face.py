"""Data sets of the library ``datasets`` (Hugging Face): from this machine, or by their name on its hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from pydantic import PositiveInt
from torch import Tensor

from protea.core.errors import ConfigError, DataError, nearest
from protea.data import convert, files, images
from protea.data.dataset import Dataset
from protea.data.texts import Texts

READERS = ("parquet", "arrow", "csv", "json", "text", "imagefolder")  # none of which runs what is in a file


@dataclass(frozen=True)
class HuggingFace:
    """A folder that ``save_to_disk`` wrote, a folder of tables or images, or a name on the hub, which is downloaded.

    ``inputs`` names the column of images, of texts or of rows of numbers, or several columns of one number each;
    without it the only such column is taken.  ``label`` is the column with the class, ``key`` the one that says whose a
    sample is.  ``train`` and ``test`` are parts; there need not be a part called test, and ``test = ""`` leaves it out.
    ``name`` is one of several configurations.  ``size`` scales images to a square, ``mode`` is RGB or L (grey).
    In Python ``path`` may be a ``Dataset`` or a ``DatasetDict``.
    """

    path: Any
    inputs: tuple[str, ...] = ()
    label: str = "label"
    key: str | None = None
    train: str = "train"
    test: str = "test"
    name: str | None = None
    size: PositiveInt | None = None
    mode: images.Mode | None = None

    def load(self) -> Dataset:
        train, test = self.parts()
        return self.to_dataset(train, test)

    def parts(self) -> tuple[Any, Any]:
        """Return the training part and the test part, ``None`` if there is none, as the library has them."""
        found = load_parts(self.path, self.name)
        if self.train not in found:
            raise DataError(f"{self.where} has no part {self.train!r}.  {nearest(self.train, found)}  Set train.")
        if self.test not in found and self.test not in ("", "test"):
            raise DataError(f"{self.where} has no part {self.test!r}.  {nearest(self.test, found)}  Set test.")
        return found[self.train], found.get(self.test)

    @property
    def where(self) -> str:
        """What messages call the data set."""
        return self.path if isinstance(self.path, str) else "the data set"

    def to_dataset(self, train: Any, test: Any) -> Dataset:
        """Make the samples of both parts one data set, the test part last."""
        parts = [train] if test is None else [train, test]
        for part in parts:
            for name in (*self.inputs, self.label, *([self.key] if self.key else ())):
                if name not in part.column_names:
                    raise DataError(f"{self.where} has no column {name!r}.  {nearest(name, part.column_names)}")
        inputs = self.inputs or (self.found_inputs(train),)
        x = joined([self.read_inputs(part, inputs) for part in parts], self.where)
        y, names = self.read_labels(parts)
        keys = called = None
        if self.key is not None:
            whose = np.concatenate([convert.to_array(part[self.key][:]) for part in parts])
            keys, called = convert.number_keys(whose), convert.names_of_keys(whose)
        return Dataset(x, y, names, 0 if test is None else len(test), keys, called)

    def found_inputs(self, part: Any) -> str:
        """Return the one column that can only be the inputs: of images, else of texts or of rows of numbers."""
        others = [name for name in part.column_names if name not in (self.label, self.key)]
        for kinds in (("image",), ("text", "row")):
            fitting = [name for name in others if kind_of(part.features[name]) in kinds]
            if len(fitting) == 1:
                return str(fitting[0])
            if fitting:
                break
        raise DataError(
            f"{self.where} has the columns {', '.join(others) or 'none'} besides {self.label}: which are the inputs?  "
            f'Say so: inputs = ["{others[0] if others else "image"}"]'
        )

    def read_inputs(self, part: Any, names: Sequence[str]) -> Tensor | Texts:
        """Return the inputs of one part: images as bytes, texts, or numbers."""
        kinds = {kind_of(part.features[name]) for name in names}
        if len(names) == 1 and kinds == {"image"}:
            return self.read_images(part, names[0])
        if len(names) == 1 and kinds == {"text"}:
            return Texts.of(strings(part[names[0]][:], f"{self.where}, column {names[0]}"))
        if kinds == {"number"}:
            columns = [numbers(part, name, self.where) for name in names]
            return convert.to_inputs(np.stack(columns, 1).astype(np.float32))
        if len(names) == 1 and kinds == {"row"}:
            return convert.to_inputs(numbers(part, names[0], self.where))
        raise DataError(
            f"{self.where}: {', '.join(names)} are of the kinds {', '.join(sorted(kinds))}.  Expected is one column of "
            f"images, of texts or of rows of numbers, or several columns of one number each."
        )

    def read_images(self, part: Any, name: str) -> Tensor:
        """Return a column of images as bytes (samples, channels, height, width)."""
        found: npt.NDArray[np.uint8] | None = None
        mode = self.mode
        for row in range(len(part)):
            try:
                picture = part[row][name]
                if not isinstance(picture, Image.Image):
                    raise DataError(f"{self.where}: sample {row} has no image.")
                mode = mode or ("L" if picture.mode in ("L", "1") else "RGB")
                image = images.image_bytes(picture.convert(mode), self.size)
            except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
                raise DataError(f"{self.where}: the image of sample {row} cannot be read: {error}.") from error
            if found is None:
                found = np.empty((len(part), image.shape[2], *image.shape[:2]), np.uint8)
            if image.shape[:2] != found.shape[2:]:
                raise DataError(
                    f"{self.where}: the image of sample {row} is {image.shape[1]} x {image.shape[0]} pixels, the first "
                    f"one {found.shape[3]} x {found.shape[2]}.  Set size to scale all images to one size."
                )
            found[row] = image.transpose(2, 0, 1)
        return torch.from_numpy(np.empty((0, 1, 1, 1), np.uint8) if found is None else found)

    def read_labels(self, parts: Sequence[Any]) -> tuple[Tensor, tuple[str, ...]]:
        """Return the labels of all parts, and the names of the classes."""
        given = [values for part in parts for values in part[self.label][:]]
        if (lacking := next((row for row, value in enumerate(given) if value is None), None)) is not None:
            raise DataError(f"{self.where}: sample {lacking} has no {self.label}.  Remove it.")
        names = getattr(parts[0].features[self.label], "names", None)
        if names is not None and any(type(value) is int and not 0 <= value < len(names) for value in given):
            raise DataError(
                f"{self.where}: some samples have no class (-1).  These may be a part to be judged by others: "
                f'test = "" leaves it out.'
            )
        return convert.to_labels(given, names)


def joined(parts: Sequence[Tensor | Texts], where: str) -> Tensor | Texts:
    """Return the inputs of all parts together."""
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if not tensors:
        texts = [part for part in parts if isinstance(part, Texts)]
        return Texts.of(text[row] for text in texts for row in range(len(text)))
    if len({(part.dtype, part.shape[1:]) for part in tensors}) > 1:
        shapes = " and ".join(str(tuple(part.shape[1:])) for part in tensors)
        raise DataError(f"{where}: samples of the two parts have different shapes, {shapes}.  For images, set size.")
    return torch.cat(tensors)


def kind_of(feature: Any) -> str:
    """Return what a column holds: ``image``, ``text``, ``number``, ``row`` (of numbers), or ``other``."""
    name = type(feature).__name__
    if name == "Image":
        return "image"
    if name == "Value":
        if feature.dtype in ("string", "large_string"):
            return "text"
        return "number" if feature.dtype.startswith(("int", "uint", "float", "bool")) else "other"
    if name in ("Array2D", "Array3D", "Array4D", "Array5D"):
        return "row"
    inner = getattr(feature, "feature", None)  # of a list
    return "row" if inner is not None and kind_of(inner) in ("number", "row") else "other"


def numbers(part: Any, name: str, where: str) -> npt.NDArray[Any]:
    """Return a column of numbers, or of rows of as many numbers each."""
    found = np.asarray(part.with_format("numpy")[name][:])
    if found.dtype.kind not in "buif":
        raise DataError(f"{where}: column {name} has rows of different lengths, or values are missing.")
    return found


def strings(values: Sequence[Any], where: str) -> Sequence[str]:
    """Return texts; raise :class:`DataError` if one is missing."""
    if (lacking := next((row for row, value in enumerate(values) if not isinstance(value, str)), None)) is not None:
        raise DataError(f"{where}: sample {lacking} has no text.  Remove it.")
    return values


def load_parts(path: Any, name: str | None) -> Mapping[str, Any]:
    """Return the parts of a data set by name; raise :class:`DataError` for what cannot be read, or should not be."""
    datasets = library()
    if isinstance(path, datasets.Dataset):
        return {"train": path}
    if isinstance(path, datasets.DatasetDict):
        return dict(path)
    if not isinstance(path, str):
        raise ConfigError(f"datasets: path is {path!r}; expected is a folder, a name on the hub, or a Dataset.")
    try:
        place: Path | None = files.user_path(path)
    except DataError as error:
        if path.startswith((".", "/", "~")) or path.count("/") > 1:
            raise DataError(f"{error}  Names on the hub are such as mnist or ylecun/mnist.") from error
        place = None
    try:
        if place is not None and (place / "dataset_dict.json").is_file():
            return dict(datasets.load_from_disk(str(place)))
        if place is not None and (place / "state.json").is_file():
            return {"train": datasets.load_from_disk(str(place))}
        builder = datasets.load_dataset_builder(path if place is None else str(place.absolute()), name)
        readers = [each.__module__.rsplit(".", 1)[-1] for each in type(builder).__mro__]
        if not set(readers) & set(READERS):
            raise DataError(f"{path} is of the kind {readers[1]}.  Read are {', '.join(READERS)}: these run no code.")
        builder.download_and_prepare()
        return dict(builder.as_dataset())
    except DataError:
        raise
    except Exception as error:  # of many kinds, of this library, of Arrow and of the network
        raise DataError(
            f"{path} cannot be read by datasets: {type(error).__name__}: {str(error)[:300]}\n  Expected is a folder on "
            f"this machine (save_to_disk, or tables or images), or a name on the hub, which this machine can reach."
        ) from error


def library() -> Any:
    """Import the library; raise :class:`ConfigError` if it is not installed."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"The source datasets needs the package {error.name}.  Install it: pip install -e '.[datasets]'"
        ) from error
    datasets.disable_progress_bars()
    return datasets
