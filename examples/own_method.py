"""A method of your own: FedProto, but prototypes attract by angle, and those of other classes repel."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from protea import Client, Experiment, Method, Prototypes, Server, Upload, run


@dataclass(frozen=True)  # settings only: what must outlive a round goes to client.memory or server.memory
class AngleProto(Method[Prototypes, Prototypes]):  # what the server sends, and what clients send
    pull: float = 3.0
    scale: float = 10.0  # of cosines, which differ too little by themselves

    def broadcast(self, server: Server, client: int) -> Prototypes | None:
        return server.memory.get("prototypes")  # None in the first round

    def local_update(self, client: Client, down: Prototypes | None) -> Prototypes:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = client.model.features(x)
            value = F.cross_entropy(client.model.head(z), y)
            if down is not None and (known := down.present[y]).any():
                value += self.pull * F.cross_entropy(self.scale * down.scores(z[known], "cosine"), y[known])
            return value

        client.fit(loss)
        return client.prototypes()

    def aggregate(self, server: Server, uploads: Sequence[Upload[Prototypes]]) -> None:
        server.memory["prototypes"] = Prototypes.mean([upload.payload for upload in uploads])

    def predict(self, client: Client, x: Tensor, down: Prototypes | None) -> Tensor:
        return client.model(x) if down is None else down.scores(client.model.features(x), "cosine")


if __name__ == "__main__":  # worker processes import this file, and must not start runs of their own
    result = run(Experiment(method=AngleProto(), rounds=5, clients=5, seed=1))
    print(f"accuracy {result.accuracy:.1%}, of the commonest class {result.summary['majority']:.1%}")
