"""FedPCL: federated learning from pre-trained models, a contrastive learning approach.

Tan, Long, Ma, Liu, Zhou, Jiang.  NeurIPS 2022, https://arxiv.org/abs/2209.10083

Every client gets the average prototypes, and those of every client.  Its features are drawn
to all prototypes of their class and away from those of the others, by angle alone: there is no
classifier but the client's own prototypes.  Made for bodies that were pretrained and stay frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor

from protea import Client, Method, Payload, Prototypes, Server, Upload, losses
from protea.models.nearest import Nearest, nearest_head


@dataclass(frozen=True)
class PrototypesOfAll(Payload):
    """What clients get: the mean prototypes, and those of each client by its number."""

    mean: Prototypes
    of: Mapping[str, Prototypes]


@dataclass(frozen=True)
class FedPCL(Method[PrototypesOfAll, Prototypes]):
    """Algorithm 1; ``temperature`` is tau of Eq. 5 and 6."""

    temperature: PositiveFloat = 0.07
    terms: Literal["both", "each"] = "both"  # each: prototypes of single clients only, as in the authors' code
    over: Literal["mean", "sum"] = "mean"  # clients, of the term for single ones
    body: Literal["trained", "frozen"] = "trained"  # frozen: the adapter alone learns
    answer: Literal["local", "global"] = "local"  # prototypes

    family = "class vectors"
    exchanges = "prototypes; those of every client down"
    variants = {"official": {"terms": "each", "over": "sum"}, "pfllib": {"temperature": 1.0}}

    def start_client(self, client: Client) -> None:
        client.model.head = Nearest(torch.zeros(client.classes, client.dim, device=client.device), "cosine")
        if self.body == "frozen":
            client.model.body.requires_grad_(False)

    def broadcast(self, server: Server, client: int) -> PrototypesOfAll | None:
        return server.memory.get("prototypes")

    def local_update(self, client: Client, down: PrototypesOfAll | None) -> Prototypes:
        """In the first round there is nothing to be drawn to, and clients only send what they have."""
        head = nearest_head(client.model)
        if down is not None:
            self.train(client, down)
        z, y = client.features()
        local = Prototypes.of(F.normalize(z, dim=1), y, client.classes)
        local = Prototypes(
            local.vectors, local.present.to(z.dtype)
        )  # everybody gets these; how many samples stays here
        head.set(local)
        return local

    def train(self, client: Client, down: PrototypesOfAll) -> None:
        """Train the client's model by contrast to all prototypes."""
        each = [down.of[name].filled(down.mean) for name in sorted(down.of)]  # what a client lacks is the average's

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = client.model.features(x)
            values = torch.stack([losses.contrast(z, y, part, self.temperature) for part in each])
            single = values.mean() if self.over == "mean" else values.sum()
            if self.terms == "each":
                return single
            return single + losses.contrast(z, y, down.mean, self.temperature)  # Eq. 7

        client.fit(loss)

    def aggregate(self, server: Server, uploads: Sequence[Upload[Prototypes]]) -> None:
        parts = {str(u.client): u.payload for u in uploads}
        earlier = self.prototypes(server.memory.get("prototypes"))
        server.memory["prototypes"] = PrototypesOfAll(Prototypes.mean(list(parts.values())).filled(earlier), parts)

    def answering(self, client: Client, down: PrototypesOfAll | None) -> Callable[[Tensor], Tensor]:
        """The class whose prototype is at the smallest angle: a global one, or of the client, if it has any yet."""
        model, head = client.model, nearest_head(client.model)
        if down is not None and (self.answer == "global" or not head.vectors.any()):
            known = down.mean
            return lambda x: known.scores(model.features(x), "cosine")
        return model

    def predict(self, client: Client, x: Tensor, down: PrototypesOfAll | None) -> Tensor:
        return self.answering(client, down)(x)

    def prototypes(self, down: PrototypesOfAll | None) -> Prototypes | None:
        return None if down is None else down.mean
