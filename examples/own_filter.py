"""A filter of your own: prototypes leave their client with noise.

In an experiment file, with this folder in PYTHONPATH:

    rounds = 2
    clients = 3
    [data]
    samples = 300
    [models]
    family = "tiny_mlp"
    dim = 16
    [[filters]]
    name = "own_filter:Jitter"
    size = 0.1
"""

from dataclasses import dataclass

import torch

import protea
from protea.core.message import Named
from protea.filters.base import Passage


@dataclass(frozen=True)
class Jitter(protea.Filter):
    size: float = 0.01  # standard deviation

    def leave(self, up: Named, at: Passage) -> Named:  # arrive(up, at) would undo it at the server
        """Change the named tensors of an upload; draws have a stream of this client, round and filter."""
        draws = at.rng.generator("noise")
        return {
            name: tensor + self.size * torch.randn(tensor.shape, generator=draws) if name == "vectors" else tensor
            for name, tensor in up.items()
        }


if __name__ == "__main__":
    small = {"data": protea.Data(samples=300), "models": protea.Models("tiny_mlp", dim=16)}
    result = protea.run(protea.Experiment(rounds=2, clients=3, filters=(Jitter(0.1),), **small))
    print(f"accuracy {result.records[-1].accuracy:.1%}")
