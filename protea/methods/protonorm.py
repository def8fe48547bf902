"""ProtoNorm: prototypes aligned on the sphere, then scaled up.

Lee, Shin, Choi.  2025, https://arxiv.org/abs/2507.04310

FedProto, but the server spreads the directions of the averaged prototypes over the unit
sphere as far as they go, like charges that repel each other (PA), and clients pull their
features toward these directions at a large radius (PU).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from protea import Client, Prototypes, Server, Upload, geometry
from protea.core.errors import ConfigError
from protea.core.method import Reveals
from protea.core.ranges import Fraction
from protea.methods.fedproto import FedProto


@dataclass(frozen=True)
class ProtoNorm(FedProto):
    """Algorithms 1 and 2.  ``scale`` is gamma, ``momentum`` mu, ``lr`` eta.

    Without PU ``scale`` is 1.  Without PA prototypes are the means themselves, which is FedProto
    with a scale, or the means at unit length.
    """

    scale: PositiveFloat = 10.0  # tuned to data and dim: the paper has 100 to 400 with dim 512
    alignment: Literal["thomson", "unit", "none"] = "thomson"
    solver: geometry.Solver = "iterate"  # of Thomson's problem: the paper's, or exact, or lbfgs
    first: Literal["nothing", "random"] = "nothing"  # what clients get in the first round
    momentum: Fraction = 0.9
    lr: PositiveFloat = 0.1
    decay: Annotated[float, Field(gt=0, le=1)] = 0.95  # of lr
    every: PositiveInt = 10  # steps
    steps: PositiveInt = 500  # at most
    stop: geometry.Stop = "tangential"
    tol: NonNegativeFloat = 1e-4  # tangential force, as a share of the radial one

    variants = {
        "paper": {
            "pull": 1.0, "distance": "euclidean", "scale": 100.0, "first": "random", "answer": "local", "stop": "code",
        },
        "code": {"scale": 80.0, "taken": "before", "missing": "drop", "stop": "code"},
    }  # fmt: skip

    @property
    def reveals(self) -> frozenset[Reveals] | None:
        return frozenset({"means"}) if self.taken != "during" else None

    def start_server(self, server: Server) -> None:
        if self.solver == "exact" and server.classes > server.dim + 1:
            raise ConfigError(
                f'method.solver="exact" finds the simplex, which {server.classes} classes have not in {server.dim} '
                f"dimensions: at most {server.dim + 1} can be equally far apart.  Set method.solver=lbfgs, or "
                f"models.dim={server.classes - 1} or more."
            )
        if self.first == "random":
            vectors = F.normalize(torch.randn(server.classes, server.dim), dim=1).to(server.device)
            server.memory["prototypes"] = Prototypes(vectors, vectors.new_ones(server.classes))

    def local_update(self, client: Client, down: Prototypes | None) -> Prototypes:
        local = super().local_update(client, down)  # Eq. 4, 15 and 2
        if self.average != "uniform":
            return local
        return Prototypes(local.vectors, local.present.to(local.counts.dtype))  # how many samples stays private

    def aggregate(self, server: Server, uploads: Sequence[Upload[Prototypes]]) -> None:
        if self.alignment == "none":
            return super().aggregate(server, uploads)
        mean = Prototypes.mean([u.payload for u in uploads], self.average)  # Eq. 7
        mean = mean.only(geometry.has_direction(mean.vectors))  # dead features have none
        known = mean.filled(server.memory.get("prototypes") if self.missing == "keep" else None)
        vectors = torch.zeros_like(known.vectors)
        vectors[known.present], steps = self.align(known.vectors[known.present])
        server.memory["prototypes"] = Prototypes(vectors, known.counts)
        server.memory["alignment_steps"] = float(steps)  # for the record
        return None

    def align(self, vectors: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return unit rows, spread over the sphere or as they are, and how many steps that took."""
        if self.alignment == "unit":
            return F.normalize(vectors, dim=1), 0
        found = geometry.align(
            vectors, solver=self.solver, momentum=self.momentum, lr=self.lr, decay=self.decay, every=self.every,
            steps=self.steps, stop=self.stop, tol=self.tol,
        )  # fmt: skip
        return found.vectors, found.steps
