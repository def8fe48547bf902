"""The builder of a simulated federation: any client of an experiment, in any process."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from protea.clients.builder import Builder
from protea.clients.first_weights import FirstWeights
from protea.config.families import Member, Models
from protea.core.augment import Augment
from protea.core.client import Client
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.server import Server
from protea.core.split_model import View
from protea.core.training import Training
from protea.data import Federated, Texts, mapped_file, views
from protea.models.architectures import count_parameters
from protea.models.maker import ModelMaker


@dataclass(frozen=True)
class ClientFactory(Builder):
    """Makes the clients and the server of an experiment from its data, models and training settings."""

    source: Federated | Path  # the shared-out data, or the file into which an engine has written them
    models: Models = field(default_factory=Models)
    training: Training = field(default_factory=Training)
    augment: Augment | None = None
    rounds: int = 1
    device: str = "cpu"
    gives_public: bool = True  # whether clients get the public samples; reading them may take long
    gives_test: bool = True  # whether clients get the shared test set
    common_view: str | None = None  # of texts, beside that of each model, for methods that need one

    @cached_property
    def data(self) -> Federated:
        """The data of all clients."""
        return mapped_file.read_mapped(self.source) if isinstance(self.source, Path) else self.source

    @cached_property
    def make(self) -> ModelMaker:
        """The maker of all models, by architecture."""
        dataset = self.data.dataset
        return ModelMaker(self.models, dataset.shape, dataset.classes, self.device, self.common_view)

    @property
    def members(self) -> tuple[Member, ...]:
        """The architectures of the family; client i has number i modulo their count."""
        return self.make.members

    def lend(self, folder: Path) -> ClientFactory:
        path = folder / "data.safetensors"
        mapped_file.write_mapped(self.data, path)
        return replace(self, source=path)

    def moved(self, folder: Path) -> ClientFactory:
        assert isinstance(self.source, Path)
        return replace(self, source=folder / self.source.name)

    def size(self, client: int) -> int:
        return len(self.data.shares[client].train)

    def describe(self) -> dict[str, Any]:
        """Give the first line of a run's metrics: each client's model, and its number of samples by class."""
        parameters, names = self.parameters(), self.data.client_names()
        counts = {part: self.data.class_counts(part).tolist() for part in ("train", "validation", "test")}
        clients = [
            {
                "client": client,
                **({} if (name := names[client]) is None else {"site": name}),
                "architecture": self.members[client % len(self.members)].architecture,
                "parameters": parameters[client % len(self.members)],
                **{part: rows[client] for part, rows in counts.items()},
            }
            for client in range(len(self.data.shares))
        ]
        return {"kind": "data", "round": 0, "classes": list(self.data.dataset.names), "clients": clients}

    def parameters(self) -> list[int]:
        """Count the parameters of each architecture of the family."""
        found: list[int] = []
        with torch.random.fork_rng(devices=[]):  # these models are never trained: no draw of theirs may count
            for index, member in enumerate(self.members):
                first = self.members.index(member)
                found.append(found[first] if first < index else sum(count_parameters(self.make(member)).values()))
        return found

    def __call__(self, id: int, streams: Streams) -> Client:
        share = self.data.shares[id]
        with streams.default("model"):
            model = self.make(self.members[id % len(self.members)])
        if self.first_weights is not None:
            self.first_weights.into_model(id, model)
        return Client(
            id=id,
            model=model,
            train=self.training.arrange(self.samples(share.train, model.view), streams),
            validation=self.samples(share.validation, model.view),
            test=self.samples(share.test, model.view),
            public=self.public(model.view) if self.gives_public else None,
            shared_test=self.shared_test(model.view) if self.gives_test else None,
            classes=self.data.dataset.classes,
            dim=self.models.dim,
            rng=streams,
            training=self.training,
            make=self.make,
            augment=self.augment,
            device=torch.device(self.device),
            rounds=self.rounds,
        )

    def started(self, client: Client) -> None:
        if self.first_weights is not None:
            self.first_weights.into_memory(client.id, client.memory)

    @property
    def first_weights(self) -> FirstWeights | None:
        """The folder that ``models.start`` names; ``None`` where weights are drawn."""
        return None if self.models.start is None else FirstWeights(Path(self.models.start))

    def server(self, seed: int, view: View | None = None) -> Server:
        """Make the server, which sees public samples by ``view``."""
        return Server(
            classes=self.data.dataset.classes,
            dim=self.models.dim,
            rng=Streams(seed).at("server"),
            public=self.public(view),
            make=self.make,
            device=torch.device(self.device),
            rounds=self.rounds,
            names=self.data.dataset.names,
        )

    def samples(self, rows: torch.Tensor, view: View | None = None) -> Samples:
        """Give rows of the data set as a model with this view sees them."""
        return views.view_samples(self.data.dataset, rows, view, device=self.device)

    def public(self, view: View | None = None) -> Samples | None:
        """Give the public samples, in memory once for all clients with the same view."""
        return self._common("public", self.data.public, view)

    def shared_test(self, view: View | None = None) -> Samples | None:
        """Give the shared test set, in memory once for all clients with the same view."""
        return self._common("test", self.data.test, view)

    def _common(self, name: str, rows: torch.Tensor, view: View | None) -> Samples | None:
        if not len(rows):
            return None
        place = (name, "" if view is None else view.key)
        if place not in self._seen:
            self._seen[place] = self.samples(rows, view)
        return self._seen[place]

    @cached_property
    def _seen(self) -> dict[tuple[str, str], Samples]:
        return {}

    def server_view(self, own: bool) -> View | None:
        """Give the view by which the server sees texts: that of its ``own`` model, or the one that all clients share.

        Clients with different views leave the server without one: it sees nothing of the texts.
        """
        if not isinstance(self.data.dataset.x, Texts):
            return None
        with torch.random.fork_rng(devices=[]):  # these models are never trained
            models = [self.make("server")] if own else [self.make(member) for member in dict.fromkeys(self.members)]
        found = {model.view.key: model.view for model in models if model.view is not None}
        return next(iter(found.values())) if len(found) == 1 else views.Blank()
