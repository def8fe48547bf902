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

from protea import Client, Method, Payload, Prototypes, Server, Upload
from protea.prototypes import Collector


@dataclass(frozen=True)
class ClassScores(Payload):
    """Prototypes of answers: a row of scores for each class whose samples were answered."""

    mean: Prototypes

    def check(self, classes: int, dim: int) -> None:
        self.mean.check(classes, classes)


@dataclass(frozen=True)
class AllScores(Payload):
    """The scores of each client, by its number."""

    of: Mapping[str, Prototypes]


@dataclass(frozen=True)
class FedDistill(Method[ClassScores, ClassScores]):
    """Algorithm 1.  ``weight`` is the paper's gamma, that of the others' answers against the labels."""

    weight: NonNegativeFloat = 1.0
    taken: Literal["during", "after"] = "during"  # training, are a client's scores
    others: bool = False  # a client is taught by the others' scores only, as in the paper
    targets: Literal["softmax", "raw"] = "softmax"  # raw: scores serve as probabilities, as in HtFLlib since 11/2025

    family = "class vectors"
    exchanges = "mean scores of each class"
    variants = {"paper": {"others": True}}

    def broadcast(self, server: Server, client: int) -> ClassScores | None:
        parts: AllScores | None = server.memory.get("scores")
        if parts is None:
            return None
        heard = [parts.of[name] for name in sorted(parts.of) if not self.others or name != str(client)]
        return ClassScores(Prototypes.mean(heard)) if heard else None

    def local_update(self, client: Client, down: ClassScores | None) -> ClassScores:
        during = Collector(client.classes)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            scores = client.model(x)
            during.add(scores, y)
            value = F.cross_entropy(scores, y)
            return value if down is None else value + self.weight * self.distil(scores, y, down.mean)

        client.fit(loss)
        if self.taken == "during":
            return ClassScores(during.prototypes())
        return ClassScores(Prototypes.of(*client.outputs(client.model), client.classes))

    def distil(self, scores: Tensor, y: Tensor, known: Prototypes) -> Tensor:
        """Cross entropy to what is answered elsewhere; a class that nobody reported is taught by its own answer.

        The latter has no gradient where targets are probabilities.
        """
        target = known.vectors[y].where(known.present[y].unsqueeze(1), scores.detach())
        return F.cross_entropy(scores, target.softmax(1) if self.targets == "softmax" else target)

    def aggregate(self, server: Server, uploads: Sequence[Upload[ClassScores]]) -> None:
        server.memory["scores"] = AllScores({str(u.client): u.payload.mean for u in uploads})
