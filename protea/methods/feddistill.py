"""FedDistill: communication-efficient on-device learning by federated distillation.

Jeong, Oh, Kim, Park, Bennis, Kim.  2018, https://arxiv.org/abs/1811.11479

Clients tell each other how they answer: the mean scores over their samples of each class.
The average over clients teaches each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from protea import Client, Method, Needs, Payload, Prototypes, Server, Upload
from protea.core.prototypes import Collector


@dataclass(frozen=True)
class ClassScores(Payload):
    """The mean scores over the samples of each class, ``(classes, classes)``, as prototypes of answers."""

    mean: Prototypes

    def check(self, classes: int, dim: int) -> None:
        self.mean.check(classes, classes)


@dataclass(frozen=True)
class AllScores(Payload):
    """The mean scores of each client, by its number."""

    of: Mapping[str, Prototypes]


@dataclass(frozen=True)
class FedDistill(Method[ClassScores, ClassScores]):
    """Algorithm 1.  ``weight`` is the paper's gamma, that of the others' answers against the labels."""

    weight: NonNegativeFloat = 1.0
    taken: Literal["during", "after"] = "during"  # training, are a client's scores
    shared: Literal["scores", "probabilities"] = "scores"  # of which means are taken; the paper's are of the latter
    others: bool = False  # a client is taught by the others only, as in the paper
    targets: Literal["softmax", "raw"] = "softmax"  # raw: scores serve as probabilities, as in HtFLlib since 11/2025

    family = "class vectors"
    exchanges = "mean scores of each class"
    variants = {"paper": {"others": True, "shared": "probabilities"}, "htfllib": {}}

    @property
    def needs(self) -> Needs:
        return Needs(sums=None if self.others else "uniform")

    def broadcast(self, server: Server, client: int) -> ClassScores | None:
        if not self.others:
            return server.memory.get("mean")
        parts: Mapping[str, Prototypes] = server.memory["scores"].of if "scores" in server.memory else {}
        heard = [parts[name] for name in sorted(parts) if name != str(client)]
        return ClassScores(Prototypes.mean(heard)) if heard else None

    def local_update(self, client: Client, down: ClassScores | None) -> ClassScores:
        during = Collector(client.classes)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            scores = client.model(x)
            during.add(self.said(scores), y)
            value = F.cross_entropy(scores, y)
            return value if down is None else value + self.weight * self.distil(scores, y, down.mean)

        client.fit(loss)
        if self.taken == "during":
            return ClassScores(during.prototypes())
        scores, y = client.outputs(client.model)
        return ClassScores(Prototypes.of(self.said(scores), y, client.classes))

    def said(self, scores: Tensor) -> Tensor:
        """Return what means are taken of: scores or probabilities."""
        return scores if self.shared == "scores" else scores.softmax(1)

    def distil(self, scores: Tensor, y: Tensor, known: Prototypes) -> Tensor:
        """Return the cross entropy to the mean scores of each class; to its own for a class that nobody reported.

        The latter has no gradient where targets are probabilities.
        """
        target = known.vectors[y].where(known.present[y].unsqueeze(1), self.said(scores.detach()))
        if self.shared == "scores" and self.targets == "softmax":
            target = target.softmax(1)
        return F.cross_entropy(scores, target)

    def aggregate(self, server: Server, uploads: Sequence[Upload[ClassScores]]) -> None:
        earlier: ClassScores | None = server.memory.get("mean")
        mean = Prototypes.mean([u.payload.mean for u in uploads]).filled(None if earlier is None else earlier.mean)
        server.memory["mean"] = ClassScores(mean)
        server.memory["scores"] = AllScores({str(u.client): u.payload.mean for u in uploads})
