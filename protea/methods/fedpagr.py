"""FedPAGR: prototypes refined by geometry, to which clients anchor their classifiers.

Prasad, Khan.  ACL 2026 Student Research Workshop, https://aclanthology.org/2026.acl-srw.37

All features have unit length.  The server averages prototypes and pushes those of different
classes apart, yet keeps them near what clients sent.  Clients set their classifiers to the
result and train toward it.  Meant for ``models.adapter = "projector"``; any adapter works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor, nn

from protea import Client, Method, Needs, Prototypes, Server, Upload, geometry
from protea.core.errors import ClientError
from protea.core.ranges import Fraction


@dataclass(frozen=True)
class FedPAGR(Method[Prototypes, Prototypes]):
    """Algorithm 1.  ``temperature`` is beta, ``entropy`` lambda_E, ``separation`` lambda_S, ``margin`` m, ``steps`` T.

    Cross entropy and the entropy term together are label smoothing by ``entropy / (1 + entropy)``.
    """

    temperature: PositiveFloat = 0.1
    alignment: NonNegativeFloat = 1.0  # weight of the alignment terms; 0 leaves them out, Table 2's "beta = 0"
    entropy: NonNegativeFloat = 0.1
    separation: NonNegativeFloat = 0.5
    margin: Annotated[float, Field(ge=-1, le=1)] = 0.3  # largest cosine of two classes that is left alone
    steps: NonNegativeInt = 5  # of refinement, per round
    lr: PositiveFloat = 0.01  # of refinement
    momentum: Fraction = 0.9  # of refinement
    classifier: Literal["trained", "fixed"] = "trained"  # between two anchorings
    pairs: geometry.Pairs = "dense"  # sparse: faster with very many classes

    family = "class vectors"
    exchanges = "unit prototypes"
    needs = Needs(same_head=True, sums="uniform")
    variants = {"paper": {}, "paper-many": {"margin": 0.1, "steps": 3}, "paper-text": {"temperature": 0.5}}

    def start_server(self, server: Server) -> None:
        vectors = F.normalize(torch.randn(server.classes, server.dim), dim=1).to(server.device)
        server.memory["prototypes"] = Prototypes(vectors, vectors.new_ones(server.classes))

    def broadcast(self, server: Server, client: int) -> Prototypes | None:
        return server.memory.get("prototypes")

    def local_update(self, client: Client, down: Prototypes | None) -> Prototypes:
        assert down is not None  # there are random ones from the start
        anchor(client, down)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = F.normalize(client.model.features(x), dim=1)  # Eq. 1
            scores = client.model.head(z) if self.classifier == "trained" else z @ down.vectors.T
            value = F.cross_entropy(scores, y)
            return value + self.alignment * self.align(z, y, down) if self.alignment else value  # Eq. 7

        client.fit(loss)
        features, labels = client.features()
        return unit(Prototypes.of(F.normalize(features, dim=1), labels, client.classes))  # Eq. 2

    def align(self, z: Tensor, y: Tensor, prototypes: Prototypes) -> Tensor:
        """Return L_global + lambda_E L_ent; the latter is least, log C, where all classes are equally likely."""
        near = self.nearness(z, prototypes)
        return F.cross_entropy(near, y) - self.entropy * near.log_softmax(1).mean()

    def aggregate(self, server: Server, uploads: Sequence[Upload[Prototypes]]) -> None:
        parts = [
            unit(u.payload) if u.clients == 1 else summed(u.payload)  # on the way a filter may have changed lengths
            for u in uploads
        ]
        mean = unit(Prototypes.mean(parts)).filled(server.memory["prototypes"])  # Eq. 3
        vectors = mean.vectors
        if self.separation > 0:  # without it the mean is where refinement would end
            vectors = geometry.refine(  # Eq. 4 to 6
                vectors, parts, weight=self.separation, margin=self.margin,
                steps=self.steps, lr=self.lr, momentum=self.momentum, pairs=self.pairs,
            )  # fmt: skip
        server.memory["prototypes"] = Prototypes(vectors, mean.counts)

    def predict(self, client: Client, x: Tensor, down: Prototypes | None) -> Tensor:
        assert down is not None
        return self.nearness(F.normalize(client.model.features(x), dim=1), down)  # Eq. 8

    def nearness(self, z: Tensor, prototypes: Prototypes) -> Tensor:
        """Return the paper's l, cosines over the temperature, whose softmax are the class probabilities."""
        return z @ prototypes.vectors.T / self.temperature


def unit(prototypes: Prototypes) -> Prototypes:
    """Return the prototypes at unit length, each with count 1, without those that have no direction."""
    known = prototypes.only(geometry.has_direction(prototypes.vectors))
    return Prototypes(F.normalize(known.vectors, dim=1), known.present.to(known.vectors.dtype))


def summed(mean: Prototypes) -> Prototypes:
    """Return the sum of unit prototypes, from their mean and the number of clients that have each."""
    return Prototypes(mean.counts.unsqueeze(1) * mean.vectors, mean.counts)


@torch.no_grad()
def anchor(client: Client, prototypes: Prototypes) -> None:
    """Set the classifier to the prototypes, in place: the optimizer that is made next must find it."""
    head = client.model.head
    if not isinstance(head, nn.Linear) or head.weight.shape != prototypes.vectors.shape:
        classes, dim = prototypes.vectors.shape
        raise ClientError(
            f"client {client.id}: FedPAGR sets the classifier to the prototypes, so the head must be one "
            f"Linear({dim}, {classes}); that of {client.model.name} is a {type(head).__name__}.\n"
            f"  Use models whose heads have no hidden layers."
        )
    head.weight.copy_(prototypes.vectors)
    if head.bias is not None:
        head.bias.zero_()
