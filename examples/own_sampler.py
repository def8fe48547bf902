"""A sampler of your own: clients take part in turn.

In an experiment file, with this folder in PYTHONPATH:

    rounds = 4
    clients = 4
    fraction = 0.5
    sampler = "own_sampler:InTurn"
    [data]
    samples = 300
    [models]
    family = "tiny_mlp"
    dim = 16
"""

from collections.abc import Sequence
from dataclasses import dataclass

import protea
from protea.core.rng import Streams


@dataclass(frozen=True)
class InTurn:
    def __call__(self, clients: Sequence[int], count: int, round: int, rng: Streams) -> Sequence[int]:
        """Choose ``count`` of the clients that are there; whoever draws, draws from ``rng.generator("a name")``."""
        first = (round - 1) * count
        return [clients[(first + place) % len(clients)] for place in range(count)]


if __name__ == "__main__":
    small = {"data": protea.Data(samples=300), "models": protea.Models("tiny_mlp", dim=16)}
    for record in protea.Run(protea.Experiment(rounds=4, clients=4, fraction=0.5, sampler=InTurn(), **small)):
        print(record.round, record.participants)
