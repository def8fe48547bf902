"""Samplers: rules that choose which clients take part in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from protea.core.errors import ConfigError
from protea.core.rng import Streams


class Sampler(Protocol):
    """A rule that chooses the participants of a round; a frozen dataclass whose fields are its settings."""

    def __call__(self, clients: Sequence[int], count: int, round: int, rng: Streams) -> Sequence[int]:
        """Choose ``count`` of the ``clients`` within reach; ``rng`` holds the server's random streams of this round."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Uniform sampling without replacement: every client is as likely as any other."""

    def __call__(self, clients: Sequence[int], count: int, round: int, rng: Streams) -> Sequence[int]:
        order = torch.randperm(len(clients), generator=rng.generator("participants"))
        return [clients[place] for place in order[:count].tolist()]


def sample(sampler: Sampler, clients: Sequence[int], count: int, round: int, rng: Streams) -> list[int]:
    """Choose the clients of a round, in ascending order; what a sampler may not choose is an error that names it."""
    chosen = sampler(clients, count, round, rng)
    fine = isinstance(chosen, Sequence) and len(chosen) > 0 and len(set(chosen)) == len(chosen)
    if not fine or not set(chosen) <= set(clients):
        raise ConfigError(
            f"sampler {type(sampler).__name__} chose {chosen!r} in round {round}; expected is a list of {count} "
            f"different clients among the {len(clients)} that are there."
        )
    return sorted(chosen)
