"""Tiny-ImageNet, as the Stanford course CS231n gives it out: 200 classes, images of 64 x 64."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from protea.core.errors import DataError
from protea.data import images
from protea.data.dataset import Dataset
from protea.data.download import Remote
from protea.data.files import SourceFiles


@dataclass(frozen=True)
class TinyImageNet:
    """The folder train/ (100,000) is the training part, val/ (10,000) the test part; test/ has no labels."""

    files: ClassVar[SourceFiles] = SourceFiles(
        "tiny-imagenet",
        ("tiny-imagenet-200", "tiny-imagenet/tiny-imagenet-200"),
        ("train", "val/val_annotations.txt"),
        (Remote("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "md5:90528d7ca1a48142e341f4ef8d21d0de"),),
    )

    def load(self) -> Dataset:
        folder = self.files.find()
        ids = sorted(place.name for place in (folder / "train").iterdir() if place.is_dir())
        train = [(path, id) for id in ids for path in sorted((folder / "train" / id / "images").glob("*.JPEG"))]
        test = validation_images(folder / "val")
        paths, labels = zip(*train, *test, strict=True)
        number = {id: label for label, id in enumerate(ids)}
        if unknown := set(labels) - set(ids):
            raise DataError(f"{folder}: val/val_annotations.txt has {min(unknown)}, for which train/ has no folder.")
        y = torch.tensor([number[id] for id in labels])
        words = class_words(folder / "words.txt")
        return Dataset(images.read_images(paths), y, tuple(words.get(id, id) for id in ids), tests=len(test))


def validation_images(folder: Path) -> list[tuple[Path, str]]:
    """Read the list of validation images: their paths and class ids."""
    lines = (folder / "val_annotations.txt").read_text(encoding="utf-8").splitlines()
    cells = [line.split("\t") for line in lines if line]
    if short := next((line for line in cells if len(line) < 2), None):
        raise DataError(f"{folder / 'val_annotations.txt'} is damaged: expected a file and a class in {short}.")
    return [(folder / "images" / line[0], line[1]) for line in cells]


def class_words(path: Path) -> dict[str, str]:
    """Read what each class id means; nothing if the list is not there."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {id: words for id, tab, words in (line.partition("\t") for line in lines) if tab}
