"""A metric of your own: how often the right class is among the likeliest few.

In an experiment file, with this folder in PYTHONPATH:

    rounds = 2
    clients = 3
    [data]
    samples = 300
    [models]
    family = "tiny_mlp"
    dim = 16
    [[evaluation.metrics]]
    name = "own_metric:AmongFirst"
    count = 3
"""

from dataclasses import dataclass

from torch import Tensor

import protea


@dataclass(frozen=True)  # its fields are its settings
class AmongFirst:
    count: int = 2

    def __call__(self, probabilities: Tensor, labels: Tensor) -> float:
        """``probabilities`` are (samples, classes), ``labels`` (samples,), of one client; a finite number is wanted."""
        likeliest = probabilities.topk(self.count).indices
        return float((likeliest == labels.unsqueeze(1)).any(1).float().mean())


if __name__ == "__main__":
    evaluation = protea.Evaluation(metrics=(AmongFirst(3),))
    small = {"data": protea.Data(samples=300), "models": protea.Models("tiny_mlp", dim=16)}
    result = protea.run(protea.Experiment(rounds=2, clients=3, evaluation=evaluation, **small))
    print(f"among the first three: {result.records[-1].metrics['amongfirst'].weighted:.1%}")
