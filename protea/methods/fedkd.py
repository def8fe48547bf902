"""FedKD: communication-efficient federated learning via knowledge distillation.

Wu, Wu, Lyu, Huang, Xie.  Nature Communications 2022, https://arxiv.org/abs/2108.13323

Beside its own model, the mentor, each client has a small one, the mentee.  The two teach each
other by answers and features, the more the surer they are; mentees travel as thin matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor, nn

from protea import Client, Method, Server, Upload, Weights, losses
from protea.core.lowrank import LowRank, Matrices, RankRule
from protea.core.method import Reveals

Energy = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class FedKD(Method[LowRank, LowRank]):
    """Algorithm 1.  ``energy_first`` and ``energy_last`` are the paper's T_start and T_end."""

    mentee: str = "smallest"  # architecture; "smallest" takes the family's smallest
    energy_first: Energy = 0.95  # share of the squared singular values that travels
    energy_last: Energy = 0.98
    hidden: NonNegativeFloat = 1.0  # weight of the features' distance
    strongest: PositiveFloat = 10.0  # largest weight of teaching, of models that are sure; the paper has no limit
    teaching: losses.Teaching = "apart"  # joint: HtFLlib's, models get gradients of both losses
    matrices: Matrices = "rows"  # a convolution is one matrix, or as many as it has kernels
    rule: RankRule = "enough"  # for the rank; the reference code's makes zeros of matrices that need full rank

    family = "second model"
    exchanges = "a small shared model, compressed"
    variants = {"htfllib": {"teaching": "joint", "matrices": "kernels", "rule": "code"}}

    @property
    def reveals(self) -> frozenset[Reveals]:
        return frozenset({"model"})

    def start_server(self, server: Server) -> None:
        server.memory["mentee"] = server.make(self.mentee)

    def start_client(self, client: Client) -> None:
        client.memory["mentee"] = client.second_model(self.mentee)
        client.memory["map"] = nn.Linear(client.dim, client.dim, bias=False).to(client.device)  # W_h; never travels

    def broadcast(self, server: Server, client: int) -> LowRank:
        if "sent" not in server.memory:
            server.memory["sent"] = self.compressed(server.memory["mentee"], 1, server.rounds)
        sent: LowRank = server.memory["sent"]
        return sent

    def local_update(self, client: Client, down: LowRank | None) -> LowRank:
        assert down is not None  # there is a mentee from the start
        mentor, mentee, onto = client.model, client.memory["mentee"], client.memory["map"]
        down.weights(Weights.of(mentee)).load_into(mentee)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = mentor.features(x)
            with client.separate_draws("mentee"):
                small = mentee.features(x)
            own, shared = mentor.head(z), mentee.head(small)
            labels = F.cross_entropy(own, y) + F.cross_entropy(shared, y)
            doubt = labels.clamp(min=1 / self.strongest)  # by which teaching is divided: the surer, the more
            taught = losses.teach(shared, own, self.teaching) + losses.teach(own, shared, self.teaching)
            apart = self.hidden * F.mse_loss(z, onto(small))
            if self.teaching == "joint":
                return labels + (taught + 2 * apart) / doubt  # the distance is in both losses, and both train both
            return labels + (taught + apart) / doubt.detach()  # Eq. 1 to 5; to be in doubt teaches nothing

        client.fit(loss, mentee, onto)
        return self.compressed(mentee, client.round, client.rounds)

    def compressed(self, mentee: nn.Module, round: int, rounds: int) -> LowRank:
        """Return the mentee's weights as thin matrices, of a rank that grows over the rounds."""
        energy = self.energy_first + round / rounds * (self.energy_last - self.energy_first)  # Eq. 8
        return LowRank.of(Weights.of(mentee), energy, self.matrices, self.rule)

    def aggregate(self, server: Server, uploads: Sequence[Upload[LowRank]]) -> None:
        mentee = server.memory["mentee"]
        like = Weights.of(mentee)
        Weights.mean([u.payload.weights(like) for u in uploads]).load_into(mentee)
        server.memory["sent"] = self.compressed(mentee, min(server.round + 1, server.rounds), server.rounds)

    def check(self, server: Server, up: LowRank) -> None:
        up.weights(Weights.of(server.memory["mentee"]))
