"""What both peers need: the clients' samples from a file, the same networks, and rounds on demand.

These files run in the peer's own environment, without Protea.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

CLASSES, DIM = 10, 512
HIDDEN: tuple[tuple[int, ...], ...] = ((), (512,), (1024,), (1024, 512))  # of htcnn1 and 2, 3 and 4, ...


def settings() -> dict[str, Any]:
    """The command line: one JSON object."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


@cache
def samples(path: str | Path, client: int) -> dict[str, Tensor]:
    """x, y, x_test and y_test of a client; a process reads them once."""
    with np.load(path, allow_pickle=False) as file:
        return {name: torch.from_numpy(file[f"{client}/{name}"]) for name in ("x", "y", "x_test", "y_test")}


def htcnn(number: int) -> tuple[nn.Module, nn.Module]:
    """Body and head of htcnn1 to htcnn8, for images of 28 x 28."""
    layers: list[nn.Module] = []
    channels, side = 1, 28
    for out in (32, 64)[: 1 if number % 2 else 2]:
        layers += [nn.Conv2d(channels, out, 5), nn.ReLU(), nn.MaxPool2d(2)]
        channels, side = out, (side - 4) // 2
    width = channels * side * side
    layers.append(nn.Flatten())
    for out in (*HIDDEN[(number - 1) // 2], DIM):
        layers += [nn.Linear(width, out), nn.ReLU()]
        width = out
    return nn.Sequential(*layers), nn.Linear(DIM, CLASSES)


def serve(play: Callable[[], float]) -> None:
    """A round, of which ``play`` gives the accuracy, for every line that comes; ends with the input."""
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        accuracy = play()
        print("round", json.dumps({"seconds": time.perf_counter() - started, "accuracy": accuracy}), flush=True)
