"""The ways in which a model can answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from protea.core.client import Client
from protea.core.method import Method
from protea.core.prototypes import Prototypes
from protea.core.server import Server
from protea.core.split_model import SplitModel

NAMES = ("method", "head", "head_own", "global_prototypes", "global_prototypes_own", "local_prototypes")
Rule = Callable[[Tensor], Tensor]


def of_client(method: Method[Any, Any], client: Client, down: Any, local: Prototypes | None) -> dict[str, Rule]:
    """The method's own rule and every other that applies; ``_own`` ones choose among the client's classes only.

    ``local`` prototypes are those of the client's own training data, so of its own classes.
    """
    model, own = client.model, client.own_classes
    ways: dict[str, Rule] = {
        "method": lambda x: method.predict(client, x, down),
        "head": model,
        "head_own": lambda x: model(x).masked_fill(~own, -torch.inf),
    }
    if (known := method.prototypes(down)) is not None:
        ways["global_prototypes"] = nearest(model, known)
        ways["global_prototypes_own"] = nearest(model, known.only(own))
    if local is not None:
        ways["local_prototypes"] = nearest(model, local)
    return ways


def of_server(method: Method[Any, Any], server: Server, model: SplitModel) -> dict[str, Rule]:
    """The same for the server's model, which has no data of its own."""
    ways: dict[str, Rule] = {"head": model}
    if (known := method.prototypes(method.broadcast(server, 0))) is not None:
        ways["global_prototypes"] = nearest(model, known)
    return ways


def nearest(model: SplitModel, prototypes: Prototypes) -> Rule:
    return lambda x: prototypes.scores(model.features(x))
