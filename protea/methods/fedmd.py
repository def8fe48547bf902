"""FedMD: heterogenous federated learning via model distillation.

Li, Wang.  2019, https://arxiv.org/abs/1910.03581

Clients learn a labelled public data set first, then their own.  From then on, in every round,
they answer some public samples, and learn to answer them as all clients do on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from protea import Client, Method, Needs, Payload, Server, Upload, losses
from protea.core.method import Reveals
from protea.core.public_answers import check_rows, draw_public, note_teacher, select_public, weighted_mean


@dataclass(frozen=True)
class Consensus(Payload):
    """What clients get: which public samples to answer now, and the mean scores of those asked before."""

    ask: Tensor  # a bool per public sample
    asked: Tensor | None = None
    scores: Tensor | None = None  # (public samples asked, classes)


@dataclass(frozen=True)
class Answers(Payload):
    """What a client sends: its scores of the public samples it was asked about."""

    scores: Tensor  # (public samples asked, classes)

    def check(self, classes: int, dim: int) -> None:
        super().check(classes, dim)
        check_rows("Scores", self.scores, None, classes)


@dataclass(frozen=True)
class FedMD(Method[Consensus, Answers]):
    """Algorithm 1.  Its "digest" has ``digest_epochs``, its "revisit" the experiment's ``training.epochs``."""

    samples: PositiveInt = 5000  # public ones that are answered in a round; all, if there are fewer
    public_epochs: NonNegativeInt = 5  # on the public labels, in a client's first round; the paper has up to 20
    private_epochs: NonNegativeInt | None = None  # on its own samples, then; None: training.epochs
    digest_epochs: NonNegativeInt = 1
    distance: Literal["absolute", "divergence"] = "absolute"  # of scores to the consensus

    family = "public data"
    exchanges = "scores on public samples"
    variants = {"paper": {"public_epochs": 20, "private_epochs": 25}}

    @property
    def needs(self) -> Needs:
        return Needs(public_data=True, public_labels=self.public_epochs > 0)

    @property
    def reveals(self) -> frozenset[Reveals]:
        return frozenset({"model"})

    def start_server(self, server: Server) -> None:
        server.memory["consensus"] = Consensus(draw_public(server, self.samples))

    def broadcast(self, server: Server, client: int) -> Consensus:
        consensus: Consensus = server.memory["consensus"]
        return consensus

    def local_update(self, client: Client, down: Consensus | None) -> Answers:
        assert down is not None and client.public is not None  # something is asked from the start
        model = client.model

        def labels(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(model(x), y)

        first = "began" not in client.memory
        if first and self.public_epochs:
            client.fit(labels, data=client.public, epochs=self.public_epochs)
        if down.scores is not None and down.asked is not None and self.digest_epochs:
            taught = select_public(client.public, down.asked)
            check_rows("Scores", down.scores, len(taught), client.classes)
            client.fit(
                lambda x, scores: self.apart(model(x), scores),
                data=taught.with_targets(down.scores),
                epochs=self.digest_epochs,
            )
        client.fit(labels, epochs=self.private_epochs if first else None)
        client.memory["began"] = True
        return Answers(client.outputs(model, select_public(client.public, down.ask))[0])

    def apart(self, scores: Tensor, consensus: Tensor) -> Tensor:
        """Return the distance of scores to the consensus."""
        return F.l1_loss(scores, consensus) if self.distance == "absolute" else losses.divergence(consensus, scores)

    def aggregate(self, server: Server, uploads: Sequence[Upload[Answers]]) -> None:
        asked = server.memory["consensus"].ask
        scores = torch.stack([u.payload.scores for u in uploads])
        mean = weighted_mean(scores, torch.ones_like(scores[:, :, 0]))
        note_teacher(server, mean, asked)
        server.memory["consensus"] = Consensus(draw_public(server, self.samples), asked, mean)

    def check(self, server: Server, up: Answers) -> None:
        check_rows("Scores", up.scores, int(server.memory["consensus"].ask.sum()), server.classes)
