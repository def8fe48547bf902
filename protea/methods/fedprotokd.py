"""FedProtoKD: dual distillation with adaptive margins for trainable global prototypes.

Siddika, Hossen, Zhang, Sharma, Muñoz, Jannesari.  CCGrid 2026, https://arxiv.org/abs/2508.19009

FedPKD with two parts replaced.  Global prototypes are not averaged but trained on those of
the clients, each class kept at its own margin from the others; and no public sample is
filtered out, but the nearer it lies to the prototype of its pseudo label, the more this counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from protea import Client, Prototypes, Server
from protea.core.geometry import margins
from protea.core.ranges import Proportion
from protea.core.trainable_prototypes import TrainablePrototypes, train_prototypes
from protea.methods.fedpkd import DualKnowledge, FedPKD
from protea.methods.fedtgp import widest_gap


@dataclass(frozen=True)
class FedProtoKD(FedPKD):
    """Algorithm 1.  ``cap`` is zeta of Eq. 5; of Eq. 9 ``closeness`` is phi, ``steepness`` k, ``guard`` epsilon.

    With ``trained=False`` and ``selection="filter"`` it is FedPKD.
    """

    trained: bool = True  # global prototypes (ACTP), not averaged
    margins: Literal["class", "scalar", "fixed"] = "class"  # its own for each, the largest for all, the cap for all
    cap: PositiveFloat = 50.0
    actp_epochs: PositiveInt = 100
    actp_batch: PositiveInt = 32
    actp_lr: PositiveFloat = 0.01
    selection: Literal["importance", "filter", "none"] = "importance"
    closeness: Proportion = 0.5
    steepness: PositiveFloat = 10.0
    sigmoid_of: Literal["distance", "inverse"] = "distance"  # as printed, the inverse, far samples count more
    inverse: Literal["relative", "raw"] = "relative"  # distances: as shares of the largest, or as they are
    guard: PositiveFloat = 1e-3

    variants = {
        "paper": {"kl": "reverse", "sigmoid_of": "inverse", "inverse": "raw"},
        "zeta": {"margins": "scalar"},
        "no_importance": {"selection": "none"},
        "mixture": {"teacher": "probabilities"},
    }

    def start_server(self, server: Server) -> None:
        super().start_server(server)
        if self.trained:
            server.memory["trainable"] = TrainablePrototypes(server.classes, server.dim).to(server.device)

    def local_update(self, client: Client, down: DualKnowledge | None) -> DualKnowledge:
        up = super().local_update(client, down)
        if not self.trained:
            return up
        known = up.prototypes.present.to(up.prototypes.counts.dtype)  # how many samples it has of a class stays here
        return replace(up, prototypes=replace(up.prototypes, counts=known))

    def merge(self, server: Server, parts: Sequence[Prototypes]) -> Prototypes:
        """Return the global prototypes of Eq. 4 and 6: class vectors behind a small network, trained on all uploads."""
        if not self.trained:
            return super().merge(server, parts)
        trainable: TrainablePrototypes = server.memory["trainable"]
        points, labels = Prototypes.points(parts)
        margin = self.find_margins(Prototypes.mean(parts))
        server.memory["actp_loss"] = train_prototypes(
            trainable, points, labels, margin, self.actp_epochs, self.actp_batch, self.actp_lr
        )
        return trainable.prototypes()

    def find_margins(self, centres: Prototypes) -> Tensor | float:
        """Return xi of Eq. 5, the distance of each class's centre to the nearest other; the cap if there is none."""
        if self.margins == "class":
            return margins(centres.vectors, centres.present).clamp(max=self.cap)
        return min(widest_gap(centres, "nearest"), self.cap) if self.margins == "scalar" else self.cap

    def select(self, away: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if self.selection == "filter":
            return super().select(away, labels)
        weights = self.importance(away) if self.selection == "importance" else torch.ones_like(away)
        return torch.ones_like(labels, dtype=torch.bool), weights

    def importance(self, away: Tensor) -> Tensor:
        """Return the importance of Eq. 9, from every sample's distance to the prototype of its pseudo label."""
        far = away / away.max().clamp(min=self.guard)
        near = 1 / (away + self.guard)
        if self.inverse == "relative":
            near = near / near.max()
        argument = far if self.sigmoid_of == "distance" else near
        step = 1 - torch.sigmoid(self.steepness * (argument - far.median()))
        return self.closeness * (1 + near) + (1 - self.closeness) * step
