"""A federated method: what clients send, what the server makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

from torch import Tensor

from protea.core.client import Client
from protea.core.payload import Payload
from protea.core.prototypes import Prototypes
from protea.core.server import Server
from protea.core.split_model import SplitModel

Down = TypeVar("Down", bound=Payload | None)
Up = TypeVar("Up", bound=Payload | None)
Average = Literal["samples", "uniform"]


@dataclass(frozen=True)
class Upload(Generic[Up]):
    """What one client sent this round."""

    client: int
    payload: Up
    samples: int


@dataclass(frozen=True)
class Needs:
    """What an experiment must have for a method to run in it."""

    same_architecture: bool = False
    same_head: bool = False
    public_data: bool = False
    public_labels: bool = False  # of the public data
    server_model: bool = False


def counted(uploads: Sequence[Upload[Any]], average: Average) -> list[float] | None:
    """How much each upload counts in a mean: by its client's samples, or (None) all alike."""
    return [float(upload.samples) for upload in uploads] if average == "samples" else None


class Method(Generic[Down, Up]):
    """One federated method.

    Subclasses are frozen dataclasses whose fields are the paper's hyperparameters.  A method
    never stores anything on itself: what must outlive a round goes to ``client.memory`` or
    ``server.memory``.  Under this one rule the same code runs in this process, in many, and
    over a network, and every run can be resumed.

    One round calls, in this order, ``broadcast`` on the server, ``local_update`` on each
    chosen client, and ``aggregate`` on the server.
    """

    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # name -> fields that differ from the default
    family: ClassVar[str] = "-"  # by what is shared: "class vectors", "weights", ..., for lists
    exchanges: ClassVar[str] = "-"  # in plain words, for lists
    down: ClassVar[type[Any]]
    up: ClassVar[type[Any]]

    def __init_subclass__(cls) -> None:
        for base in getattr(cls, "__orig_bases__", ()):
            if len(kinds := get_args(base)) == 2 and not any(isinstance(kind, TypeVar) for kind in kinds):
                cls.down, cls.up = kinds

    @property
    def needs(self) -> Needs:
        """What an experiment must have; most methods just say ``needs = Needs(...)``."""
        return Needs()

    def start_server(self, server: Server) -> None:
        """Fill ``server.memory`` before the first round."""

    def start_client(self, client: Client) -> None:
        """Fill ``client.memory`` before the client's first round."""

    def broadcast(self, server: Server, client: int) -> Down | None:
        """What the server sends to ``client``; ``None`` if there is nothing yet."""
        return None

    def local_update(self, client: Client, down: Down | None) -> Up:
        """Train on the client's data and return what it sends back."""
        raise NotImplementedError

    def aggregate(self, server: Server, uploads: Sequence[Upload[Up]]) -> None:
        """Fold this round's uploads, ordered by client, into ``server.memory``."""

    def predict(self, client: Client, x: Tensor, down: Down | None) -> Tensor:
        """Class scores for a batch, by the rule that the paper evaluates."""
        scores: Tensor = client.model(x)
        return scores

    def server_model(self, server: Server) -> SplitModel | None:
        """The model that the server has, to be judged on the shared test set; ``None`` where it has none."""
        return None

    def check(self, server: Server, up: Up) -> None:
        """Raise :class:`PayloadError` for an upload that must not reach ``aggregate``.

        What the payload itself can tell (:meth:`Payload.check`) has been checked before.
        """

    def prototypes(self, down: Down | None) -> Prototypes | None:
        """The global prototypes in a broadcast, so that every method can be judged by them."""
        return down if isinstance(down, Prototypes) else None
