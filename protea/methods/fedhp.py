"""FedHP: federated learning with hyperspherical prototypical regularization.

Fonio, Polato, Esposito.  ESANN 2024, https://github.com/makgyver/fluke

Prototypes are weights that clients train together with their models, and which the server
averages.  They are held to anchors that were spread over the sphere before the first round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from protea import Client, Method, Payload, Prototypes, Server, Upload
from protea.core.ranges import Fraction
from protea.models.nearest import Nearest, nearest_head


@dataclass(frozen=True)
class PrototypesAndAnchors(Payload):
    """What clients get: the mean prototypes, and the anchors they are held to."""

    prototypes: Prototypes
    anchors: Prototypes


@dataclass(frozen=True)
class FedHP(Method[PrototypesAndAnchors, Prototypes]):
    """``pull`` is the paper's lambda, the weight of the anchors.

    Written after the implementation in fluke, of which one of its authors is the author.
    """

    pull: NonNegativeFloat = 0.1
    average: Literal["shares", "literal"] = "shares"  # of clients, by a class's share in their samples; see the docs
    anchor_steps: PositiveInt = 1000
    anchor_lr: PositiveFloat = 0.1
    anchor_momentum: Fraction = 0.9
    answer: Literal["own", "global"] = "own"  # the prototypes that a client trained last, or the average

    family = "class vectors"
    exchanges = "prototypes; anchors down"

    def start_server(self, server: Server) -> None:
        vectors = self.spread(F.normalize(torch.rand(server.classes, server.dim), dim=1).to(server.device))
        anchors = Prototypes(vectors, vectors.new_ones(server.classes))
        server.memory["anchors"] = server.memory["prototypes"] = anchors

    def spread(self, vectors: Tensor) -> Tensor:
        """Move unit vectors, each away from its nearest other, by steps of constant size."""
        vectors = vectors.clone().requires_grad_()
        optimizer = torch.optim.SGD([vectors], self.anchor_lr, self.anchor_momentum, weight_decay=1e-4)
        for _ in range(self.anchor_steps if len(vectors) > 1 else 0):
            optimizer.zero_grad()
            (vectors @ vectors.T).fill_diagonal_(-torch.inf).amax(1).mean().backward()
            optimizer.step()
            with torch.no_grad():
                vectors.copy_(F.normalize(vectors, dim=1))
        return vectors.detach()

    def start_client(self, client: Client) -> None:
        vectors = torch.zeros(client.classes, client.dim, device=client.device)
        client.model.head = Nearest(vectors, "euclidean", learns=True)

    def broadcast(self, server: Server, client: int) -> PrototypesAndAnchors:
        return PrototypesAndAnchors(server.memory["prototypes"], server.memory["anchors"])

    def local_update(self, client: Client, down: PrototypesAndAnchors | None) -> Prototypes:
        assert down is not None  # there are anchors from the start
        head = nearest_head(client.model)
        head.set(down.prototypes)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            away = 1 - F.cosine_similarity(head.vectors, down.anchors.vectors)
            return F.cross_entropy(client.model(x), y) + self.pull * away.mean()

        client.fit(loss)
        counts = client.train.counts(client.classes).to(head.vectors.dtype)
        return Prototypes(head.vectors.detach(), counts).only(counts > 0)

    def aggregate(self, server: Server, uploads: Sequence[Upload[Prototypes]]) -> None:
        parts = [u.payload for u in uploads]
        shares = torch.stack([part.counts / part.counts.sum().clamp(min=1) for part in parts])  # (clients, classes)
        sums = torch.einsum("kc,kcd->cd", shares, torch.stack([part.vectors for part in parts]))
        divisor = shares.sum(0) if self.average == "shares" else torch.full_like(shares[0], len(parts))
        known = shares.sum(0) > 0
        mean = Prototypes(sums / divisor.where(known, 1.0).unsqueeze(1), known.to(sums.dtype))
        server.memory["prototypes"] = mean.filled(server.memory["prototypes"])

    def predict(self, client: Client, x: Tensor, down: PrototypesAndAnchors | None) -> Tensor:
        if down is None or (self.answer == "own" and self.trained(client)):
            return super().predict(client, x, down)
        return down.prototypes.scores(client.model.features(x))

    def trained(self, client: Client) -> bool:
        """Tell whether a client has had prototypes yet; at first all of its own are zero."""
        return bool(nearest_head(client.model).vectors.any())

    def prototypes(self, down: PrototypesAndAnchors | None) -> Prototypes | None:
        return None if down is None else down.prototypes
