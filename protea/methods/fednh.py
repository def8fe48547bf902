"""FedNH: tackling data heterogeneity with class prototypes.

Dai, Chen, Li, Heinecke, Sun, Xu.  AAAI 2023, https://arxiv.org/abs/2212.02758

FedAvg with a head that nobody trains: unit prototypes, spread evenly at first, to which the
server slowly adds what clients' features of each class have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor, nn

from protea import Client, Method, Needs, Payload, Prototypes, Server, SplitModel, Upload, Weights
from protea.core.method import Average, upload_weights
from protea.core.ranges import Proportion
from protea.models.nearest import Nearest, nearest_head


@dataclass(frozen=True)
class BodyAndPrototypes(Payload):
    """A model: its trained weights, and the prototypes that are its head."""

    body: Weights  # all but the prototypes
    prototypes: Prototypes


@dataclass(frozen=True)
class FedNH(Method[BodyAndPrototypes, BodyAndPrototypes]):
    """Algorithm 1.  ``smoothing`` is the paper's rho: what remains of a prototype in a round."""

    smoothing: Proportion = 0.9
    scale: PositiveFloat = 1.0  # the paper's s, of cosines to scores; where it starts, if it learns: slowly, from 1
    scale_learns: bool = True
    average: Average = "uniform"  # of models; prototypes count by their samples
    answer: Literal["global", "own"] = "global"

    family = "weights"
    exchanges = "the whole model, prototypes"
    needs = Needs(same_architecture=True)
    variants = {"fixed-scale": {"scale": 30.0, "scale_learns": False}}

    def start_server(self, server: Server) -> None:
        vectors = F.normalize(nn.init.orthogonal_(torch.empty(server.classes, server.dim)), dim=1)
        server.memory["model"] = self.equipped(server.make("smallest"), vectors.to(server.device))

    def start_client(self, client: Client) -> None:
        self.equipped(client.model, torch.zeros(client.classes, client.dim, device=client.device))
        nearest_head(client.model).counts.zero_()  # it knows no class before its first round

    def equipped(self, model: SplitModel, vectors: Tensor) -> SplitModel:
        """Put prototypes in the place of the model's head."""
        model.head = Nearest(vectors, "cosine", scale=self.scale, scale_learns=self.scale_learns)
        return model

    def broadcast(self, server: Server, client: int) -> BodyAndPrototypes:
        model = server.memory["model"]
        return BodyAndPrototypes(trained(model), model.head.prototypes)

    def local_update(self, client: Client, down: BodyAndPrototypes | None) -> BodyAndPrototypes:
        assert down is not None  # there is a model from the start
        load_parts(client.model, down)
        client.fit(lambda x, y: F.cross_entropy(client.model(x), y))
        z, y = client.features()
        local = Prototypes.of(F.normalize(z, dim=1), y, client.classes)
        return BodyAndPrototypes(trained(client.model), unit(local))

    def aggregate(self, server: Server, uploads: Sequence[Upload[BodyAndPrototypes]]) -> None:
        model = server.memory["model"]
        body = Weights.mean([u.payload.body for u in uploads], upload_weights(uploads, self.average))
        local = unit(Prototypes.mean([unit(u.payload.prototypes) for u in uploads], "count"))
        moved = self.smoothing * model.head.vectors + (1 - self.smoothing) * local.vectors
        vectors = torch.where(local.present.unsqueeze(1), F.normalize(moved, dim=1), model.head.vectors)
        load_parts(model, BodyAndPrototypes(body, Prototypes(vectors, model.head.counts)))

    def check(self, server: Server, up: BodyAndPrototypes) -> None:
        up.body.check_like(trained(server.memory["model"]))

    def predict(self, client: Client, x: Tensor, down: BodyAndPrototypes | None) -> Tensor:
        if down is None or self.answer == "own":
            return super().predict(client, x, down)
        near = down.prototypes.scores(down.body.features(client.model, x), "cosine")
        return down.body.tensors["head.scale"] * near

    def prototypes(self, down: BodyAndPrototypes | None) -> Prototypes | None:
        return None if down is None else down.prototypes

    def server_model(self, server: Server) -> SplitModel:
        model: SplitModel = server.memory["model"]
        return model


def unit(prototypes: Prototypes) -> Prototypes:
    """Return the prototypes at unit length."""
    return Prototypes(F.normalize(prototypes.vectors, dim=1), prototypes.counts)


def trained(model: SplitModel) -> Weights:
    """Return all weights but the prototypes."""
    kept = Weights.of(model).tensors.items()
    return Weights({name: t for name, t in kept if name not in ("head.vectors", "head.counts")})


def load_parts(model: SplitModel, parts: BodyAndPrototypes) -> None:
    """Load weights and prototypes into a model; raise :class:`PayloadError` unless they fit."""
    parts.body.check_like(trained(model))
    model.load_state_dict(dict(parts.body.tensors), strict=False)
    nearest_head(model).set(parts.prototypes)
