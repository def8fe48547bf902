"""FedGen: data-free knowledge distillation for heterogeneous federated learning.

Zhu, Hong, Zhou.  ICML 2021, https://arxiv.org/abs/2105.10056

Heads are averaged.  Besides, the server trains a generator of features that all clients' heads
together take for the class they were made for; clients train their heads on such features too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from protea import Client, Method, Needs, Payload, Server, Upload, Weights, losses
from protea.core.errors import PayloadError
from protea.core.method import Average, upload_weights
from protea.core.training import Training
from protea.models.generator import Generator, likeness


@dataclass(frozen=True)
class HeadAndGenerator(Payload):
    """What clients get: the mean head, the generator, and how common each class is."""

    head: Weights
    generator: Weights
    labels: Tensor  # (classes,) how many samples of each class all clients have

    counting = ("labels",)

    def check(self, classes: int, dim: int) -> None:
        super().check(classes, dim)
        check_labels(self.labels, classes)


@dataclass(frozen=True)
class HeadAndLabels(Payload):
    """What a client sends: its head, and how many samples of each class it has."""

    head: Weights
    labels: Tensor  # (classes,) how many samples of each class the client has

    counting = ("labels",)

    def check(self, classes: int, dim: int) -> None:
        super().check(classes, dim)
        check_labels(self.labels, classes)


@dataclass(frozen=True)
class AllLabels(Payload):
    """The label counts of each client that was ever heard, by its number."""

    of: Mapping[str, Tensor]


@dataclass(frozen=True)
class FedGen(Method[HeadAndGenerator, HeadAndLabels]):
    """Algorithm 1.  ``weight`` and ``match`` are the paper's alpha and beta, ``server_steps`` T, ``diversity`` eta.

    Defaults are those of FedTGP's tables (HtFLlib); ``paper`` has the authors' terms and weights.
    """

    weight: NonNegativeFloat = 1.0  # of generated features against a client's own samples
    match: NonNegativeFloat = 0.0  # weight of answering own samples as generated features of their class
    fade: Annotated[float, Field(gt=0, le=1)] = 1.0  # of both weights, by round
    begin: Literal["first", "second"] = "first"  # round in which generated features are used; untrained in the first
    noise: PositiveInt = 32
    hidden: PositiveInt | None = None  # None: dim
    server_steps: PositiveInt = 100
    server_batch: PositiveInt = 10  # of generated features
    server_lr: PositiveFloat = 0.1
    server_decay: NonNegativeFloat = 0.0  # of weights
    diversity: NonNegativeFloat = 0.0  # weight of features being as different as their noise
    judges: Literal["together", "apart"] = "together"  # the heads' mean scores, or each head by its share of the class
    keep: bool = True  # the trained generator; HtFLlib throws it away and sends the first one for ever
    average: Average = "samples"  # of heads

    family = "weights"
    exchanges = "heads, label counts; a generator down"
    needs = Needs(same_head=True)
    variants = {
        "paper": {
            "weight": 10.0, "match": 10.0, "fade": 0.98, "begin": "second",
            "server_steps": 50, "server_batch": 32, "server_lr": 3e-4, "server_decay": 1e-2,
            "diversity": 1.0, "judges": "apart",
        },
        "htfllib": {"keep": False},
    }  # fmt: skip

    def start_server(self, server: Server) -> None:
        server.memory["head"] = server.make("smallest").head
        generator = Generator(server.classes, self.noise, self.hidden or server.dim, server.dim)
        server.memory["generator"] = generator.to(server.device)
        server.memory["labels"] = AllLabels({})

    def start_client(self, client: Client) -> None:
        generator = Generator(client.classes, self.noise, self.hidden or client.dim, client.dim)
        client.memory["generator"] = generator.to(client.device)

    def broadcast(self, server: Server, client: int) -> HeadAndGenerator:
        head, generator = (Weights.of(server.memory[name], buffers=False) for name in ("head", "generator"))
        known: Mapping[str, Tensor] = server.memory["labels"].of
        labels = sum((known[name] for name in known), torch.zeros(server.classes, device=server.device))
        return HeadAndGenerator(head, generator, labels if known else labels + 1)  # at first all are as likely

    def local_update(self, client: Client, down: HeadAndGenerator | None) -> HeadAndLabels:
        assert down is not None  # there is all of it from the start
        generator, head = client.memory["generator"], client.model.head
        down.head.load_into(head, buffers=False)
        down.generator.load_into(generator, buffers=False)
        generator.requires_grad_(False).train()  # BatchNorm takes a batch as it is
        faded = self.fade ** (client.round - 1) if self.begin == "first" or client.round > 1 else 0.0

        def loss(x: Tensor, y: Tensor) -> Tensor:
            scores = client.model(x)
            value = F.cross_entropy(scores, y)
            if len(y) < 2 or not faded:
                return value
            with client.separate_draws("generator"):
                if self.weight:
                    labels = down.labels.multinomial(len(y), replacement=True)
                    value = value + faded * self.weight * F.cross_entropy(head(generator(labels)), labels)
                if self.match:
                    value = value + faded * self.match * losses.teach(head(generator(y)), scores)
            return value

        client.fit(loss)
        return HeadAndLabels(Weights.of(head, buffers=False), client.train.counts(client.classes).float())

    def aggregate(self, server: Server, uploads: Sequence[Upload[HeadAndLabels]]) -> None:
        head, generator = server.memory["head"], server.memory["generator"]
        before = Weights.of(generator)
        shares = torch.stack([u.payload.labels for u in uploads])  # (clients, classes)
        heard = {str(u.client): u.payload.labels for u in uploads}
        server.memory["labels"] = AllLabels({**server.memory["labels"].of, **heard})
        labels = shares.sum(0).multinomial(self.server_steps * self.server_batch, replacement=True)
        samples = torch.tensor([float(u.samples) for u in uploads], device=server.device)

        def loss(rows: Tensor) -> Tensor:
            y = labels[rows]
            z, noise = generator.both(y)
            answers = torch.stack([u.payload.head.run(head, z) for u in uploads])  # (clients, batch, classes)
            if self.judges == "together":
                value = F.cross_entropy(torch.einsum("k,kbc->bc", samples / samples.sum(), answers), y)
            else:
                each = torch.stack([F.cross_entropy(answer, y, reduction="none") for answer in answers])
                value = (each * (shares / shares.sum(0).clamp(min=1))[:, y]).sum(0).mean()
            return value + self.diversity * likeness(z, noise) if self.diversity else value

        plan = Training(batch=self.server_batch, lr=self.server_lr, optimizer="adam", weight_decay=self.server_decay)
        rows = torch.arange(len(labels), device=server.device)
        server.memory["generator_loss"] = server.fit(loss, generator, rows=rows, plan=plan)
        if not self.keep:
            before.load_into(generator)
        Weights.mean([u.payload.head for u in uploads], upload_weights(uploads, self.average)).load_into(
            head, buffers=False
        )

    def check(self, server: Server, up: HeadAndLabels) -> None:
        up.head.check_like(Weights.of(server.memory["head"], buffers=False))

    def predict(self, client: Client, x: Tensor, down: HeadAndGenerator | None) -> Tensor:
        return (
            super().predict(client, x, down)
            if down is None
            else down.head.run(client.model.head, client.model.features(x))
        )


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise :class:`PayloadError` unless these are counts of samples, one per class."""
    if labels.shape != (classes,) or labels.dtype != torch.float32:
        raise PayloadError(f"Label counts of shape {tuple(labels.shape)} arrived; expected are {classes} floats.")
    if (labels < 0).any() or (labels != labels.round()).any() or not labels.any():
        raise PayloadError("Label counts arrived that are negative, not whole, or all zero.")
