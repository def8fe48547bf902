"""An optimizer of your own: any of torch's, or one that you wrote.

In an experiment file, with this folder in PYTHONPATH:

    rounds = 2
    clients = 3
    [data]
    samples = 300
    [models]
    family = "tiny_mlp"
    dim = 16
    [training]
    lr = 0.003
    optimizer = { name = "own_optimizer:RMSprop", smoothing = 0.9 }
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

import protea


@dataclass(frozen=True)
class RMSprop:
    smoothing: float = 0.99

    def __call__(
        self, parameters: Sequence[torch.nn.Parameter], lr: float, training: protea.Training
    ) -> torch.optim.Optimizer:
        """Made anew in each round; ``lr`` is that of the round, ``training`` all of ``[training]``."""
        decay = training.weight_decay
        return torch.optim.RMSprop(parameters, lr=lr, alpha=self.smoothing, weight_decay=decay)


if __name__ == "__main__":
    training = protea.Training(lr=0.003, optimizer=RMSprop(0.9))
    small = {"data": protea.Data(samples=300), "models": protea.Models("tiny_mlp", dim=16)}
    result = protea.run(protea.Experiment(rounds=2, clients=3, training=training, **small))
    print(f"accuracy {result.records[-1].accuracy:.1%}")
