"""FedPLVM: several prototypes for each class, by clustering at clients and on the server.

Wang, Bian, Zhang, Chen, Xu.  NeurIPS 2024, https://arxiv.org/abs/2403.09048

One mean says little about a class that looks different from place to place.  So clients cluster the features of each
class and send the means of clusters, and the server clusters these again.  Features are drawn to the clusters of their
class by a contrast in which small cosines count more, and to the mean of these clusters.  The authors average models as
well.  Between different models only clusters travel, and this is the default here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from protea import Client, Method, Needs, Payload, Prototypes, Server, Upload, Weights
from protea.core.clusters import PER_CLASS, Clusters
from protea.core.errors import PayloadError
from protea.core.first_neighbours import Level


@dataclass(frozen=True)
class ClustersAndModel(Payload):
    """What clients send: clusters of each class, and the model if weights are shared."""

    clusters: Clusters
    model: Weights | None  # None unless weights are shared


@dataclass(frozen=True)
class ClustersMeansAndModel(Payload):
    """What clients get: clusters of each class, the mean of these, and the model if weights are shared."""

    clusters: Clusters
    means: Prototypes
    model: Weights | None


@dataclass(frozen=True)
class FedPLVM(Method[ClustersMeansAndModel, ClustersAndModel]):
    """The loss is cross entropy + ``weight`` * (contrast + ``correction`` * squared distance of cosines to 1)."""

    weight: NonNegativeFloat = 1.0  # lambda
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.25  # exponent of cosines in the contrast
    temperature: PositiveFloat = 0.07  # tau
    correction: NonNegativeFloat = 2.0  # weight of the correction beside the contrast
    floor: Annotated[float, Field(gt=0, lt=1)] = 0.01  # smaller cosines count as this in the contrast
    level: Level = "last"  # of the partitions that clustering finds: the coarsest, or the first and finest
    most: Annotated[int, Field(ge=1, le=PER_CLASS)] = PER_CLASS  # clusters of a class; a coarser partition if more
    local: Literal["clusters", "mean"] = "clusters"  # of each class, at clients
    overall: Literal["clusters", "mean"] = "clusters"  # of each class, on the server
    share_weights: bool = False  # average models too, as the authors do
    answer: Literal["head", "nearest"] = "head"  # nearest: the class of the cluster at the smallest angle

    family = "class vectors"
    exchanges = "several prototypes per class; the original also the whole model"
    variants = {"code": {"weight": 100.0, "share_weights": True}}

    @property
    def needs(self) -> Needs:
        return Needs(same_architecture=self.share_weights)

    def start_server(self, server: Server) -> None:
        server.memory["clusters"] = Clusters.none(server.dim).to(server.device)
        if self.share_weights:
            server.memory["model"] = Weights.of(server.make("smallest"))

    def broadcast(self, server: Server, client: int) -> ClustersMeansAndModel:
        found: Clusters = server.memory["clusters"]
        return ClustersMeansAndModel(found, found.means(server.classes), server.memory.get("model"))

    def local_update(self, client: Client, down: ClustersMeansAndModel | None) -> ClustersAndModel:
        assert down is not None  # there are clusters from the start, if only none
        if down.model is not None:
            down.model.load_into(client.model)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = client.model.features(x)
            value = F.cross_entropy(client.model.head(z), y)
            if not len(down.clusters):
                return value
            drawn = sparse_contrast(z, y, down.clusters, self.alpha, self.temperature, self.floor)
            return value + self.weight * (drawn + self.correction * correction(z, y, down.means))

        client.fit(loss)
        z, y = client.features()
        model = Weights.of(client.model) if self.share_weights else None
        return ClustersAndModel(self.clustered(client.bounded(z), y, self.local), model)

    def clustered(self, points: Tensor, labels: Tensor, into: Literal["clusters", "mean"]) -> Clusters:
        """Return the clusters of the points of each class, or the mean of these as the only one."""
        if into == "clusters":
            return Clusters.of(points, labels, self.level, self.most)
        return Clusters.of_prototypes(Prototypes.of(points, labels, int(labels.max()) + 1 if len(labels) else 0))

    def aggregate(self, server: Server, uploads: Sequence[Upload[ClustersAndModel]]) -> None:
        sent = Clusters.joined([u.payload.clusters for u in uploads])
        found = self.clustered(sent.vectors, sent.classes, self.overall)
        server.memory["clusters"] = found.filled(server.memory["clusters"])
        if self.share_weights:
            models = [u.payload.model for u in uploads if u.payload.model is not None]
            server.memory["model"] = Weights.mean(models, [u.samples for u in uploads])

    def check(self, server: Server, up: ClustersAndModel) -> None:
        if (up.model is not None) != self.share_weights:
            raise PayloadError(f"Clusters {'and a model' if self.share_weights else 'alone'} were expected.")
        if up.model is not None:
            up.model.check_like(server.memory["model"])

    def predict(self, client: Client, x: Tensor, down: ClustersMeansAndModel | None) -> Tensor:
        """Return scores of the head or nearness to clusters, by the averaged model where there is one."""
        model, shared = client.model, None if down is None else down.model
        z = model.features(x) if shared is None else shared.features(model, x)
        if self.answer == "nearest" and down is not None and len(down.clusters):
            return down.clusters.scores(z, client.classes)
        scores: Tensor = model.head(z) if shared is None else shared.below("head").run(model.head, z)
        return scores

    def prototypes(self, down: ClustersMeansAndModel | None) -> Prototypes | None:
        """Return the mean of the clusters of each class."""
        return down.means if down is not None and down.means.present.any() else None


def sparse_contrast(z: Tensor, y: Tensor, clusters: Clusters, alpha: float, temperature: float, floor: float) -> Tensor:
    """Return the alpha-sparsity contrast of features (n, dim) to clusters, mean over the batch.

    With s = max(cosine, floor) ** alpha / temperature it is minus the log of the share of the clusters of the right
    class in the sum of exp(s) over all.  A sample of a class without clusters adds nothing, yet counts in the mean.
    """
    near = clusters.cosines(z).clamp(min=floor) ** alpha / temperature
    right = clusters.classes == y.unsqueeze(1)
    known = right.any(1)
    if not known.any():
        return z.sum() * 0.0
    own = near.masked_fill(~right, -torch.inf)[known].logsumexp(1)
    return (near[known].logsumexp(1) - own).sum() / len(y)


def correction(z: Tensor, y: Tensor, means: Prototypes) -> Tensor:
    """Return the squared distance to 1 of the cosine of features to the mean of their class's clusters, mean over all.

    A sample of a class without clusters adds nothing, yet counts in the mean.
    """
    toward = F.normalize(means.vectors, dim=1)[y]
    cosines = (F.normalize(z, dim=1, eps=1e-4) * toward).sum(1)
    return ((1 - cosines).square() * means.present[y]).sum() / len(y)
