"""Folders that the data scripts of PFLlib and HtFLlib wrote: a file of training and one of test samples per client."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib import format as npy

from protea.core.errors import DataError
from protea.data import convert, files
from protea.data.array_pickles import PickledArray, read_array_pickle
from protea.data.dataset import Dataset

LARGEST = 1 << 33  # bytes of one array, unpacked: what claims more is no data set of these libraries


@dataclass(frozen=True)
class PFLlib:
    """``path/train/0.npz``, ``path/test/0.npz`` and so on; with ``partition = "source"`` every client has its own.

    Each file holds a pickled dictionary of ``x`` and ``y``.  Of the pickle arrays, numbers and lists are read, by hand;
    nothing in it is run.  Classes are numbers; how many there are is in ``config.json``, if that is there.
    """

    path: str

    def load(self) -> Dataset:
        root = files.user_path(self.path)
        count = count_clients(root)
        x, y, keys, judged = [], [], [], []
        for client in range(count):
            for part in ("train", "test"):
                inputs, labels = read_part(root / part / f"{client}.npz")
                x.append(convert.to_inputs(inputs, tokens=inputs.dtype.kind == "i" and inputs.ndim == 2))
                y.append(torch.from_numpy(labels))
                keys.append(torch.full((len(labels),), client))
                judged.append(torch.full((len(labels),), part == "test"))
                if (x[-1].dtype, x[-1].shape[1:]) != (x[0].dtype, x[0].shape[1:]):
                    raise DataError(
                        f"{root / part / f'{client}.npz'} has inputs of shape {tuple(x[-1].shape[1:])}, {x[-1].dtype}; "
                        f"{root / 'train' / '0.npz'} has {tuple(x[0].shape[1:])}, {x[0].dtype}."
                    )
        every = torch.cat(y)
        classes = max(int(every.max()) + 1 if len(every) else 0, stated_classes(root))
        names = tuple(map(str, range(classes)))
        return Dataset(torch.cat(x), every, names, keys=torch.cat(keys), judged=torch.cat(judged))


def count_clients(root: Path) -> int:
    """Return how many clients a folder has files of; raise :class:`DataError` if one of them is missing."""
    expected = "Expected are train/0.npz, train/1.npz, ... and test/0.npz, test/1.npz, ..., one of each for a client."
    for part in ("train", "test"):
        if not (root / part).is_dir():
            raise DataError(f"{root} has no folder {part}.  {expected}")
    found = {part: {path.stem for path in (root / part).glob("*.npz")} for part in ("train", "test")}
    if not found["train"]:
        raise DataError(f"{root / 'train'} has no .npz file.  {expected}")
    wanted = {str(client) for client in range(len(found["train"]))}
    for part, names in found.items():
        if lacking := sorted(wanted - names, key=int):
            raise DataError(f"{root / part} has no {lacking[0]}.npz.  {expected}")
        if more := sorted(names - wanted):
            raise DataError(f"{root / part} has {more[0]}.npz, and train/ has {len(wanted)} files.  {expected}")
    return len(wanted)


def stated_classes(root: Path) -> int:
    """Return the number of classes that ``config.json`` states; 0 where it states none."""
    try:
        stated = json.loads((root / "config.json").read_text("utf-8")).get("num_classes", 0)
    except (OSError, ValueError, AttributeError):
        return 0
    return stated if type(stated) is int and 0 < stated <= 1_000_000 else 0


def read_part(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return inputs and labels of one file; raise :class:`DataError` for anything else."""
    try:
        with zipfile.ZipFile(path) as packed:
            names = sorted(packed.namelist())
            if names == ["x.npy", "y.npy"]:  # plain arrays, as some forks write them
                found = {name[0]: plain(read_member(packed, name, path), path) for name in names}
            elif names == ["data.npy"]:
                found = dictionary(read_member(packed, "data.npy", path), path)
            else:
                raise DataError(f"{path} holds {', '.join(names[:5]) or 'nothing'}.  Expected is one array, data.")
    except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{path} cannot be read, or is damaged: {error}.") from error
    inputs, labels = found["x"], found["y"]
    if labels.dtype.kind == "f" and np.array_equal(labels, np.trunc(labels)):
        labels = labels.astype(np.int64)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or inputs.ndim < 2 or len(inputs) != len(labels):
        raise DataError(
            f"{path}: x has the shape {inputs.shape} and y {labels.shape} of {labels.dtype}.  Expected are samples in "
            f"rows, and a whole number for each."
        )
    return inputs, labels.astype(np.int64)


def read_member(packed: zipfile.ZipFile, name: str, path: Path) -> bytes:
    """Return a member of an archive, unpacked; raise :class:`DataError` if it is larger than any such data set."""
    if packed.getinfo(name).file_size > LARGEST:
        raise DataError(f"{path} unpacks to {packed.getinfo(name).file_size:,} bytes, more than {LARGEST:,}.")
    return packed.read(name)


def plain(content: bytes, path: Path) -> npt.NDArray[Any]:
    """Return a plain array of an .npy file."""
    try:
        found: npt.NDArray[Any] = np.load(BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DataError(f"{path} holds something that is no plain array: {error}.") from error
    if found.dtype.kind not in "buif":
        raise DataError(f"{path} holds an array of {found.dtype}.  Expected are numbers.")
    return found


def dictionary(content: bytes, path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays ``x`` and ``y`` of the dictionary that is pickled in an .npy file."""
    file = BytesIO(content)
    try:
        version = npy.read_magic(file)
        _, _, dtype = npy.read_array_header_1_0(file) if version == (1, 0) else npy.read_array_header_2_0(file)
    except ValueError as error:
        raise DataError(f"{path} holds no NumPy array: {error}.") from error
    if not dtype.hasobject:
        raise DataError(f"{path} holds an array of {dtype}, without labels.  Expected is a dictionary of x and y.")
    value = read_array_pickle(file.read(), f"{path} (data)")
    if isinstance(value, PickledArray) and value.shape == () and value.items is not None:
        value = value.items[0]
    if not isinstance(value, dict) or not {"x", "y"} <= value.keys():
        raise DataError(f"{path} does not hold a dictionary of x and y.")
    return {name: as_numbers(value[name], f"{path}: {name}") for name in ("x", "y")}


def as_numbers(value: Any, what: str) -> npt.NDArray[Any]:
    """Return an array of numbers; lists of numbers become one, and texts, cut into tokens, lose their lengths."""
    if isinstance(value, PickledArray) and value.numbers is not None:
        return value.numbers
    if isinstance(value, PickledArray) and value.items is not None and value.shape == (len(value.items) // 2, 2):
        tokens = value.items[::2]  # rows of (tokens, number of tokens), as generate_AGNews.py writes them
        if len({len(row) for row in tokens if type(row) is list}) == 1 and all(map(whole_numbers, tokens)):
            return np.array(tokens, np.int64)
    if type(value) is list and value and all(type(each) in (int, float) for each in value):
        return np.array(value, np.int64 if whole_numbers(value) else np.float64)
    raise DataError(f"{what} is no array of numbers, nor rows of as many tokens each.")


def whole_numbers(row: Any) -> bool:
    """Whether something is a list of whole numbers, of which each fits 64 bits."""
    return type(row) is list and all(type(each) is int and -(1 << 63) <= each < 1 << 63 for each in row)
