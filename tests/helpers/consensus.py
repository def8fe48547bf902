"""A small public-data method: clients teach each other through their outputs on samples that all have.

It lives in the test-suite and shows that phases, public samples and a server model have their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protea import Client, Method, Needs, Payload, Server, SplitModel, Upload
from protea.core.errors import PayloadError


@dataclass(frozen=True)
class PublicOutputs(Payload):
    logits: Tensor  # (public samples, classes)


@dataclass(frozen=True)
class Consensus(Method[PublicOutputs, PublicOutputs]):
    """First a public phase toward the mean of all outputs, then a private one."""

    epochs: int = 2

    needs = Needs(public_data=True)

    def start_server(self, server: Server) -> None:
        server.memory["student"] = server.make("server")

    def broadcast(self, server: Server, client: int) -> PublicOutputs | None:
        return server.memory.get("outputs")

    def local_update(self, client: Client, down: PublicOutputs | None) -> PublicOutputs:
        assert client.public is not None
        if down is not None:
            public = client.public.with_targets(down.logits)
            client.fit(lambda x, target: F.l1_loss(client.model(x), target), data=public, epochs=self.epochs)
        client.fit(lambda x, y: F.cross_entropy(client.model(x), y))
        return PublicOutputs(client.outputs(client.model, client.public)[0])

    def aggregate(self, server: Server, uploads: Sequence[Upload[PublicOutputs]]) -> None:
        mean = torch.stack([u.payload.logits for u in uploads]).mean(0)
        server.memory["outputs"] = PublicOutputs(mean)
        assert server.public is not None
        student = server.memory["student"].train()
        optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
        for rows in torch.arange(len(server.public)).split(8):
            optimizer.zero_grad()
            F.mse_loss(student(server.public.batch(rows)[0]), mean[rows]).backward()
            optimizer.step()

    def server_model(self, server: Server) -> SplitModel:
        return server.memory["student"]

    def check(self, server: Server, up: PublicOutputs) -> None:
        super().check(server, up)
        if up.logits.shape != (len(server.public or ()), server.classes):
            raise PayloadError(f"outputs of shape {tuple(up.logits.shape)} arrived")
