"""A user's own images, one folder for each class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import PositiveInt

from protea.core.errors import DataError
from protea.data import files, images
from protea.data.dataset import Dataset


@dataclass(frozen=True)
class Folder:
    """``path/<class>/<image>``, or ``path/train/<class>/<image>`` with ``path/test/...`` beside it.

    ``size`` scales each image to a square of so many pixels; without it all must have one size.
    ``mode`` is RGB or L (grey).
    """

    path: str
    size: PositiveInt | None = None
    mode: images.Mode = "RGB"

    def load(self) -> Dataset:
        root = files.user_path(self.path)
        if not root.is_dir():
            raise DataError(f"{root} is not a folder.  Expected one with a folder of images for each class.")
        parted = (root / "train").is_dir() and (root / "test").is_dir()
        train, test = (image_paths(root / "train"), image_paths(root / "test")) if parted else (image_paths(root), [])
        if not train:
            raise DataError(
                f"{root} has no images.  Expected {root}/<class>/<image> with {', '.join(images.SUFFIXES)}."
            )
        names = sorted({path.parent.name for path in train + test})
        number = {name: label for label, name in enumerate(names)}
        y = torch.tensor([number[path.parent.name] for path in train + test])
        return Dataset(images.read_images(train + test, self.size, self.mode), y, tuple(names), tests=len(test))


def image_paths(root: Path) -> list[Path]:
    """Return the sorted paths ``root/<class>/<image>``."""
    return sorted(path for path in root.glob("*/*") if path.suffix.lower() in images.SUFFIXES)
