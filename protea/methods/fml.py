"""FML: federated mutual learning.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu.  2020, https://arxiv.org/abs/2006.16765

Beside its own model each client trains a small shared one, the meme; the two teach each
other, and only memes travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from protea import Client, Method, Server, Upload, Weights, losses
from protea.core.method import Average, Reveals, upload_weights
from protea.core.ranges import Proportion


@dataclass(frozen=True)
class FML(Method[Weights, Weights]):
    """``alpha`` and ``beta`` weigh the labels against the other model, for own model and meme.

    ``teaching = "joint"`` is HtFLlib's: the divergence is a mean over classes too, and both
    models get gradients of both losses; ``apart`` is the authors': teachers get none.
    """

    alpha: Proportion = 0.5
    beta: Proportion = 0.5
    meme: str = "smallest"  # architecture; "smallest" takes the family's smallest
    average: Average = "uniform"
    teaching: losses.Teaching = "apart"

    family = "second model"
    exchanges = "a small shared model"
    variants = {"official": {}, "htfllib": {"teaching": "joint"}}

    @property
    def reveals(self) -> frozenset[Reveals]:
        return frozenset({"model"})

    def start_server(self, server: Server) -> None:
        server.memory["meme"] = Weights.of(server.make(self.meme))

    def start_client(self, client: Client) -> None:
        client.memory["meme"] = client.second_model(self.meme)

    def broadcast(self, server: Server, client: int) -> Weights | None:
        return server.memory.get("meme")

    def local_update(self, client: Client, down: Weights | None) -> Weights:
        meme = client.memory["meme"]
        if down is not None:
            down.load_into(meme)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            own = client.model(x)
            with client.separate_draws("meme"):
                shared = meme(x)
            own_loss = self.alpha * F.cross_entropy(own, y) + (1 - self.alpha) * losses.teach(
                shared, own, self.teaching
            )
            meme_loss = self.beta * F.cross_entropy(shared, y) + (1 - self.beta) * losses.teach(
                own, shared, self.teaching
            )
            return own_loss + meme_loss

        client.fit(loss, meme)
        return Weights.of(meme)

    def aggregate(self, server: Server, uploads: Sequence[Upload[Weights]]) -> None:
        server.memory["meme"] = Weights.mean([u.payload for u in uploads], upload_weights(uploads, self.average))

    def check(self, server: Server, up: Weights) -> None:
        up.check_like(server.memory["meme"])
