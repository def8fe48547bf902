"""CIFAR-10 and CIFAR-100 in their binary version; the pickled one is never read.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.  A checksum guards the
download.  Files that are found may hold any number of whole records, so a subset will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from protea.core.errors import DataError
from protea.data import files
from protea.data.dataset import Dataset
from protea.data.download import Remote
from protea.data.files import SourceFiles

SITE = "https://www.cs.toronto.edu/~kriz"
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class CIFAR10:
    """50,000 and 10,000 images of 32 x 32 in 10 classes."""

    files: ClassVar[SourceFiles] = SourceFiles(
        "cifar10",
        ("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"),
        (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"),
        (Remote(f"{SITE}/cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530"),),
    )

    def load(self) -> Dataset:
        return read_records(self.files, "batches.meta.txt", classes=10, label_bytes=1)


@dataclass(frozen=True)
class CIFAR100:
    """50,000 and 10,000 images of 32 x 32 in 100 classes (the fine ones)."""

    files: ClassVar[SourceFiles] = SourceFiles(
        "cifar100",
        ("cifar-100-binary", "cifar100/cifar-100-binary"),
        ("train.bin", "test.bin"),
        (Remote(f"{SITE}/cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8"),),
    )

    def load(self) -> Dataset:
        return read_records(self.files, "fine_label_names.txt", classes=100, label_bytes=2)


def read_records(wanted: SourceFiles, names_file: str, classes: int, label_bytes: int) -> Dataset:
    """Read records of ``label_bytes`` labels, the last of which counts, and pixels; the last file is the test part."""
    folder, batches = wanted.find(), []
    for part in wanted.files:
        path = files.find_file(folder, part) or folder / part
        raw = np.frombuffer(files.read_content(path), np.uint8)
        if not len(raw) or len(raw) % (label_bytes + PIXELS):
            raise DataError(
                f"{path} is damaged or cut short: {len(raw)} bytes are not a whole number of records "
                f"of {label_bytes + PIXELS} bytes.  Remove it and get it again."
            )
        batches.append(raw.reshape(-1, label_bytes + PIXELS))
        if (highest := batches[-1][:, label_bytes - 1].max()) >= classes:
            raise DataError(f"{path} is damaged: it has a label {highest}, but the classes are 0 to {classes - 1}.")
    records = np.concatenate(batches)
    x = torch.from_numpy(records[:, label_bytes:].reshape(-1, 3, 32, 32).copy())
    y = torch.from_numpy(records[:, label_bytes - 1].astype(np.int64))
    return Dataset(x, y, class_names(folder / names_file, classes), tests=len(batches[-1]))


def class_names(path: Path, classes: int) -> tuple[str, ...]:
    """Read the names of the classes from the file that comes with the images; numbers if it is not there."""
    names = path.read_text(encoding="utf-8").split() if path.exists() else []
    return tuple(names) if len(names) == classes else tuple(map(str, range(classes)))
