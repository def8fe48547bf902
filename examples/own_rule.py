"""A rule of your own: an answer half by the classifier and half by the nearest global prototype.

In an experiment file, with this folder in PYTHONPATH:

    rounds = 2
    clients = 3
    [data]
    samples = 300
    [models]
    family = "tiny_mlp"
    dim = 16
    [[evaluation.rules]]
    name = "own_rule:Both"
    share = 0.5
"""

from dataclasses import dataclass

from torch import Tensor

import protea


@dataclass(frozen=True)
class Both:
    share: float = 0.5  # of the classifier

    def __call__(self, client: protea.Client, x: Tensor, down: protea.Prototypes | None) -> Tensor:
        """Scores (batch, classes), higher for likelier classes; ``down`` is what the server sent last."""
        head = client.model(x).softmax(1)
        if down is None:  # before the first round
            return head.log()
        near = down.scores(client.model.features(x)).softmax(1)
        return (self.share * head + (1 - self.share) * near).log()


if __name__ == "__main__":
    evaluation = protea.Evaluation(rules=(Both(),))
    small = {"data": protea.Data(samples=300), "models": protea.Models("tiny_mlp", dim=16)}
    result = protea.run(protea.Experiment(rounds=2, clients=3, evaluation=evaluation, **small))
    print(f"by both {result.records[-1].test['both'].weighted:.1%}")
