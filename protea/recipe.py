"""How to build any client of a run, in any process."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from protea.client import Client
from protea.data import shared
from protea.data.augment import Augment
from protea.data.federated import Federated
from protea.data.samples import Samples
from protea.models.build import size as sizes
from protea.models.families import Member, Models
from protea.models.maker import Maker
from protea.rng import Streams
from protea.server import Server
from protea.training import Training


@dataclass(frozen=True)
class Recipe:
    """Data, models and training of all clients; call it with a client's number to get the client."""

    source: Federated | Path  # a path: the data lie in a file of the engine's
    models: Models = field(default_factory=Models)
    training: Training = field(default_factory=Training)
    augment: Augment | None = None
    rounds: int = 1
    device: str = "cpu"

    @cached_property
    def data(self) -> Federated:
        return shared.read(self.source) if isinstance(self.source, Path) else self.source

    @cached_property
    def make(self) -> Maker:
        return Maker(self.models, self.data.dataset.shape, self.data.dataset.classes, self.device)

    @property
    def members(self) -> tuple[Member, ...]:
        return self.make.members

    def lend(self, folder: Path) -> Recipe:
        """The same recipe for other processes: its data in a file that they map, not copy."""
        path = folder / "data.safetensors"
        shared.write(self.data, path)
        return replace(self, source=path)

    def size(self, client: int) -> int:
        return len(self.data.shares[client].train)

    def describe(self) -> dict[str, Any]:
        """The first line of a run's metrics: what each client has, in numbers of samples by class."""
        parameters = self.parameters()
        counts = {part: self.data.class_counts(part).tolist() for part in ("train", "validation", "test")}
        clients = [
            {
                "client": client,
                "architecture": self.members[client % len(self.members)].architecture,
                "parameters": parameters[client % len(self.members)],
                **{part: rows[client] for part, rows in counts.items()},
            }
            for client in range(len(self.data.shares))
        ]
        return {"kind": "data", "round": 0, "classes": list(self.data.dataset.names), "clients": clients}

    def parameters(self) -> list[int]:
        """How many parameters the model of each member has."""
        found: list[int] = []
        with torch.random.fork_rng(devices=[]):  # these models are never trained: no draw of theirs may count
            for index, member in enumerate(self.members):
                first = self.members.index(member)
                found.append(found[first] if first < index else sum(sizes(self.make(member)).values()))
        return found

    def __call__(self, id: int, streams: Streams) -> Client:
        share = self.data.shares[id]
        with streams.default("model"):
            model = self.make(self.members[id % len(self.members)])
        return Client(
            id=id,
            model=model,
            train=self.samples(share.train),
            validation=self.samples(share.validation),
            test=self.samples(share.test),
            public=self.public,
            shared_test=self.shared_test,
            classes=self.data.dataset.classes,
            dim=self.models.dim,
            rng=streams,
            training=self.training,
            make=self.make,
            augment=self.augment,
            device=torch.device(self.device),
            rounds=self.rounds,
        )

    def server(self, seed: int) -> Server:
        return Server(
            classes=self.data.dataset.classes,
            dim=self.models.dim,
            rng=Streams(seed).at("server"),
            public=self.public,
            make=self.make,
            device=torch.device(self.device),
            rounds=self.rounds,
        )

    def samples(self, rows: torch.Tensor) -> Samples:
        return Samples(self.data.dataset, rows, device=self.device)

    @cached_property
    def public(self) -> Samples | None:
        return self.samples(self.data.public) if len(self.data.public) else None

    @cached_property
    def shared_test(self) -> Samples | None:
        return self.samples(self.data.test) if len(self.data.test) else None
