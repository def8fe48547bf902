"""The memory format of convolutions: torch's own (channels first), or channels last.

Which is faster depends on the architecture, and the numbers differ in their last digits.  So ``models.channels_last =
"auto"`` follows a fixed table, and a file gives the same numbers on every machine.  ``"measure"`` times both ways here.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protea.core.devices import torch_threads

# Architectures that train faster with the channels last on a CPU: those whose geometric mean over images of 28 and 32
# pixels is above GAIN in benchmarks/memory_format.py.
CHANNELS_LAST = frozenset({
    "cnn", "cnn4", "efficientnet_b0", "googlenet", "htcnn1", "htcnn2", "htcnn3", "htcnn4", "htcnn5", "htcnn6", "htcnn7",
    "htcnn8", "mobilenet_v2", "resnet4", "resnet6", "shufflenet_v2_x1_0", "tiny_cnn", "tiny_resnet", "tiny_separable",
})  # fmt: skip
SMALL = 500  # numbers of an image, below which the format hardly matters
GAIN = 1.05  # seconds of a step channels first over channels last, above which the latter is chosen
TRIES = 8  # steps of each format that are timed
LIMIT = 1.0  # seconds, after which two steps of each are enough


def time_both(make: Callable[[bool], nn.Module], x: Tensor, y: Tensor) -> tuple[float, float] | None:
    """Time training steps of both formats in turns; return the fastest of each, in seconds: torch's own, channels last.

    ``make(channels_last)`` makes a model.  The result is ``None`` if the model has no convolution.
    """
    with torch_threads(1), torch.random.fork_rng(devices=[]):  # nothing of this may change what a run draws
        models = [make(False), make(True)]
        if not any(isinstance(part, nn.Conv2d) for part in models[0].modules()):
            return None
        seconds: list[list[float]] = [[], []]
        for model in models:
            _step(model, x, y)  # the first is slow
        while len(seconds[0]) < TRIES and not (len(seconds[0]) >= 2 and sum(map(sum, seconds)) > LIMIT):
            for model, own in zip(models, seconds, strict=True):
                own.append(_step(model, x, y))
    return min(seconds[0]), min(seconds[1])  # whatever else goes on here only ever adds


def _step(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the seconds of a forward and a backward pass."""
    started = time.perf_counter()
    F.cross_entropy(model(x), y).backward()
    seconds = time.perf_counter() - started
    model.zero_grad()
    return seconds
