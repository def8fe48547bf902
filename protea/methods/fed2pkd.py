"""Fed2PKD: bridging model diversity in federated learning via two-pronged knowledge distillation.

Xie, Xu, Gao, Jiang, Han.  IEEE CLOUD 2024, https://ieeexplore.ieee.org/document/10643935

Two things are taught.  Prototypes, by contrast of angles; and features of a few public samples,
in which a client counts the more, the better its head agrees with the prototypes about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from protea import Client, Method, Needs, Payload, Prototypes, Server, SplitModel, Upload, losses
from protea.core.errors import PayloadError
from protea.core.public_answers import check_rows, draw_public, note_teacher, select_public, weighted_mean
from protea.core.training import Training


@dataclass(frozen=True)
class PublicTask(Payload):
    """What clients get: which public samples are asked about, the prototypes, and features of the last ones asked."""

    ask: Tensor  # a bool per public sample
    asked: Tensor | None = None
    features: Tensor | None = None  # (public samples asked, dim)
    prototypes: Prototypes | None = None


@dataclass(frozen=True)
class PublicView(Payload):
    """What a client sends: prototypes, and features and scores of the public samples it was asked about."""

    prototypes: Prototypes
    features: Tensor  # (public samples asked, dim)
    scores: Tensor  # (public samples asked, classes), log probabilities

    def check(self, classes: int, dim: int) -> None:
        super().check(classes, dim)
        check_rows("Features", self.features, None, dim)
        check_rows("Scores", self.scores, len(self.features), classes)


@dataclass(frozen=True)
class Fed2PKD(Method[PublicTask, PublicView]):
    """Fed2PKD.  ``contrast`` and ``alignment`` weigh the two kinds of distillation; ``temperature`` is tau."""

    contrast: NonNegativeFloat = 0.9
    alignment: NonNegativeFloat = 0.9
    temperature: PositiveFloat = 0.07
    samples: Annotated[int, Field(ge=2)] = 50  # public ones, drawn anew in each round
    average: Literal["uniform", "count"] = "uniform"  # of prototypes over clients
    agreement: Literal["divergence", "code"] = "divergence"  # of head and prototypes; the authors' is no divergence
    student: bool = False  # a model on the server learns clients' features and answers: ours, see the docs
    server_epochs: PositiveInt = 10
    server_batch: PositiveInt = 32
    server_lr: PositiveFloat = 0.001
    answer: Literal["head", "global"] = "head"  # or the global prototype at the smallest angle

    family = "public data"
    exchanges = "prototypes, features and scores of public samples"
    variants = {"code": {"agreement": "code", "average": "count"}, "student": {"student": True}}

    @property
    def needs(self) -> Needs:
        return Needs(public_data=True, server_model=self.student)

    def start_server(self, server: Server) -> None:
        server.memory["task"] = PublicTask(draw_public(server, self.samples))
        if self.student:
            server.memory["model"] = server.make("server")

    def broadcast(self, server: Server, client: int) -> PublicTask:
        task: PublicTask = server.memory["task"]
        return task

    def local_update(self, client: Client, down: PublicTask | None) -> PublicView:
        assert down is not None and client.public is not None  # something is asked from the start
        model, known, target = client.model, down.prototypes, down.features
        public = None
        if target is not None and down.asked is not None and self.alignment:
            seen = select_public(client.public, down.asked)
            check_rows("Features", target, len(seen), client.dim)
            public = seen.batch(torch.arange(len(seen)))[0] if len(seen) > 1 else None  # BatchNorm needs two

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = model.features(x)
            value = F.cross_entropy(model.head(z), y)
            if known is not None and self.contrast:
                value = value + self.contrast * losses.contrast(z, y, known, 2 * self.temperature)  # see nearness
            if public is not None and target is not None:
                value = value + self.alignment * (1 - F.cosine_similarity(model.features(public), target)).mean() / 2
            return value

        client.fit(loss)
        ask = select_public(client.public, down.ask)
        features, _ = client.outputs(model.features, ask)
        return PublicView(client.prototypes(), features, model.head(features).detach().log_softmax(1))

    def nearness(self, z: Tensor, prototypes: Prototypes) -> Tensor:
        """Return cosines, moved to the range from 0 to 1, over the temperature, ``(samples, classes)``.

        To a softmax that is the same as cosines over twice the temperature.
        """
        return (prototypes.scores(z, "cosine") + 1) / 2 / self.temperature

    def aggregate(self, server: Server, uploads: Sequence[Upload[PublicView]]) -> None:
        task: PublicTask = server.memory["task"]
        parts = [u.payload.prototypes for u in uploads]
        prototypes = Prototypes.mean(parts, self.average).filled(task.prototypes)
        features = torch.stack([u.payload.features for u in uploads])  # (clients, public samples, dim)
        scores = torch.stack([u.payload.scores for u in uploads])
        weights = torch.stack([self.trust(*pair, prototypes) for pair in zip(features, scores, strict=True)])
        fused = weighted_mean(features, weights)
        said = weighted_mean(scores.softmax(2), weights).clamp(min=1e-30).log()  # whatever was sent, probabilities
        note_teacher(server, said, task.ask)
        if self.student:
            self.teach(server, task.ask, fused, said)
        server.memory["task"] = PublicTask(draw_public(server, self.samples), task.ask, fused, prototypes)

    def trust(self, features: Tensor, scores: Tensor, prototypes: Prototypes) -> Tensor:
        """Return exp(-KL) for each sample, between a client's head and the prototypes, ``(samples,)``."""
        head, near = scores.log_softmax(1), self.nearness(features, prototypes).softmax(1)
        if self.agreement == "code":  # probabilities where the formula has their logarithms
            return (-(near * (near.clamp(min=1e-12).log() - head.exp())).sum(1)).exp()
        return (-F.kl_div(head, near, reduction="none").sum(1)).exp()

    def teach(self, server: Server, asked: Tensor, features: Tensor, scores: Tensor) -> None:
        """Train the server's model on the clients' mean features and scores of the public samples asked about."""
        assert server.public is not None
        model, public = server.memory["model"], select_public(server.public, asked)

        def loss(rows: Tensor) -> Tensor:
            z = model.features(public.batch(rows)[0])
            return F.mse_loss(z, features[rows]) + losses.divergence(scores[rows], model.head(z))

        plan = Training(epochs=self.server_epochs, batch=self.server_batch, lr=self.server_lr, optimizer="adam")
        server.memory["server_loss"] = server.fit(loss, model, rows=torch.arange(len(public)), plan=plan)

    def check(self, server: Server, up: PublicView) -> None:
        check_rows("Features", up.features, int(server.memory["task"].ask.sum()), server.dim)
        if not up.prototypes.present.any():
            raise PayloadError("Prototypes of no class at all arrived.")

    def predict(self, client: Client, x: Tensor, down: PublicTask | None) -> Tensor:
        if down is None or down.prototypes is None or self.answer == "head":
            return super().predict(client, x, down)
        return down.prototypes.scores(client.model.features(x), "cosine")

    def prototypes(self, down: PublicTask | None) -> Prototypes | None:
        return None if down is None else down.prototypes

    def server_model(self, server: Server) -> SplitModel | None:
        return server.memory.get("model")
