"""The server as a method sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from protea.data.samples import Samples
from protea.memory import Memory
from protea.models.split import SplitModel
from protea.rng import Streams


def no_models(architecture: str) -> SplitModel:
    raise LookupError(f"no model {architecture!r} can be made here")


@dataclass
class Server:
    """What ``start_server``, ``broadcast``, ``aggregate`` and ``server_model`` may touch."""

    classes: int
    dim: int
    rng: Streams
    public: Samples | None = None
    make: Callable[[str], SplitModel] = no_models  # a model by name; "smallest" of the family, "server"
    device: torch.device = torch.device("cpu")
    round: int = 0
    rounds: int = 1
    memory: Memory = field(default_factory=Memory)
