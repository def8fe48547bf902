"""FedTGP: trainable global prototypes, kept apart by an adaptive margin.

Zhang, Liu, Hua, Cao.  AAAI 2024, https://arxiv.org/abs/2401.03230

Averaged prototypes lie closer together than those of a good client.  So the server trains
prototypes of its own, near the uploads of their class and, by a margin, far from the uploads
of the others.  Clients do as in FedProto.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from protea import Client, Method, Prototypes, Server, Upload, losses
from protea.errors import ProteaError
from protea.geometry import margins
from protea.methods.fedproto import FedProto

Gap = Literal["nearest", "pairs", "literal"]

CLOSE = 0.01  # squared distances below this share of the squared lengths are taken from differences


@dataclass(frozen=True)
class FedTGP(Method[Prototypes, Prototypes]):
    """Algorithm 1.  ``pull`` is the paper's lambda, ``threshold`` tau, ``server_epochs`` S.

    The paper's ablations are ``margin="none"`` (SCL), ``margin="fixed"`` (FM) and ``mlp=False`` (w/o F).
    """

    pull: NonNegativeFloat = 10.0
    distance: losses.Distance = "mse"  # to which the weight ``pull`` belongs
    scale: PositiveFloat = 1.0  # features are pulled to scale * prototype
    taken: Literal["after", "during", "before"] = "after"  # training, are local prototypes
    answer: Literal["global", "local", "head"] = "global"  # which prototypes predict, or the head
    candidates: Literal["all", "own"] = "all"  # classes among which to predict
    first: Literal["nothing", "untrained"] = "nothing"  # what clients get in the first round
    margin: Literal["adaptive", "fixed", "none"] = "adaptive"  # fixed: the threshold itself
    gap: Gap = "nearest"  # how the adaptive margin is read off the class centres
    threshold: PositiveFloat = 100.0
    mlp: bool = True  # between trainable vectors and prototypes
    server_epochs: PositiveInt = 100
    server_batch: PositiveInt = 10
    server_lr: PositiveFloat = 0.01

    family = "class vectors"
    exchanges = "prototypes"
    variants = {
        "paper": {"pull": 0.1, "distance": "euclidean", "first": "untrained", "gap": "pairs"},
        "code": {"taken": "before"},
    }

    def start_server(self, server: Server) -> None:
        trainable = TrainablePrototypes(server.classes, server.dim, self.mlp).to(server.device)
        server.memory["trainable"] = trainable
        if self.first == "untrained":
            server.memory["prototypes"] = trainable.prototypes()

    def broadcast(self, server: Server, client: int) -> Prototypes | None:
        return server.memory.get("prototypes")

    def local_update(self, client: Client, down: Prototypes | None) -> Prototypes:
        local = self.on_clients.local_update(client, down)  # Eq. 11 and 2
        return Prototypes(local.vectors, local.present.to(local.counts.dtype))  # how many samples stays private

    def aggregate(self, server: Server, uploads: Sequence[Upload[Prototypes]]) -> None:
        parts = [u.payload for u in uploads]
        points, labels = Prototypes.points(parts)
        if not len(points):
            return
        delta = self.find_margin(Prototypes.mean(parts))
        trainable: TrainablePrototypes = server.memory["trainable"]
        server.memory["server_loss"] = train_prototypes(
            trainable, points, labels, delta, self.server_epochs, self.server_batch, self.server_lr
        )
        server.memory["margin"] = delta
        server.memory["prototypes"] = trainable.prototypes()

    def predict(self, client: Client, x: Tensor, down: Prototypes | None) -> Tensor:
        return self.on_clients.predict(client, x, down)

    @property
    def on_clients(self) -> FedProto:
        return FedProto(
            pull=self.pull, distance=self.distance, scale=self.scale,
            taken=self.taken, answer=self.answer, candidates=self.candidates,
        )  # fmt: skip

    def find_margin(self, centres: Prototypes) -> float:
        """delta of Eq. 7 and 10; ``centres`` are the Q of Eq. 9."""
        if self.margin == "adaptive":
            return min(widest_gap(centres, self.gap), self.threshold)
        return self.threshold if self.margin == "fixed" else 0.0


class TrainablePrototypes(nn.Module):
    """A vector per class, and the network F that makes a prototype of it (Figure 3)."""

    def __init__(self, classes: int, dim: int, mlp: bool = True) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(classes, dim))
        layers = [nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)] if mlp else []
        self.mlp = nn.Sequential(*layers)

    def forward(self) -> Tensor:
        return self.layers()[1]

    def prototypes(self) -> Prototypes:
        """All classes, also those that no client has reported yet."""
        vectors = self().detach().clone()
        return Prototypes(vectors, vectors.new_ones(len(vectors)))

    def layers(self) -> tuple[Tensor, Tensor]:
        """What is inside the network, after its ReLU, and the prototypes."""
        if not self.mlp:
            return self.vectors, self.vectors
        inner, inner_bias, outer, outer_bias = self.mlp.parameters()
        hidden = F.linear(self.vectors, inner, inner_bias).relu()
        return hidden, F.linear(hidden, outer, outer_bias)

    @torch.no_grad()
    def descend(self, slope: Tensor, hidden: Tensor, lr: float) -> None:
        """One step of SGD, in place, where a loss has this slope at the prototypes.

        As by autograd, but without a graph, and without ever holding the slope of a weight.
        """
        if self.mlp:
            inner, inner_bias, outer, outer_bias = self.mlp.parameters()
            behind = (slope @ outer).mul_(hidden.sign())  # each by the weights before they change
            outer.addmm_(slope.T, hidden, alpha=-lr)
            outer_bias.sub_(slope.sum(0), alpha=lr)
            slope = behind @ inner
            inner.addmm_(behind.T, self.vectors, alpha=-lr)
            inner_bias.sub_(behind.sum(0), alpha=lr)
        self.vectors.sub_(slope, alpha=lr)


@torch.no_grad()
def train_prototypes(
    module: TrainablePrototypes,
    points: Tensor,
    labels: Tensor,
    margin: Tensor | float,
    epochs: int,
    batch: int,
    lr: float,
) -> float:
    """Train prototypes on the uploads ``points`` by :func:`contrast`; the last epoch's mean loss.

    ``margin`` is one number or one for each class.  Every batch runs all classes through the
    network again, and this is nearly all of the cost: a larger ``batch`` is faster almost in proportion.
    """
    margins = points.new_zeros(len(module.vectors)).add_(margin)
    total = points.new_zeros(())
    for _ in range(epochs if len(points) else 0):
        total = torch.zeros_like(total)
        order = torch.randperm(len(points)).to(points.device)
        for x, y in zip(points[order].split(batch), labels[order].split(batch), strict=True):
            hidden, prototypes = module.layers()
            value, slope = contrast_slope(x, y, prototypes, margins)
            module.descend(slope, hidden, lr)
            total += value * len(y)
    loss = total.item() / max(1, len(points))
    if not math.isfinite(loss):
        raise ProteaError(f"The server's prototypes diverged: their loss is {loss} (lr {lr:g}).  Try a smaller one.")
    return loss


def contrast(points: Tensor, labels: Tensor, prototypes: Tensor, margin: Tensor | float) -> Tensor:
    """Eq. 10, mean over points: each must be nearer to its own prototype than to others, by ``margin``.

    Distances are not taken from squares and products, which near 0 give noise; their gradient at 0 is 0.
    """
    away = torch.cdist(points, prototypes, compute_mode="donot_use_mm_for_euclid_dist")
    return F.cross_entropy(-(away + margin * F.one_hot(labels, len(prototypes))), labels)


def contrast_slope(points: Tensor, labels: Tensor, prototypes: Tensor, margins: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`contrast` with a margin for each class, and its slope at the prototypes, written out.

    A prototype goes along its differences to points.  Distances, and these differences, come from
    products, but for close pairs: there they would lose their digits.
    """
    centre = points.mean(0)
    x, p = points - centre, prototypes - centre  # distances stay, and what cancels becomes smaller
    both = x.square().sum(1, keepdim=True) + p.square().sum(1)
    squares = torch.addmm(both, x, p.T, alpha=-2)
    i, j = (squares <= CLOSE * both).nonzero(as_tuple=True)
    apart = prototypes[j] - points[i]
    if len(i):
        squares[i, j] = apart.square().sum(1)
    away, own = squares.sqrt_(), labels.unsqueeze(1)
    logs = away.scatter_add(1, own, margins[own]).neg_().log_softmax(1)
    value = -logs.gather(1, own).mean()
    pulls = logs.exp_().neg_().scatter_add_(1, own, torch.ones_like(away))  # (one hot - softmax) / distance
    pulls.div_(away).div_(len(points))
    if not len(i):
        return value, torch.addmm(p * pulls.sum(0).unsqueeze(1), pulls.T, x, alpha=-1)
    close = torch.where(away[i, j] > 0, pulls[i, j], 0.0).unsqueeze(1)
    pulls[i, j] = 0.0
    slope = torch.addmm(p * pulls.sum(0).unsqueeze(1), pulls.T, x, alpha=-1)
    return value, slope.index_add_(0, j, close * apart)


def widest_gap(centres: Prototypes, gap: Gap) -> float:
    """Eq. 9 before its threshold tau; inf where fewer than two classes are present.

    ``nearest`` is the authors' code: the largest distance of a class to its nearest neighbour.
    ``pairs`` is the largest of all distances, ``literal`` the smallest over classes of the
    distance to the farthest other, which is the equation as printed.
    """
    known = centres.vectors[centres.present]
    if len(known) < 2:
        return torch.inf
    if gap == "nearest":
        return margins(known).max().item()
    if gap == "pairs":
        return torch.pdist(known).max().item()
    return torch.cdist(known, known).amax(1).min().item()
