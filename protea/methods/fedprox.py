"""FedProx: federated optimization in heterogeneous networks.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith.  MLSys 2020, https://arxiv.org/abs/1812.06127

FedAvg, and clients are held near the model that they were sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import NonNegativeFloat
from torch import Tensor

from protea import Client, Weights
from protea.core.client import Loss
from protea.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Algorithm 2, though clients count by their samples and are not drawn by them.

    ``pull`` is the paper's mu: how much it costs to move away.
    """

    pull: NonNegativeFloat = 0.01

    def loss(self, client: Client, down: Weights) -> Loss:
        plain = super().loss(client, down)
        if not self.pull:
            return plain
        pairs = [(p, down.tensors[name]) for name, p in client.model.named_parameters()]

        def loss(x: Tensor, y: Tensor) -> Tensor:
            away = sum((own - sent).square().sum() for own, sent in pairs)
            return plain(x, y) + self.pull / 2 * away  # Eq. 2

        return loss
