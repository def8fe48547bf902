"""A filter of your own that sees all uploads of a round together, on the server: it halves what is longest.

In an experiment file, with this folder in PYTHONPATH:

    rounds = 2
    clients = 3
    [data]
    samples = 300
    [models]
    family = "tiny_mlp"
    dim = 16
    [[filters]]
    name = "own_server_filter:HalveTheLongest"
"""

from collections.abc import Sequence
from dataclasses import dataclass

import protea
from protea.filters.base import Gathering, Received


@dataclass(frozen=True)
class HalveTheLongest(protea.Filter):
    def together(self, uploads: Sequence[Received], at: Gathering) -> Sequence[Received]:
        longest = max(uploads, key=lambda each: float(each.up["vectors"].norm()))
        half = Received(longest.client, {**longest.up, "vectors": longest.up["vectors"] / 2})
        return [half if each is longest else each for each in uploads]


if __name__ == "__main__":
    small = {"data": protea.Data(samples=300), "models": protea.Models("tiny_mlp", dim=16)}
    result = protea.run(protea.Experiment(rounds=2, clients=3, filters=(HalveTheLongest(),), **small))
    print(f"accuracy {result.records[-1].accuracy:.1%}")
