"""FedProto: federated prototype learning across heterogeneous clients.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang.  AAAI 2022, https://arxiv.org/abs/2105.00243

Clients share nothing but one mean feature per class.  The server averages these, and
each client pulls its features toward the average of their class while it trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from protea import Client, Method, Needs, Prototypes, Server, Upload, losses
from protea.core.method import Reveals
from protea.core.prototypes import Collector, Weighting


@dataclass(frozen=True)
class FedProto(Method[Prototypes, Prototypes]):
    """Algorithm 1.  ``pull`` is the paper's lambda, the weight of the prototype term.

    The other fields name what paper, official code and HtFLlib do differently.  A weight
    belongs to its ``distance``: 10 with ``mse`` is not 10 with ``euclidean``.
    """

    pull: NonNegativeFloat = 10.0
    distance: losses.Distance = "mse"
    scale: PositiveFloat = 1.0  # features are pulled to scale * prototype; ProtoNorm's gamma
    taken: Literal["after", "during", "before"] = "after"  # training, are local prototypes
    average: Weighting = "uniform"  # over clients
    missing: Literal["keep", "drop"] = "keep"  # prototypes of classes that nobody reported this round
    answer: Literal["global", "local", "head"] = "global"  # which prototypes predict, or the head
    candidates: Literal["all", "own"] = "all"  # classes among which to predict

    family = "class vectors"
    exchanges = "prototypes"
    variants = {
        "paper": {"pull": 1.0, "distance": "euclidean", "average": "literal"},
        "official": {"pull": 1.0, "taken": "during", "missing": "drop", "candidates": "own"},
        "htfllib": {"taken": "during", "missing": "drop"},
    }

    @property
    def reveals(self) -> frozenset[Reveals] | None:
        return frozenset({"means"}) if self.taken != "during" else None

    @property
    def needs(self) -> Needs:
        return Needs(sums=self.average)

    def broadcast(self, server: Server, client: int) -> Prototypes | None:
        return server.memory.get("prototypes")

    def local_update(self, client: Client, down: Prototypes | None) -> Prototypes:
        before = self.local_prototypes(client) if self.taken == "before" else None
        during = Collector(client.classes)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = client.model.features(x)
            value = F.cross_entropy(client.model.head(z), y)
            if down is not None:
                value = value + self.pulling(z, y, down)  # Eq. 7
            if self.taken == "during":
                during.add(z, y)
            return value

        client.fit(loss)
        if self.taken == "during":
            local = during.prototypes()
        else:
            local = before or self.local_prototypes(client)
        if self.answer == "local":
            client.memory["prototypes"] = local
        return local

    def pulling(self, z: Tensor, y: Tensor, down: Prototypes) -> Tensor:
        return self.pull * losses.pull(z, y, down, self.distance, self.scale)

    def local_prototypes(self, client: Client) -> Prototypes:
        """Return the client's prototypes by its current model, Eq. 3."""
        return client.prototypes()

    def aggregate(self, server: Server, uploads: Sequence[Upload[Prototypes]]) -> None:
        mean = Prototypes.mean([u.payload for u in uploads], self.average)  # Eq. 6
        earlier = server.memory.get("prototypes") if self.missing == "keep" else None
        server.memory["prototypes"] = mean.filled(earlier)

    def predict(self, client: Client, x: Tensor, down: Prototypes | None) -> Tensor:
        """The class whose prototype is nearest; the head before there are prototypes."""
        known = client.memory.get("prototypes") if self.answer == "local" else down
        if known is None or self.answer == "head":
            return super().predict(client, x, down)
        if self.candidates == "own":
            known = known.only(client.own_classes)
        return known.scores(client.model.features(x))
