"""Image files, read into one array."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from protea.core.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")

Mode = Literal["RGB", "L"]


def read_images(paths: Sequence[Path], size: int | None = None, mode: Mode = "RGB") -> Tensor:
    """Read images as bytes (n, c, h, w); ``size`` scales each to a square, without it all must have one size."""
    if not paths:
        return torch.empty(0, dtype=torch.uint8)
    first = read_image(paths[0], size, mode)
    height, width, channels = first.shape
    images = np.empty((len(paths), channels, height, width), np.uint8)

    def place(row: int) -> None:
        image = read_image(paths[row], size, mode)
        if image.shape != first.shape:
            raise DataError(
                f"{paths[row]} is {image.shape[1]} x {image.shape[0]} pixels, "
                f"{paths[0]} is {first.shape[1]} x {first.shape[0]}.\n"
                f"  Set size to scale all images to one size."
            )
        images[row] = image.transpose(2, 0, 1)

    with ThreadPoolExecutor() as pool:  # decoding does not hold Python's lock
        for _ in pool.map(place, range(len(paths))):
            pass
    return torch.from_numpy(images)


def read_image(path: Path, size: int | None, mode: Mode) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Read one image as bytes (height, width, channels)."""
    try:
        with Image.open(path) as opened:
            image = opened.convert(mode)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as an image: {error}.  Remove it, or get it again.") from error
    return image_bytes(image, size)


def image_bytes(image: Image.Image, size: int | None) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a grey or coloured image as bytes (height, width, channels), scaled to a square if ``size`` is given."""
    if size is not None:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    array = np.asarray(image)
    return array if array.ndim == 3 else array[:, :, None]
