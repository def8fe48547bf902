"""FedProc: prototypical contrastive federated learning.

Mu, Shen, Cheng, Geng, Fu, Zhang, Zhang.  FGCS 143, 2023, https://arxiv.org/abs/2109.12273

Features are first drawn to the direction of their class's global centre and away from those
of the others; from round to round cross entropy takes over.  The original averages models as
well.  Between different models only the centres travel, and this is the default here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor

from protea import Client, Method, Needs, Payload, Prototypes, Server, Upload, Weights, losses
from protea.core.errors import PayloadError
from protea.core.prototypes import Weighting


@dataclass(frozen=True)
class CentresAndModel(Payload):
    """What travels in both directions: the centre of each class, and the model if weights are shared."""

    centres: Prototypes
    model: Weights | None  # None unless weights are shared


@dataclass(frozen=True)
class FedProc(Method[CentresAndModel, CentresAndModel]):
    """The loss is alpha * cross entropy + (1 - alpha) * contrast; alpha goes from 0 to 1 in ``horizon`` rounds."""

    horizon: PositiveInt | None = None  # all rounds of the run where not given
    average: Weighting = "count"  # of centres over clients
    share_weights: bool = False  # average models too, as the original does
    answer: Literal["head", "nearest"] = "head"  # nearest: the centre at the smallest angle
    classifies: Literal["features", "directions"] = "features"  # what the head sees; directions: features at length 1

    family = "class vectors"
    exchanges = "prototypes; the original also the whole model"
    variants = {"original": {"share_weights": True}}

    @property
    def needs(self) -> Needs:
        return Needs(same_architecture=self.share_weights)

    def start_server(self, server: Server) -> None:
        server.memory["centres"] = Prototypes.absent(server.classes, server.dim).to(server.device)
        if self.share_weights:
            server.memory["model"] = Weights.of(server.make("smallest"))

    def broadcast(self, server: Server, client: int) -> CentresAndModel:
        return CentresAndModel(server.memory["centres"], server.memory.get("model"))

    def local_update(self, client: Client, down: CentresAndModel | None) -> CentresAndModel:
        assert down is not None  # there are centres from the start, if only absent ones
        if down.model is not None:
            down.model.load_into(client.model)
        alpha = self.alpha(client.round, client.rounds)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = client.model.features(x)
            value = F.cross_entropy(client.model.head(self.seen(z)), y)
            return value if alpha == 1 else alpha * value + (1 - alpha) * losses.contrast(z, y, down.centres)

        client.fit(loss)
        z, y = client.features()
        model = Weights.of(client.model) if self.share_weights else None
        return CentresAndModel(Prototypes.of(unit(z), y, client.classes), model)

    def seen(self, z: Tensor) -> Tensor:
        """Return what the head sees of features."""
        return unit(z) if self.classifies == "directions" else z

    def alpha(self, round: int, rounds: int) -> float:
        """Return the share of cross entropy: 1 in the first round, which has no centres, then from little to 1."""
        return 1.0 if round == 1 else min(1.0, (round - 1) / (self.horizon or rounds))

    def aggregate(self, server: Server, uploads: Sequence[Upload[CentresAndModel]]) -> None:
        mean = Prototypes.mean([u.payload.centres for u in uploads], self.average)
        server.memory["centres"] = Prototypes(unit(mean.vectors), mean.counts).filled(server.memory["centres"])
        if self.share_weights:
            models = [u.payload.model for u in uploads if u.payload.model is not None]
            server.memory["model"] = Weights.mean(models, [u.samples for u in uploads])

    def check(self, server: Server, up: CentresAndModel) -> None:
        if (up.model is not None) != self.share_weights:
            raise PayloadError(f"Centres {'and a model' if self.share_weights else 'alone'} were expected.")
        if up.model is not None:
            up.model.check_like(server.memory["model"])

    def predict(self, client: Client, x: Tensor, down: CentresAndModel | None) -> Tensor:
        """Return scores of the head or nearness to centres, by the averaged model where there is one."""
        model, shared = client.model, None if down is None else down.model
        z = model.features(x) if shared is None else shared.features(model, x)
        if self.answer == "nearest" and (centres := self.prototypes(down)) is not None:
            return centres.scores(z, "cosine")
        z = self.seen(z)
        scores: Tensor = model.head(z) if shared is None else shared.below("head").run(model.head, z)
        return scores

    def prototypes(self, down: CentresAndModel | None) -> Prototypes | None:
        return down.centres if down is not None and down.centres.present.any() else None


def unit(z: Tensor) -> Tensor:
    """Return rows of length 1; those shorter than 1e-4 stay shorter, or else their gradient would explode."""
    return F.normalize(z, dim=1, eps=1e-4)
