"""FedTGP: trainable global prototypes, kept apart by an adaptive margin.

Zhang, Liu, Hua, Cao.  AAAI 2024, https://arxiv.org/abs/2401.03230

Averaged prototypes lie closer together than those of a good client.  So the server trains
prototypes of its own, near the uploads of their class and, by a margin, far from the uploads
of the others.  Clients do as in FedProto.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from protea import Client, Method, Prototypes, Server, Upload, losses
from protea.core.geometry import margins
from protea.core.method import Reveals
from protea.core.trainable_prototypes import TrainablePrototypes, contrast_bound, train_prototypes
from protea.methods.fedproto import FedProto

Gap = Literal["nearest", "pairs", "literal"]
BOUNDED = 2000  # most uploads of which all distances are taken, to say how low the server's loss can be


@dataclass(frozen=True)
class FedTGP(Method[Prototypes, Prototypes]):
    """Algorithm 1.  ``pull`` is the paper's lambda, ``threshold`` tau, ``server_epochs`` S.

    The paper's ablations are ``margin="none"`` (SCL), ``margin="fixed"`` (FM) and ``mlp=False`` (w/o F).
    """

    pull: NonNegativeFloat = 10.0
    distance: losses.Distance = "mse"  # to which the weight ``pull`` belongs
    scale: PositiveFloat = 1.0  # features are pulled to scale * prototype
    taken: Literal["after", "during", "before"] = "after"  # training, are local prototypes
    answer: Literal["global", "local", "head"] = "global"  # which prototypes predict, or the head
    candidates: Literal["all", "own"] = "all"  # classes among which to predict
    first: Literal["nothing", "untrained"] = "nothing"  # what clients get in the first round
    margin: Literal["adaptive", "fixed", "none"] = "adaptive"  # fixed: the threshold itself
    gap: Gap = "nearest"  # how the adaptive margin is read off the class centres
    threshold: PositiveFloat = 100.0
    mlp: bool = True  # between trainable vectors and prototypes
    server_epochs: PositiveInt = 100
    server_batch: PositiveInt = 10
    server_lr: PositiveFloat = 0.01

    family = "class vectors"
    exchanges = "prototypes"
    variants = {
        "paper": {"pull": 0.1, "distance": "euclidean", "first": "untrained", "gap": "pairs"},
        "code": {"taken": "before"},
    }

    @property
    def reveals(self) -> frozenset[Reveals] | None:
        return frozenset({"means"}) if self.taken != "during" else None

    def start_server(self, server: Server) -> None:
        trainable = TrainablePrototypes(server.classes, server.dim, self.mlp).to(server.device)
        server.memory["trainable"] = trainable
        if self.first == "untrained":
            server.memory["prototypes"] = trainable.prototypes()

    def broadcast(self, server: Server, client: int) -> Prototypes | None:
        return server.memory.get("prototypes")

    def local_update(self, client: Client, down: Prototypes | None) -> Prototypes:
        local = self.on_clients.local_update(client, down)  # Eq. 11 and 2
        return Prototypes(local.vectors, local.present.to(local.counts.dtype))  # how many samples stays private

    def pulling(self, z: Tensor, y: Tensor, down: Prototypes) -> Tensor:
        return self.on_clients.pulling(z, y, down)

    def aggregate(self, server: Server, uploads: Sequence[Upload[Prototypes]]) -> None:
        parts = [u.payload for u in uploads]
        points, labels = Prototypes.points(parts)
        if not len(points):
            return
        delta = self.find_margin(Prototypes.mean(parts))
        trainable: TrainablePrototypes = server.memory["trainable"]
        server.memory["server_loss"] = train_prototypes(
            trainable, points, labels, delta, self.server_epochs, self.server_batch, self.server_lr
        )
        if len(points) <= BOUNDED:
            server.memory["server_loss_bound"] = contrast_bound(points, labels, delta)
        server.memory["margin"] = delta
        server.memory["prototypes"] = trainable.prototypes()

    def predict(self, client: Client, x: Tensor, down: Prototypes | None) -> Tensor:
        return self.on_clients.predict(client, x, down)

    @property
    def on_clients(self) -> FedProto:
        """What clients do: FedProto with the same settings."""
        return FedProto(
            pull=self.pull, distance=self.distance, scale=self.scale,
            taken=self.taken, answer=self.answer, candidates=self.candidates,
        )  # fmt: skip

    def find_margin(self, centres: Prototypes) -> float:
        """Return delta of Eq. 7 and 10; ``centres`` are the Q of Eq. 9."""
        if self.margin == "adaptive":
            return min(widest_gap(centres, self.gap), self.threshold)
        return self.threshold if self.margin == "fixed" else 0.0


def widest_gap(centres: Prototypes, gap: Gap) -> float:
    """Return the margin of Eq. 9 before its threshold tau; inf where fewer than two classes are present.

    ``nearest`` is the authors' code: the largest distance of a class to its nearest neighbour.
    ``pairs`` is the largest of all distances, ``literal`` the smallest over classes of the
    distance to the farthest other, which is the equation as printed.
    """
    known = centres.vectors[centres.present]
    if len(known) < 2:
        return torch.inf
    if gap == "nearest":
        return margins(known).max().item()
    if gap == "pairs":
        return torch.pdist(known).max().item()
    return torch.cdist(known, known).amax(1).min().item()
