"""MNIST and those that share its four idx files, plain or as .gz."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor

from protea.core.errors import DataError
from protea.data import files
from protea.data.dataset import Dataset
from protea.data.download import Remote
from protea.data.files import SourceFiles

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


TOGETHER = 4096  # images that are scaled at once
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def remotes(site: str, *digests: str) -> list[Remote]:
    """Return the four files at a site, each with its MD5 checksum."""
    return [Remote(f"{site}/{file}.gz", f"md5:{digest}") for file, digest in zip(FILES, digests, strict=True)]


@dataclass(frozen=True)
class FashionMNIST:
    """Clothes, 28 x 28, 60,000 and 10,000.  Xiao, Rasul, Vollgraf, https://arxiv.org/abs/1708.07747

    FedPAGR has them in the form of CIFAR: ``size=32, channels=3``.
    """

    size: PositiveInt | None = None  # pixels of a side to which images are scaled
    channels: Literal[1, 3] = 1  # 3: the grey image as red, green and blue

    files: ClassVar[SourceFiles] = SourceFiles(
        "fashion-mnist",
        ("fashion-mnist", "FashionMNIST/raw"),
        FILES,
        remotes(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    )

    def load(self) -> Dataset:
        return read_idx_files(self.files.find(), CLOTHES, self.size, self.channels)


@dataclass(frozen=True)
class MNIST:
    """Handwritten digits, 28 x 28, 60,000 and 10,000.  LeCun, Cortes, Burges."""

    files: ClassVar[SourceFiles] = SourceFiles(
        "mnist",
        ("mnist", "MNIST/raw"),
        FILES,
        remotes(
            "https://ossci-datasets.s3.amazonaws.com/mnist",  # a mirror: the authors' own is not for programs
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    )

    def load(self) -> Dataset:
        return read_idx_files(self.files.find(), tuple("0123456789"))


def read_idx_files(folder: Path, names: tuple[str, ...], size: int | None = None, channels: int = 1) -> Dataset:
    """Read the four files of a data set like MNIST, scaled to ``size`` x ``size`` pixels if asked for."""
    x, y, x_test, y_test = (read_idx(files.find_file(folder, file) or folder / file) for file in FILES)
    for part, inputs, targets in (("train", x, y), ("t10k", x_test, y_test)):
        if inputs.ndim != 3 or targets.shape != inputs.shape[:1]:
            raise DataError(f"{folder}: the {part} images are {inputs.shape}, the labels {targets.shape}.")
    images = in_form(torch.from_numpy(np.concatenate([x, x_test])[:, None]), size, channels)
    labels = torch.from_numpy(np.concatenate([y, y_test]).astype(np.int64))
    return Dataset(images, labels, names, tests=len(y_test))


def in_form(images: Tensor, size: int | None, channels: int) -> Tensor:
    """Scale grey images ``(n, 1, height, width)`` of bytes to a square, and repeat them for several channels."""
    if size is not None and images.shape[-2:] != (size, size):
        parts = [
            F.interpolate(part.float(), (size, size), mode="bilinear", antialias=True).round_().clamp_(0, 255).byte()
            for part in images.split(TOGETHER)
        ]
        images = torch.cat(parts)
    return images.expand(-1, channels, -1, -1).contiguous() if channels > 1 else images


def read_idx(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Read one file: the bytes 0, 0, 8, the number of dimensions, each dimension in 4 bytes, and the data."""
    raw = files.read_content(path)
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise DataError(f"{path} is not an idx file of bytes: it begins with {raw[:4].hex(' ') or 'nothing'}.")
    start = 4 + 4 * raw[3]
    shape = tuple(np.frombuffer(raw[4:start], ">u4").tolist()) if len(raw) >= start else ()
    if len(raw) != start + int(np.prod(shape)):
        raise DataError(f"{path} is damaged or cut short: {len(raw)} bytes, of which it says it holds {shape}.")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
