"""FedGH: heterogeneous federated learning with generalized global header.

Yi, Wang, Liu, Shi, Yu.  ACM MM 2023, https://arxiv.org/abs/2303.13137

Clients send prototypes; the server trains a head on them, as if they were samples, and all
clients go on from that head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from protea import Client, Method, Needs, Prototypes, Server, Upload, Weights
from protea.core.method import Reveals
from protea.core.training import Training


@dataclass(frozen=True)
class FedGH(Method[Weights, Prototypes]):
    """Algorithm 1.  With ``server_epochs=0`` the head stays as it began: what the authors' code does, by mistake."""

    server_epochs: NonNegativeInt = 1
    server_batch: PositiveInt = 10
    server_lr: PositiveFloat = 0.01
    answer: Literal["global", "own"] = "global"  # the head with which a client predicts

    family = "class vectors"
    exchanges = "prototypes up, a head down"
    needs = Needs(same_head=True)
    variants = {"official": {"server_epochs": 0, "answer": "own"}, "htfllib": {}}

    @property
    def reveals(self) -> frozenset[Reveals]:
        return frozenset({"means"})

    def start_server(self, server: Server) -> None:
        server.memory["head"] = server.make("smallest").head

    def broadcast(self, server: Server, client: int) -> Weights:
        return Weights.of(server.memory["head"])

    def local_update(self, client: Client, down: Weights | None) -> Prototypes:
        assert down is not None  # there is a head from the start
        down.load_into(client.model.head)
        client.fit(lambda x, y: F.cross_entropy(client.model(x), y))
        return client.prototypes()

    def aggregate(self, server: Server, uploads: Sequence[Upload[Prototypes]]) -> None:
        if not self.server_epochs:
            return
        head = server.memory["head"]
        points, labels = Prototypes.points([u.payload for u in uploads])
        plan = Training(epochs=self.server_epochs, batch=self.server_batch, lr=self.server_lr)
        server.memory["server_loss"] = server.fit(
            lambda rows: F.cross_entropy(head(points[rows]), labels[rows]),
            head,
            rows=torch.arange(len(points)),
            plan=plan,
        )

    def predict(self, client: Client, x: Tensor, down: Weights | None) -> Tensor:
        if down is None or self.answer == "own":
            return super().predict(client, x, down)
        return down.run(client.model.head, client.model.features(x))
