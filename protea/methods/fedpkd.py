"""FedPKD: a prototype-based knowledge distillation framework for heterogeneous federated learning.

Lyu, Tang, Deng, Liu, Zhang, Zhang.  ICDCS 2023, https://doi.org/10.1109/ICDCS57875.2023.00091

Clients send class prototypes, and their scores on public samples that nobody has labelled.
The server averages the former, merges the latter into a teacher, keeps the public samples
that lie near the prototype of their pseudo label, and distils all this into a model of its
own.  That model's scores on the samples kept, and the prototypes, teach the clients.

Built from what the FedProtoKD paper says of it; equation numbers are that paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from protea import Client, Method, Needs, Payload, Prototypes, Server, Upload, losses
from protea.core.client import EVALUATION_BATCH
from protea.core.errors import PayloadError
from protea.core.public_answers import check_rows, note_teacher, select_public, weighted_mean
from protea.core.ranges import Proportion
from protea.core.split_model import SplitModel
from protea.core.training import Training


@dataclass(frozen=True)
class DualKnowledge(Payload):
    """What travels in both directions: class prototypes, and scores on public samples."""

    prototypes: Prototypes
    logits: Tensor  # (public samples, classes)
    kept: Tensor | None = None  # a bool per public sample, where the logits are of some only

    def check(self, classes: int, dim: int) -> None:
        super().check(classes, dim)
        check_rows("Logits", self.logits, None, classes)
        if self.kept is not None and (self.kept.dtype != torch.bool or self.kept.ndim != 1):
            raise PayloadError(f"{tuple(self.kept.shape)} of {self.kept.dtype} arrived, not a bool per public sample.")
        if self.kept is not None and int(self.kept.sum()) != len(self.logits):
            raise PayloadError(f"{len(self.logits)} logits arrived for {int(self.kept.sum())} samples that were kept.")


@dataclass(frozen=True)
class FedPKD(Method[DualKnowledge, DualKnowledge]):
    """``pull`` is epsilon of Eq. 15, ``soft`` gamma of Eq. 14, ``balance`` Upsilon of Eq. 12, ``keep`` theta."""

    pull: NonNegativeFloat = 0.5
    distance: losses.Distance = "mse"  # of features to prototypes, on clients and server
    soft: Proportion = 0.5  # weight of the server's scores against its pseudo labels, in the public phase
    kl: Literal["forward", "reverse"] = "forward"  # on clients: KL(teacher || student), or as Eq. 14 prints it
    temperature: PositiveFloat = 1.0  # of both distillations
    public_epochs: NonNegativeInt | None = None  # None: training.epochs; 0: no public phase
    average: Literal["count", "uniform"] = "count"  # of prototypes over clients
    weighting: Literal["variance", "uniform", "samples"] = "variance"  # of clients in the teacher
    teacher: Literal["scores", "probabilities"] = "scores"  # what of clients is averaged, and what weights are from
    keep: Annotated[float, Field(gt=0, le=1)] = 0.7  # of the public samples of a pseudo class
    balance: Proportion = 0.5  # of teacher against prototypes, on the server
    server_epochs: PositiveInt = 10
    server_batch: PositiveInt = 32
    server_lr: PositiveFloat = 0.001
    server_optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    answer: Literal["head", "global"] = "head"  # or the nearest global prototype

    family = "public data"
    exchanges = "prototypes, scores on public samples"
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {"mixture": {"teacher": "probabilities"}}
    needs = Needs(public_data=True, server_model=True)

    def start_server(self, server: Server) -> None:
        server.memory["model"] = server.make("server")

    def broadcast(self, server: Server, client: int) -> DualKnowledge | None:
        return server.memory.get("knowledge")

    def local_update(self, client: Client, down: DualKnowledge | None) -> DualKnowledge:
        """A public phase with the server as teacher, then a private one."""
        assert client.public is not None
        if down is not None and self.public_epochs != 0:
            public = client.public if down.kept is None else select_public(client.public, down.kept)
            taught = public.with_targets(down.logits)
            client.fit(lambda x, teacher: self.study(client.model(x), teacher), data=taught, epochs=self.public_epochs)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = client.model.features(x)
            value = F.cross_entropy(client.model.head(z), y)  # Eq. 2
            if down is not None:
                value = value + self.pulling(z, y, down)  # Eq. 15
            return value

        client.fit(loss)
        logits, _ = client.outputs(client.model, client.public)
        return DualKnowledge(client.prototypes(), logits)

    def pulling(self, z: Tensor, y: Tensor, down: DualKnowledge) -> Tensor:
        return self.pull * losses.pull(z, y, down.prototypes, self.distance)

    def study(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the loss of Eq. 14: to the teacher's scores, and to the labels these give (Eq. 13)."""
        pair = (teacher, student) if self.kl == "forward" else (student, teacher)
        labels = F.cross_entropy(student, teacher.argmax(1))
        return self.soft * losses.divergence(*pair, self.temperature) + (1 - self.soft) * labels

    def aggregate(self, server: Server, uploads: Sequence[Upload[DualKnowledge]]) -> None:
        public, model = server.public, server.memory["model"]
        assert public is not None
        prototypes = self.merge(server, [u.payload.prototypes for u in uploads])
        teacher = self.ensemble(uploads)
        note_teacher(server, teacher)
        labels = teacher.argmax(1)  # Eq. 8
        away = distances(outputs(server, model.features), labels, prototypes)
        kept, weights = self.select(away, labels)
        self.note_public(server, uploads, labels, away)

        def loss(rows: Tensor) -> Tensor:
            z = model.features(public.batch(rows)[0])
            scores, y = model.head(z), labels[rows]
            soft = losses.divergence(teacher[rows], scores, self.temperature)
            hard = (weights[rows] * F.cross_entropy(scores, y, reduction="none")).mean()
            pull = losses.pull(z, y, prototypes, self.distance)  # Eq. 11
            return self.balance * (soft + hard) + (1 - self.balance) * pull  # Eq. 10 and 12

        rows = kept.nonzero().squeeze(1)
        plan = Training(
            epochs=self.server_epochs, batch=self.server_batch, lr=self.server_lr, optimizer=self.server_optimizer
        )
        server.memory["server_loss"] = server.fit(loss, model, rows=rows, plan=plan)
        some = kept if len(rows) < len(public) else None
        server.memory["knowledge"] = DualKnowledge(prototypes, outputs(server, model)[rows], some)

    def merge(self, server: Server, parts: Sequence[Prototypes]) -> Prototypes:
        """Return the global prototypes; a class that nobody reported keeps its own."""
        return Prototypes.mean(parts, self.average).filled(self.prototypes(server.memory.get("knowledge")))

    def ensemble(self, uploads: Sequence[Upload[DualKnowledge]]) -> Tensor:
        """Return the teacher's scores (Eq. 7): the clients' mean, weighted by the variance of each one's scores.

        A client whose scores for a sample differ much is sure of it.  Where all are flat, each counts the same.  In a
        mean of scores a client that has never seen a class rules it out for all; in one of probabilities it does not.
        """
        scores = torch.stack([u.payload.logits for u in uploads])  # (clients, public samples, classes)
        if self.teacher == "probabilities":
            scores = scores.softmax(2)
        sure = torch.ones_like(scores[:, :, 0])
        if self.weighting == "variance":
            sure = scores.var(2, correction=0)
        elif self.weighting == "samples":
            sure = sure * sure.new_tensor([u.samples for u in uploads]).unsqueeze(1)
        mean = weighted_mean(scores, sure)
        return mean if self.teacher == "scores" else mean.clamp(min=1e-30).log()

    def note_public(
        self, server: Server, uploads: Sequence[Upload[DualKnowledge]], labels: Tensor, away: Tensor
    ) -> None:
        """Keep for figures 4 and 5, of each public sample: variance of the scores and largest probability, both mean
        over clients; its pseudo label; the distance of the server's features to that label's prototype."""
        scores = torch.stack([u.payload.logits for u in uploads])
        sure, certain = scores.var(2, correction=0).mean(0), scores.softmax(2).amax(2).mean(0)
        server.memory["public"] = torch.stack([sure, certain, labels.float(), away])

    def shown(self, server: Server) -> dict[str, Tensor]:
        found = server.memory.get("public")
        return {} if found is None else {"public": found}

    def select(self, away: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return which public samples teach the server (a bool each), and how much their pseudo labels count."""
        return nearest(away, labels, self.keep), torch.ones_like(away)

    def check(self, server: Server, up: DualKnowledge) -> None:
        public = len(server.public or ())
        if len(up.logits) != public:
            raise PayloadError(f"{len(up.logits)} logits arrived for {public} public samples.")
        if up.kept is not None:
            raise PayloadError("A client makes no selection of public samples; one arrived.")

    def predict(self, client: Client, x: Tensor, down: DualKnowledge | None) -> Tensor:
        if down is None or self.answer == "head":
            return super().predict(client, x, down)
        return down.prototypes.scores(client.model.features(x))

    def prototypes(self, down: DualKnowledge | None) -> Prototypes | None:
        return None if down is None else down.prototypes

    def server_model(self, server: Server) -> SplitModel:
        model: SplitModel = server.memory["model"]
        return model


@torch.no_grad()
def outputs(server: Server, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return ``of(x)`` for all public samples, with the server's model in evaluation mode."""
    assert server.public is not None
    server.memory["model"].eval()
    return torch.cat(
        [of(server.public.batch(rows)[0]) for rows in torch.arange(len(server.public)).split(EVALUATION_BATCH)]
    )


def distances(z: Tensor, labels: Tensor, prototypes: Prototypes) -> Tensor:
    """Return the distance of features to the prototype of their label; the largest one where there is no prototype."""
    known = prototypes.present[labels]
    away: Tensor = torch.linalg.vector_norm(z - prototypes.vectors[labels], dim=1)
    return torch.where(known, away, (away * known).max())


def nearest(away: Tensor, labels: Tensor, share: float) -> Tensor:
    """Choose of each label's samples the ``share`` that is nearest, at least one: a bool per sample."""
    order = away.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]  # by label, and within a label by distance
    counts = labels.bincount()
    place = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[labels[order]]
    kept = torch.zeros_like(labels, dtype=torch.bool)
    kept[order] = place < (share * counts).round().clamp(min=1)[labels[order]]
    return kept
