"""Who takes part in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from protea.core.rng import Streams


class Sampler(Protocol):
    """Chooses the clients of a round; a frozen dataclass whose fields are its settings."""

    def __call__(self, clients: Sequence[int], count: int, round: int, rng: Streams) -> Sequence[int]:
        """Choose ``count`` of the clients that are there; ``rng`` is the server's stream of this round."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Every client is as likely as any other, and none is chosen twice."""

    def __call__(self, clients: Sequence[int], count: int, round: int, rng: Streams) -> Sequence[int]:
        order = torch.randperm(len(clients), generator=rng.generator("participants"))
        return [clients[place] for place in order[:count].tolist()]
