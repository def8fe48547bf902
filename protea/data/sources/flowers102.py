"""Oxford 102 Flowers: 8,189 photographs.  Nilsback and Zisserman, 2008."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from pydantic import PositiveInt
from scipy.io import loadmat

from protea.core.errors import DataError
from protea.data import images
from protea.data.dataset import Dataset
from protea.data.download import Remote
from protea.data.files import SourceFiles
from protea.data.new_samples import NewSamples, SampleForm, read_in_form

SITE = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102"
REMOTES = [
    Remote(f"{SITE}/setid.mat", "md5:a5357ecc9cb78c4bef273ce3793fc85c"),
    Remote(f"{SITE}/imagelabels.mat", "md5:e0620be6f572b9609742df49c70aed4d"),
    Remote(f"{SITE}/102flowers.tgz", "md5:52808999861908f626f3c1f4e79d11fa"),
]


@dataclass(frozen=True)
class Flowers102:
    """The official training and validation images (1,020 each) are the training part, 6,149 the test part."""

    size: PositiveInt = 64

    files: ClassVar[SourceFiles] = SourceFiles(
        "flowers102",
        ("flowers102", "flowers-102", "102flowers"),
        ("jpg", "imagelabels.mat", "setid.mat"),
        REMOTES,
    )

    def load(self) -> Dataset:
        folder = self.files.find()
        try:
            labels = loadmat(folder / "imagelabels.mat")["labels"].ravel().astype(np.int64)
            sets = loadmat(folder / "setid.mat")
            train, valid, test = (sets[name].ravel() for name in ("trnid", "valid", "tstid"))
        except Exception as error:  # scipy lets whatever its parser stumbles over come through
            raise DataError(f"{folder}: imagelabels.mat or setid.mat is damaged ({error!r}).") from error
        ids = np.concatenate([train, valid, test]).astype(np.int64)  # images and classes count from 1
        if ids.min() < 1 or ids.max() > len(labels):
            raise DataError(f"{folder}: setid.mat names images 1 to {ids.max()}; imagelabels.mat has {len(labels)}.")
        x = images.read_images([folder / "jpg" / f"image_{id:05d}.jpg" for id in ids], size=self.size)
        y = torch.from_numpy(labels[ids - 1] - 1)
        return Dataset(x, y, tuple(str(name) for name in range(1, 103)), tests=len(test))

    def read_new(self, path: Path, form: SampleForm) -> NewSamples:
        """Read new photographs, scaled as these are."""
        return read_in_form(path, replace(form, resize=True))
