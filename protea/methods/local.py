"""Local: every client trains alone.  The baseline that any federation must beat."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import nn

from protea import Client, Method
from protea.core.errors import ClientError
from protea.core.method import Reveals
from protea.core.ranges import Fraction
from protea.models.nearest import Nearest


@dataclass(frozen=True)
class Local(Method[None, None]):
    """Training without a federation: nothing travels.

    The fields are what makes training alone stronger and needs nobody else.  They name which Local a claim is about.
    """

    momentum: Fraction | None = None  # of sgd; None: that of [training], as for every other method
    head: Literal["linear", "cosine"] = "linear"  # cosine: scores are scale * cosine of features and rows of the head
    scale: PositiveFloat = 10.0  # of cosines to scores: FedPAGR's 1 / beta
    smoothing: Fraction = 0.0  # share of each label that is spread evenly over all classes

    family = "alone"
    exchanges = "nothing"
    variants = {"momentum": {"momentum": 0.9}, "cosine": {"head": "cosine"}, "smoothing": {"smoothing": 0.1}}

    @property
    def reveals(self) -> frozenset[Reveals]:
        return frozenset()

    def start_client(self, client: Client) -> None:
        if self.head == "cosine":
            replace_last_layer(client, self.scale)

    def local_update(self, client: Client, down: None) -> None:
        plan = client.training if self.momentum is None else replace(client.training, momentum=self.momentum)
        client.fit(lambda x, y: F.cross_entropy(client.model(x), y, label_smoothing=self.smoothing), plan=plan)


def replace_last_layer(client: Client, scale: float) -> None:
    """Let the last layer of a client's head answer by cosines to its rows, which train on; its bias is gone."""
    head = client.model.head
    last = head[-1] if isinstance(head, nn.Sequential) else head
    if not isinstance(last, nn.Linear):
        raise ClientError(
            f"client {client.id}: the cosine head takes the rows of a last linear layer, and the head of "
            f"{client.model.name} ends in a {type(last).__name__}.\n"
            f"  Let it end in nn.Linear, or set method.head=linear."
        )
    near = Nearest(last.weight.detach(), "cosine", learns=True, scale=scale)
    if isinstance(head, nn.Sequential):
        head[-1] = near
    else:
        client.model.head = near
