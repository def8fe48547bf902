"""FedAvg: communication-efficient learning of deep networks from decentralized data.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas.  AISTATS 2017, https://arxiv.org/abs/1602.05629

One model for all: clients train it on their own data, the server averages what they made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from protea import Client, Method, Needs, Server, SplitModel, Upload, Weights
from protea.core.client import Loss
from protea.core.method import Average, Reveals, upload_weights


@dataclass(frozen=True)
class FedAvg(Method[Weights, Weights]):
    """FedAvg, Algorithm 1.  Methods that only add to the loss derive from it."""

    average: Average = "samples"
    statistics: Literal["shared", "own"] = "shared"  # of BatchNorm: averaged too, or each client's own
    answer: Literal["global", "own"] = "global"  # by the average, or by what the client made of the last one it got

    family = "weights"
    exchanges = "the whole model"
    needs = Needs(same_architecture=True)
    variants = {"pfllib": {"statistics": "own"}}

    @property
    def reveals(self) -> frozenset[Reveals]:
        return frozenset({"model"})

    def start_server(self, server: Server) -> None:
        server.memory["model"] = server.make("smallest")  # of one

    def broadcast(self, server: Server, client: int) -> Weights:
        return self.weights(server.memory["model"])

    def local_update(self, client: Client, down: Weights | None) -> Weights:
        assert down is not None  # there is a model from the start
        down.load_into(client.model, buffers=self.statistics == "shared")
        client.fit(self.loss(client, down))
        return self.weights(client.model)

    def loss(self, client: Client, down: Weights) -> Loss:
        """Return the local loss; ``down`` is the model that was sent."""
        return lambda x, y: F.cross_entropy(client.model(x), y)

    def aggregate(self, server: Server, uploads: Sequence[Upload[Weights]]) -> None:
        mean = Weights.mean([u.payload for u in uploads], upload_weights(uploads, self.average))
        mean.load_into(server.memory["model"], buffers=self.statistics == "shared")

    def check(self, server: Server, up: Weights) -> None:
        up.check_like(self.weights(server.memory["model"]))

    def predict(self, client: Client, x: Tensor, down: Weights | None) -> Tensor:
        if down is None or self.answer == "own":
            return super().predict(client, x, down)
        return down.scores(client.model, x)

    def server_model(self, server: Server) -> SplitModel | None:
        """The average, unless it lacks the statistics that it needs to answer."""
        model: SplitModel = server.memory["model"]
        return model if self.statistics == "shared" else None

    def weights(self, model: SplitModel) -> Weights:
        """Return what travels of a model: with BatchNorm's statistics if these are shared."""
        return Weights.of(model, buffers=self.statistics == "shared")
