"""FedSA: semantic anchors that guide clients from the first round on.

Zhou, Qu, You, Zhou, Tang, Zheng, Cai, Wu.  AAAI 2025, https://arxiv.org/abs/2501.05496

Prototypes of biased clients mislead the next ones.  Here random anchors, one per class and
far apart, stand in for them: clients bind features and classifier to the anchors, and these
follow the clients' prototypes only slowly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from protea import Client, Method, Needs, Payload, Prototypes, Server, Upload, losses
from protea.core.geometry import margins
from protea.core.prototypes import Collector, Weighting
from protea.core.ranges import Proportion
from protea.core.trainable_prototypes import contrast

Margin = Literal["nearest", "mean", "literal"]


@dataclass(frozen=True)
class AnchorsAndMeans(Payload):
    """What clients get: anchors to train with, and the clients' mean prototypes to predict with."""

    anchors: Prototypes
    means: Prototypes | None  # None before any client has reported


@dataclass(frozen=True)
class FedSA(Method[AnchorsAndMeans, Prototypes]):
    """``pull``, ``contrast`` and ``calibration`` are lambda 1 to 3 of Eq. 9, ``decay`` is the alpha of Eq. 10.

    A weight of 0 takes its term out, ``embedding=False`` the projection, ``decay=1`` the
    update of the anchors: the rows of the paper's Table 4.
    """

    pull: NonNegativeFloat = 10.0
    distance: losses.Distance = "mse"  # to which the weight ``pull`` belongs
    contrast: NonNegativeFloat = 1.0
    calibration: NonNegativeFloat = 1.0
    embedding: bool = True  # anchors are projected, once
    decay: Proportion = 0.9999
    margin: Margin = "nearest"  # between prototypes, how it is averaged
    taken: Literal["after", "during"] = "after"  # training, are local prototypes
    average: Weighting = "uniform"  # over clients
    missing: Literal["keep", "drop"] = "keep"  # mean prototypes of classes that nobody reported this round
    answer: Literal["means", "anchors", "head"] = "means"

    family = "class vectors"
    exchanges = "prototypes; anchors down"
    variants = {
        "paper": {"pull": 0.1, "distance": "euclidean", "margin": "literal", "average": "literal"},
        "code": {"taken": "during", "missing": "drop"},
    }

    @property
    def needs(self) -> Needs:
        return Needs(sums=self.average)

    def start_server(self, server: Server) -> None:
        anchors = torch.randn(server.classes, server.dim)
        if self.embedding:
            anchors = project(anchors)
        server.memory["anchors"] = Prototypes(anchors.to(server.device), torch.ones(server.classes).to(server.device))

    def broadcast(self, server: Server, client: int) -> AnchorsAndMeans:
        return AnchorsAndMeans(server.memory["anchors"], server.memory.get("means"))

    def local_update(self, client: Client, down: AnchorsAndMeans | None) -> Prototypes:
        assert down is not None  # there are anchors from the start
        anchors, every = down.anchors, torch.arange(client.classes, device=client.device)
        margin = max(client.memory.get("margin", 0.0), average_margin(anchors, self.margin))  # d* of Eq. 7
        during = Collector(client.classes)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = client.model.features(x)
            value = F.cross_entropy(client.model.head(z), y)
            if self.pull:
                value = value + self.pulling(z, y, down)  # Eq. 5
            if self.contrast:
                value = value + self.contrast * contrast(z, y, anchors.vectors, margin)  # Eq. 7
            if self.calibration:
                value = value + self.calibration * F.cross_entropy(client.model.head(anchors.vectors), every)  # Eq. 8
            if self.taken == "during":
                during.add(z, y)
            return value

        client.fit(loss)
        if self.taken == "during":
            local = during.prototypes()
        else:
            local = client.prototypes()  # Eq. 2
        client.memory["margin"] = average_margin(local, self.margin)
        return local

    def pulling(self, z: Tensor, y: Tensor, down: AnchorsAndMeans) -> Tensor:
        return self.pull * losses.pull(z, y, down.anchors, self.distance)

    def aggregate(self, server: Server, uploads: Sequence[Upload[Prototypes]]) -> None:
        mean = Prototypes.mean([u.payload for u in uploads], self.average)  # Eq. 3
        server.memory["means"] = mean.filled(server.memory.get("means") if self.missing == "keep" else None)
        anchors: Prototypes = server.memory["anchors"]
        moved = self.decay * anchors.vectors + (1 - self.decay) * mean.vectors  # Eq. 10
        vectors = torch.where(mean.present.unsqueeze(1), moved, anchors.vectors)
        server.memory["anchors"] = Prototypes(vectors, anchors.counts)

    def predict(self, client: Client, x: Tensor, down: AnchorsAndMeans | None) -> Tensor:
        """The class whose mean prototype is nearest; the head before there are any."""
        if self.answer == "head" or (known := self.prototypes(down)) is None:
            return super().predict(client, x, down)
        return known.scores(client.model.features(x))

    def prototypes(self, down: AnchorsAndMeans | None) -> Prototypes | None:
        if down is None:
            return None
        return down.anchors if self.answer == "anchors" else down.means


@torch.no_grad()
def project(anchors: Tensor) -> Tensor:
    """Map anchors by the embedding layer h_psi: twice a random linear map, BatchNorm over the classes, ReLU.

    The paper calls it trainable; in the authors' code nothing ever trains it.
    """
    classes, dim = anchors.shape
    for _ in range(2):
        mapped = nn.Linear(dim, dim)(anchors)
        anchors = F.layer_norm(mapped.T, (classes,)).T.relu()  # BatchNorm refuses a single row; this does not
    return anchors


def average_margin(prototypes: Prototypes, margin: Margin) -> float:
    """Return how far apart the classes are on average; 0 where there is only one.

    ``nearest`` is the authors' code: the mean over classes of the distance to the nearest other.
    ``mean`` is the mean distance of all pairs; ``literal`` is Eq. 6, which divides by (N - 1)^2
    where there are N (N - 1) ordered pairs, and so is larger than the mean by N / (N - 1).
    """
    known = prototypes.vectors[prototypes.present]
    if (n := len(known)) < 2:
        return 0.0
    if margin == "nearest":
        return margins(known).mean().item()
    mean = torch.pdist(known).mean().item()
    return mean if margin == "mean" else mean * n / (n - 1)
