"""The device that models and samples are on, and the number of torch's threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from protea.core.errors import ConfigError


def choose_device(name: str) -> str:
    """Return the name of the torch device to use; ``auto`` takes CUDA, else MPS, else the CPU.

    >>> choose_device("cpu")
    'cpu'
    """
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there[name]:
        raise ConfigError(f"device is {name!r}, which torch does not find on this machine.  Set device=cpu or auto.")
    return name


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` threads within the block: float sums depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
