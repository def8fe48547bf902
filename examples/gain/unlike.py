"""Ten hospitals whose scanners differ: digits that each client sees in a way of its own.

    python examples/gain/unlike.py features/unlike.npz

Every client has about as many samples of all ten classes, but its images are turned, mirrored, inverted or noisy.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from protea.core.files import writing

CLIENTS = 10


def main(path: Path) -> None:
    """Write images, labels and, as keys, whose they are."""
    images, labels = load_digits(return_X_y=True)
    pixels = images.reshape(-1, 1, 8, 8).astype(np.float32) / 8 - 1
    rng = np.random.default_rng(1)
    keys = rng.permutation(len(labels)) % CLIENTS
    for client in range(CLIENTS):
        rows = keys == client
        pixels[rows] = np.rot90(pixels[rows], client % 4, axes=(2, 3))
        if client >= 4:
            pixels[rows] = pixels[rows, :, :, ::-1]
        if client >= 8:
            pixels[rows] = -pixels[rows]
    pixels += rng.normal(scale=0.2, size=pixels.shape).astype(np.float32) * (keys % 3 == 2)[:, None, None, None]
    with writing(path) as file:
        np.savez(file, x=pixels, y=labels, keys=keys.astype(str))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
