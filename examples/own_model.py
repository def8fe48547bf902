"""Models of your own in one federation with a built-in one.

A factory is called with ``shape``, that of one sample, and ``classes``, the number of classes, and returns
an ``nn.Module``.  It is named by ``module:factory``, and the module must be where Python finds it.  A script's
own folder is such a place:

    python examples/own_model.py

For an experiment file, say which folder:

    PYTHONPATH=examples protea run exp.toml

where exp.toml is, for example:

    rounds = 5
    clients = 6
    [models]
    members = ["own_model:Reader", { name = "own_model:squeeze", width = 32 }, "tiny_cnn"]
    dim = 64
    adapter = "linear"
    [training]
    optimizer = "adam"
    lr = 0.003
"""

from torch import Tensor, nn

import protea
from protea.config.families import Models
from protea.core.training import Training


class Reader(nn.Module):
    """Reads an image row by row.  A whole classifier: Protea splits it at its last linear layer."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, _, columns = shape
        self.read = nn.GRU(channels * columns, 64, batch_first=True)
        self.classify = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.transpose(1, 2).flatten(2)  # (batch, rows, channels * columns)
        states, _ = self.read(rows)
        scores: Tensor = self.classify(states[:, -1])
        return scores


def squeeze(shape: tuple[int, ...], classes: int, width: int = 16) -> nn.Module:
    """Gives features, as many as it likes: a body, to which Protea adds the head."""
    return nn.Sequential(
        nn.Conv2d(shape[0], width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(3),
        nn.Flatten(),
    )


if __name__ == "__main__":
    members = ("own_model:Reader", {"name": "own_model:squeeze", "width": 32}, "tiny_cnn")
    models = Models(members=members, dim=64, adapter="linear")
    training = Training(optimizer="adam", lr=0.003)
    result = protea.run(protea.Experiment(rounds=5, clients=6, models=models, training=training))
    print(f"accuracy {result.accuracy:.1%}")
    for client in result.records[-1].clients:  # client i has member i modulo 3
        print(f"client {client.client}: {client.parts['test'].hits['method']} of {client.parts['test'].samples} right")
