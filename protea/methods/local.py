"""Local: every client trains alone.  The baseline that any federation must beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F

from protea import Client, Method


@dataclass(frozen=True)
class Local(Method[None, None]):
    """Training without a federation: nothing travels."""

    family = "alone"
    exchanges = "nothing"

    def local_update(self, client: Client, down: None) -> None:
        client.fit(lambda x, y: F.cross_entropy(client.model(x), y))
