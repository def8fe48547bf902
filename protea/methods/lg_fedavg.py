"""LG-FedAvg: think locally, act globally.

Liang, Liu, Ziyin, Salakhutdinov, Morency.  2020, https://arxiv.org/abs/2001.01523

Bodies stay with their clients; heads, which all have the same shape, are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from protea import Client, Method, Needs, Server, Upload, Weights
from protea.core.method import Average, Reveals, upload_weights


@dataclass(frozen=True)
class LGFedAvg(Method[Weights, Weights]):
    """``average`` weighs heads by samples, as HtFLlib does, or equally, as the authors' code."""

    average: Average = "samples"
    answer: Literal["average", "own"] = "average"  # head with which a client predicts

    family = "weights"
    exchanges = "heads"
    variants = {"official": {"average": "uniform", "answer": "own"}, "htfllib": {}}

    @property
    def reveals(self) -> frozenset[Reveals]:
        return frozenset({"model"})

    @property
    def needs(self) -> Needs:
        return Needs(same_head=True, sums=self.average)

    def start_server(self, server: Server) -> None:
        server.memory["expected"] = Weights.of(server.make("smallest").head)  # its shapes; heads are all the same

    def broadcast(self, server: Server, client: int) -> Weights | None:
        return server.memory.get("head")

    def local_update(self, client: Client, down: Weights | None) -> Weights:
        if down is not None:
            down.load_into(client.model.head)
        client.fit(lambda x, y: F.cross_entropy(client.model(x), y))
        return Weights.of(client.model.head)

    def aggregate(self, server: Server, uploads: Sequence[Upload[Weights]]) -> None:
        server.memory["head"] = Weights.mean([u.payload for u in uploads], upload_weights(uploads, self.average))

    def check(self, server: Server, up: Weights) -> None:
        up.check_like(server.memory["expected"])

    def predict(self, client: Client, x: Tensor, down: Weights | None) -> Tensor:
        if down is None or self.answer == "own":
            return super().predict(client, x, down)
        return down.run(client.model.head, client.model.features(x))
