"""FedMRL: federated model heterogeneous Matryoshka representation learning.

Yi, Yu, Ren, Wang, Liu, Li.  NeurIPS 2024, https://arxiv.org/abs/2406.00488

Beside its own model each client trains a small shared one.  A projector of the client's own
fuses the features of both.  The whole of that goes to the own head, its first numbers alone to
the small head, as dolls lie in dolls; only small models travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat
from torch import Tensor, nn

from protea import Client, Method, Server, SplitModel, Upload, Weights
from protea.core.method import Average, Reveals, upload_weights
from protea.models.adapters import Pool


@dataclass(frozen=True)
class FedMRL(Method[Weights, Weights]):
    """``inner`` is the paper's d1 / d2, where d2 is ``dim``; ``htfllib`` loses the projector in each round."""

    small: str = "smallest"  # architecture; "smallest" takes the family's smallest
    inner: Annotated[float, Field(gt=0, le=1)] = 0.25  # share of the fused numbers that the small head sees
    inner_weight: NonNegativeFloat = 1.0  # of the small head's loss
    outer_weight: NonNegativeFloat = 1.0  # of the own head's
    keep: bool = True  # the trained projector; HtFLlib throws it away and begins each round with the first one
    average: Average = "samples"  # of small models
    answer: Literal["own", "average"] = "own"  # the small model that a client trained last, or the average

    family = "second model"
    exchanges = "a small shared model"
    variants = {
        "official": {"inner": 1.0},
        "htfllib": {"keep": False, "average": "uniform", "answer": "average"},
    }

    @property
    def reveals(self) -> frozenset[Reveals]:
        return frozenset({"model"})

    def inner_dim(self, dim: int) -> int:
        """Return d1: how many of the ``dim`` fused numbers the small head sees, one at least."""
        return max(1, round(self.inner * dim))

    def start_server(self, server: Server) -> None:
        small = narrowed(server.make(self.small), server.dim, self.inner_dim(server.dim), server.classes)
        server.memory["small"] = Weights.of(small.to(server.device))

    def start_client(self, client: Client) -> None:
        inner = self.inner_dim(client.dim)
        small = narrowed(client.second_model(self.small), client.dim, inner, client.classes)
        client.memory["small"] = small.to(client.device)
        client.memory["projector"] = nn.Linear(inner + client.dim, client.dim).to(client.device)  # never travels

    def broadcast(self, server: Server, client: int) -> Weights:
        small: Weights = server.memory["small"]
        return small

    def local_update(self, client: Client, down: Weights | None) -> Weights:
        assert down is not None  # there is a small model from the start
        small, projector = client.memory["small"], client.memory["projector"]
        down.load_into(small)
        before = Weights.of(projector)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            own = client.model.features(x)
            with client.separate_draws("small"):
                shared = small.features(x)
            fused = projector(torch.cat([shared, own], 1))
            outer = F.cross_entropy(client.model.head(fused), y)
            inner = F.cross_entropy(small.head(fused[:, : shared.shape[1]]), y)
            return self.outer_weight * outer + self.inner_weight * inner

        client.fit(loss, small, projector)
        if not self.keep:
            before.load_into(projector)
        return Weights.of(small)

    def aggregate(self, server: Server, uploads: Sequence[Upload[Weights]]) -> None:
        server.memory["small"] = Weights.mean([u.payload for u in uploads], upload_weights(uploads, self.average))

    def check(self, server: Server, up: Weights) -> None:
        up.check_like(server.memory["small"])

    def predict(self, client: Client, x: Tensor, down: Weights | None) -> Tensor:
        """Return the own head's scores of the fused features."""
        small: SplitModel = client.memory["small"]
        shared = small.features(x) if down is None or self.answer == "own" else down.features(small, x)
        fused = client.memory["projector"](torch.cat([shared, client.model.features(x)], 1))
        scores: Tensor = client.model.head(fused)
        return scores


def narrowed(model: SplitModel, dim: int, inner: int, classes: int) -> SplitModel:
    """Return a model whose features are ``inner`` numbers in the place of ``dim``, with a linear head for these.

    >>> narrowed(SplitModel(nn.Flatten(), nn.Linear(9, 8), nn.Linear(8, 3)), 8, 2, 3)(torch.zeros(5, 9)).shape
    torch.Size([5, 3])
    """
    if inner == dim:
        return model
    adapter = model.adapter
    if isinstance(adapter, nn.Linear):
        model.adapter = nn.Linear(adapter.in_features, inner)
    else:
        model.adapter = Pool(inner) if isinstance(adapter, Pool) else nn.Sequential(adapter, Pool(inner))
    model.head = nn.Linear(inner, classes)
    return model
