"""FedL2G: learning to guide local training in heterogeneous federated learning.

Zhang, Liu, Hua, Cao, Yang.  2024, https://arxiv.org/abs/2410.06490

The server has a guiding vector for each class, to which clients pull their features or scores.
The vectors learn to be of use: a client takes one step with them aside, asks how its loss on
samples kept back depends on them, and sends that gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from protea import Client, Method, Needs, Payload, Prototypes, Server, Upload, Weights, losses
from protea.core.errors import ClientError, PayloadError
from protea.core.ranges import Fraction
from protea.core.samples import Samples
from protea.core.training import set_training


@dataclass(frozen=True)
class GuidingVectors(Payload):
    """A vector for each class, in the space of features or of scores: the guiding ones, or gradients of these.

    The counts of gradients are the samples studied, those of guiding vectors 1.
    """

    of: Prototypes

    def check(self, classes: int, dim: int) -> None:
        width = self.of.vectors.shape[-1]
        if width not in (classes, dim):
            raise PayloadError(
                f"Guiding vectors of {width} numbers arrived; features have {dim} here, scores {classes}."
            )
        self.of.check(classes, width)


@dataclass(frozen=True)
class FedL2G(Method[GuidingVectors, GuidingVectors]):
    """FedL2G-f; the variant ``logit`` is FedL2G-l.  A learning rate of the server belongs to its form."""

    form: Literal["features", "logits"] = "features"  # what guiding vectors are pulled at
    server_lr: PositiveFloat = 100.0  # gradients hold the client's learning rate and 1 / dim, so they are small
    server_clip: NonNegativeFloat = 100.0  # largest norm of all gradients together; 0 for no limit
    warm_up: Fraction = 0.025  # share of the rounds, the first ones, in which guiding vectors alone learn
    study_batches: PositiveInt = 1  # batches of the step aside
    quiz_batches: PositiveInt = 1  # batches that are kept back, and never trained on
    quiz_most: Annotated[float, Field(gt=0, lt=1)] = 0.25  # share of a client's samples that is kept back, at most

    family = "class vectors"
    exchanges = "gradients of guiding vectors; these down"
    needs = Needs(sums="uniform")
    variants = {"feature": {}, "logit": {"form": "logits", "server_lr": 0.1}}

    def start_server(self, server: Server) -> None:
        width = server.dim if self.form == "features" else server.classes
        vectors = torch.randn(server.classes, width).to(server.device)
        server.memory["guiding"] = GuidingVectors(Prototypes(vectors, torch.ones_like(vectors[:, 0])))

    def start_client(self, client: Client) -> None:
        """Choose the quiz samples, once for all."""
        size = min(self.quiz_batches * client.training.batch, int(self.quiz_most * len(client.train)))
        client.memory["quiz"] = torch.randperm(len(client.train)) < size

    def broadcast(self, server: Server, client: int) -> GuidingVectors:
        guiding: GuidingVectors = server.memory["guiding"]
        return guiding

    def local_update(self, client: Client, down: GuidingVectors | None) -> GuidingVectors:
        assert down is not None  # there are guiding vectors from the start
        quiz, study = (client.train.only(rows) for rows in (client.memory["quiz"], ~client.memory["quiz"]))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = client.model.features(x)
            scores = client.model.head(z)
            return F.cross_entropy(scores, y) + losses.pull(self.guided(z, scores), y, down.of)

        if client.round > self.warm_up_rounds(client.rounds):
            client.fit(loss, data=study)
        if not len(quiz):
            return GuidingVectors(Prototypes(torch.zeros_like(down.of.vectors), torch.zeros_like(down.of.counts)))
        return GuidingVectors(self.quizzed(client, down.of, study, quiz))

    def warm_up_rounds(self, rounds: int) -> int:
        """Return in how many of the rounds guiding vectors alone learn: a part of a round is one, the last is none."""
        return min(math.ceil(self.warm_up * rounds), rounds - 1)

    def guided(self, z: Tensor, scores: Tensor) -> Tensor:
        """Return what is pulled to the guiding vectors: features or scores."""
        return z if self.form == "features" else scores

    def quizzed(self, client: Client, guiding: Prototypes, study: Samples, quiz: Samples) -> Prototypes:
        """Return how the quiz loss after one step on study samples depends on the guiding vectors of their classes.

        The step is plain gradient descent.  The model itself does not change, nor do BatchNorm's statistics.
        """
        model = client.model
        rows = torch.randperm(len(study), generator=client.rng.generator("study"))
        x, y = study.batch(rows[: self.study_batches * client.training.batch])
        x_quiz, y_quiz = quiz.batch(torch.arange(len(quiz)))
        set_training([model], single=min(len(y), len(y_quiz)) == 1)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        names = {name for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
        rest = {name: t.detach().clone() for name, t in model.state_dict().items() if name not in names}
        vectors = guiding.vectors.detach().clone().requires_grad_()
        with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():  # the faster kernels have no second derivatives
            weights = Weights({**trained, **rest})
            z = weights.features(model, x)
            scores = weights.below("head").run(model.head, z)
            pulled = losses.pull(self.guided(z, scores), y, Prototypes(vectors, guiding.counts))
            value = F.cross_entropy(scores, y) + pulled
            slopes = torch.autograd.grad(
                value, list(trained.values()), create_graph=True, allow_unused=True, materialize_grads=True
            )
            lr = client.training.rate(client.round, client.rounds)
            stepped = {name: p - lr * slope for (name, p), slope in zip(trained.items(), slopes, strict=True)}
            missed = F.cross_entropy(Weights({**stepped, **rest}).scores(model, x_quiz), y_quiz)
            (gradient,) = torch.autograd.grad(missed, [vectors], allow_unused=True, materialize_grads=True)
        client.set_evaluation()
        if not gradient.isfinite().all():
            raise ClientError(
                f"client {client.id}, round {client.round}: its quiz loss is {missed.item()} after a step aside "
                f"(lr {lr:g}, {model.name}), and guiding vectors cannot learn from that.  Try a smaller training.lr."
            )
        return Prototypes(gradient, y.bincount(minlength=client.classes).to(gradient.dtype))

    def aggregate(self, server: Server, uploads: Sequence[Upload[GuidingVectors]]) -> None:
        guiding: Prototypes = server.memory["guiding"].of
        gradient = Prototypes.mean([u.payload.of for u in uploads]).vectors  # 0 for a class that nobody studied
        norm = float(torch.linalg.vector_norm(gradient))
        shortened = self.server_clip / norm if 0 < self.server_clip < norm else 1.0
        vectors = guiding.vectors - self.server_lr * shortened * gradient
        server.memory["guiding"] = GuidingVectors(Prototypes(vectors, guiding.counts))

    def check(self, server: Server, up: GuidingVectors) -> None:
        found, expected = up.of.vectors.shape, server.memory["guiding"].of.vectors.shape
        if found != expected:
            raise PayloadError(f"Gradients of shape {tuple(found)} arrived; guiding vectors are {tuple(expected)}.")

    def prototypes(self, down: GuidingVectors | None) -> Prototypes | None:
        return None if down is None or self.form == "logits" else down.of
