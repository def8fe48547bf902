"""``[attack]``: simulated bad clients, to study what they do to the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeInt

from protea.core.clusters import Clusters
from protea.core.errors import ConfigError
from protea.core.payload import Payload, declares
from protea.core.prototypes import Prototypes
from protea.core.ranges import Proportion
from protea.core.rng import Streams

OF_CLASSES = ("swap", "backdoor")  # attacks that are about vectors of classes
AttackKind = Literal["none", "scale", "flip", "swap", "random", "constant", "labels", "backdoor", "collude"]


@dataclass(frozen=True)
class Attack:
    """``[attack]``: which clients are bad, and what they do.  The records also tell the accuracy of the others.

    With ``kind = "none"`` nobody is bad, and the accuracy of the others is there to compare with.
    """

    kind: AttackKind = "none"
    clients: tuple[NonNegativeInt, ...] = ()  # numbers of the bad ones
    share: Proportion = 0.0  # of all clients, drawn at random, in place of clients
    factor: Annotated[float, Field(allow_inf_nan=False)] = 10.0  # times as long are the vectors that bad clients send
    target: NonNegativeInt = 0  # the class that a backdoor leads to

    def check(self, clients: int, sent: type[Any], method: str) -> None:
        """Raise :class:`ConfigError` for bad clients that are not there, or if nobody is honest.

        ``sent`` is the payload that clients of the method send: some attacks need vectors of classes in it.
        """
        of_classes = declares(Prototypes, sent) or declares(Clusters, sent)
        if self.kind in OF_CLASSES and issubclass(sent, Payload) and not of_classes:
            raise ConfigError(
                f'attack.kind is "{self.kind}", which is about vectors of classes, and clients of {method} send none.'
            )
        if self.clients and self.share:
            raise ConfigError("attack.clients and attack.share are both set.  Give one of them.")
        if self.kind != "none" and not self.clients and not self.share:
            raise ConfigError(
                f'attack.kind is "{self.kind}", and nobody is bad.  Set attack.clients=[0], or attack.share=0.2.'
            )
        if len(set(self.clients)) < len(self.clients):
            raise ConfigError(f"attack.clients names a client twice: {list(self.clients)}.")
        if outside := [client for client in self.clients if client >= clients]:
            raise ConfigError(
                f"attack.clients: there is no client {outside[0]}; this experiment has those from 0 to {clients - 1}."
            )
        if len(self.bad(clients, 0)) == clients:
            setting = "clients" if self.clients else "share"
            raise ConfigError(f"attack.{setting}: all {clients} clients would be bad, and none is left to be harmed.")

    def bad(self, clients: int, seed: int) -> tuple[int, ...]:
        """Return the numbers of the bad clients, ascending; a share is of at least one client.

        >>> Attack("scale", share=0.4).bad(clients=5, seed=1) == Attack("scale", share=0.4).bad(clients=5, seed=1)
        True
        """
        if not self.share:
            return tuple(sorted(self.clients))
        drawn = torch.randperm(clients, generator=Streams(seed).at("attack").generator("clients"))
        return tuple(sorted(drawn[: max(1, round(self.share * clients))].tolist()))
