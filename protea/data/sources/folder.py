"""A user's own images, one folder for each class."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pydantic import PositiveInt

from protea.core.errors import DataError
from protea.data import files, images
from protea.data.dataset import Dataset
from protea.data.new_samples import NewSamples, SampleForm, read_folder, read_in_form


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

    def read_new(self, path: Path, form: SampleForm) -> NewSamples:
        """Read new images, flat or in one folder for each class: in the same mode, and scaled if these are."""
        form = replace(form, resize=form.resize or self.size is not None)
        return read_folder(path, form, self.mode) if path.is_dir() else read_in_form(path, form)


def image_paths(root: Path) -> list[Path]:
    """Return the sorted paths ``root/<class>/<image>``."""
    return sorted(path for path in root.glob("*/*") if path.suffix.lower() in images.SUFFIXES)
