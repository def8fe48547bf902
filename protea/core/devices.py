"""On what models and data are worked on: which device, how many threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from protea.core.errors import ConfigError


def device(name: str) -> str:
    """The device that is used; ``auto`` is the fastest there is."""
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there[name]:
        raise ConfigError(f"device is {name!r}, which torch does not find on this machine.  Set device=cpu or auto.")
    return name


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Torch with ``count`` threads: float sums depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
