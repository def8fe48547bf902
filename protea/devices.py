"""Where models and data are while they are worked on."""

from __future__ import annotations

import torch

from protea.errors import ConfigError


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
