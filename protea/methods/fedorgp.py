"""FedORGP: global prototypes of different classes at right angles, toward which clients turn their features.

Guo, Luan, Li, Zhao, Jiang.  2025, https://arxiv.org/abs/2502.16119

The server trains prototypes of its own: each points where the uploads of its class point, and is
orthogonal to those of all other classes.  Lengths do not count.  A client turns its features to the
prototype of their class while it trains, and answers by its own classifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from protea import Client, Method, Prototypes, Server, Upload
from protea.core.method import Reveals
from protea.core.trainable_prototypes import TrainablePrototypes

Over = Literal["mean", "sum"]
Between = Literal["uploads", "prototypes"]
Size = Literal["absolute", "squared"]


@dataclass(frozen=True)
class FedORGP(Method[Prototypes, Prototypes]):
    """``pull`` is the weight lambda of a client's term, ``separation`` the gamma of the server's second one.

    ``separation=0`` takes orthogonality out: prototypes then only follow the directions of their classes.
    """

    pull: NonNegativeFloat = 10.0
    separation: NonNegativeFloat = 10.0
    between: Between = "uploads"  # right angles of prototypes to the uploads of other classes, or to each other
    size: Size = "absolute"  # of a cosine that is to become 0
    over: Over = "mean"  # samples of a batch, and pairs: how the terms of client and server are added up
    answer: Literal["head", "global"] = "head"  # global: the prototype at the smallest angle
    mlp: bool = True  # between trainable vectors and prototypes
    server_epochs: PositiveInt = 100
    server_batch: PositiveInt = 32
    server_lr: PositiveFloat = 0.01

    family = "class vectors"
    exchanges = "prototypes"
    variants = {
        "code": {"server_epochs": 1},
        "early-code": {
            "pull": 1.0, "separation": 1.0, "over": "sum", "answer": "global", "server_batch": 10,
        },
    }  # fmt: skip

    @property
    def reveals(self) -> frozenset[Reveals]:
        return frozenset({"means"})

    def start_server(self, server: Server) -> None:
        server.memory["trainable"] = TrainablePrototypes(server.classes, server.dim, self.mlp).to(server.device)

    def broadcast(self, server: Server, client: int) -> Prototypes | None:
        return server.memory.get("prototypes")

    def local_update(self, client: Client, down: Prototypes | None) -> Prototypes:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = client.model.features(x)
            value = F.cross_entropy(client.model.head(z), y)
            if down is not None and self.pull:
                value = value + self.pull * turn(z, y, down, self.over)
            return value

        client.fit(loss)
        local = client.prototypes()
        return Prototypes(local.vectors, local.present.to(local.counts.dtype))  # how many samples stays private

    def aggregate(self, server: Server, uploads: Sequence[Upload[Prototypes]]) -> None:
        points, labels = Prototypes.points([u.payload for u in uploads])
        if not len(points):
            return
        trainable: TrainablePrototypes = server.memory["trainable"]
        server.memory["server_loss"] = self.train_prototypes(trainable, points, labels)
        server.memory["prototypes"] = trainable.prototypes()

    @torch.no_grad()
    def train_prototypes(self, trainable: TrainablePrototypes, points: Tensor, labels: Tensor) -> float:
        """Train the server's prototypes on the uploads ``points`` (n, dim); return the mean loss of the last epoch."""
        values: list[float] = []
        for _ in range(self.server_epochs):
            values = []
            order = torch.randperm(len(points)).to(points.device).split(self.server_batch)
            for rows in order:
                hidden, vectors = trainable.layers()
                vectors = vectors.detach().requires_grad_()
                with torch.enable_grad():
                    value = self.server_loss(points[rows], labels[rows], vectors)
                (slope,) = torch.autograd.grad(value, vectors)
                trainable.descend(slope, hidden, self.server_lr)
                values.append(value.item())
        return sum(values) / len(values)

    def server_loss(self, points: Tensor, labels: Tensor, prototypes: Tensor) -> Tensor:
        """Return the server's loss L_OR of a batch of uploads: 1 - cosine to their own prototype, and right angles."""
        units, rows = F.normalize(prototypes, dim=1), F.normalize(points, dim=1)
        cosines = rows @ units.T
        own = F.one_hot(labels, len(prototypes)).bool()
        near = added(1 - cosines[own], self.over)
        if self.between == "prototypes":
            cosines, own = units @ units.T, torch.eye(len(units), dtype=torch.bool, device=units.device)
        other = cosines[~own]
        return near + self.separation * added(other.abs() if self.size == "absolute" else other.square(), self.over)

    def predict(self, client: Client, x: Tensor, down: Prototypes | None) -> Tensor:
        """The classifier, by which the authors' code answers too."""
        if self.answer == "head" or down is None:
            return super().predict(client, x, down)
        return down.scores(client.model.features(x), "cosine")


def turn(z: Tensor, y: Tensor, prototypes: Prototypes, over: Over = "mean") -> Tensor:
    """Return 1 - cosine of features ``z`` (n, dim) and the prototype of their class, over the batch.

    A sample whose class has no prototype adds nothing, yet counts in the mean.

    >>> axes = Prototypes(torch.eye(2), torch.ones(2))
    >>> turn(torch.tensor([[5.0, 0.0], [3.0, 4.0]]), torch.tensor([0, 0]), axes).item()  # cosines 1 and 0.6
    0.19999998807907104
    """
    known = prototypes.present[y]
    near = prototypes.scores(z[known], "cosine").gather(1, y[known].unsqueeze(1))
    total = (1 - near).sum()
    return total / len(y) if over == "mean" else total


def added(values: Tensor, over: Over) -> Tensor:
    """Return the mean or the sum of some values; 0 if there are none."""
    total = values.sum()
    return total / max(1, values.numel()) if over == "mean" else total
