"""The base class of a federated method: what clients send, and what the server does with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
SummedBy = Literal["uniform", "count", "literal", "samples"]  # how a mean of class vectors, or of weights, is weighed


@dataclass(frozen=True)
class Upload(Generic[Up]):
    """What one client sent this round."""

    client: int  # its number
    payload: Up
    samples: int  # that it has for training
    clients: int = 1  # that it is the mean of: all of them, where a secure sum shows nothing else


@dataclass(frozen=True)
class Needs:
    """What an experiment must have for a method to run in it; one that lacks it is refused before it starts."""

    same_architecture: bool = False  # all clients have the same model
    same_head: bool = False  # all heads have the same shape
    public_data: bool = False  # samples that every client and the server see: data.public
    public_labels: bool = False  # and their labels
    server_model: bool = False  # a model on the server: models.server
    sums: SummedBy | None = None  # by what uploads are weighed, if only their weighted mean is used; None: single ones
    common_view: str | None = None  # of texts, that all clients have beside their own: "words", or an encoder's name
    text_encoder: str | None = None  # on the server, of the names of classes: "words", or an encoder's name


Reveals = Literal["means", "fixed means", "model"]


def upload_weights(uploads: Sequence[Upload[Any]], average: Average) -> list[float] | None:
    """Return how much each upload counts in a mean: its client's number of samples, or ``None`` for equal weights.

    >>> upload_weights([Upload(0, None, samples=3), Upload(1, None, samples=5)], "samples")
    [3.0, 5.0]
    """
    return [float(upload.samples) for upload in uploads] if average == "samples" else None


class Method(Generic[Down, Up]):
    """Base class of federated methods.

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
    public_map: ClassVar[bool] = False  # class vectors are means by a map that all have: no model is needed to try them

    @property
    def reveals(self) -> frozenset[Reveals] | None:
        """All ways in which a client's training samples enter its uploads; ``None`` = not declared, the safe default.

        ``means``: by :meth:`Client.prototypes`, once in a round, or by what is made of that and of nothing else.
        ``fixed means``: the same of a map that never trains, shortened by :meth:`Client.bounded`.
        ``model``: by what :meth:`Client.fit` trains, whose loss uses the samples of its batch and no others.
        A formal guarantee of privacy holds only for what is declared here: docs/privacy.md.
        """
        return None

    down: ClassVar[type[Any]]
    up: ClassVar[type[Any]]

    def __init_subclass__(cls) -> None:
        for base in getattr(cls, "__orig_bases__", ()):
            if len(kinds := get_args(base)) == 2 and not any(isinstance(kind, TypeVar) for kind in kinds):
                cls.down, cls.up = kinds

    @property
    def needs(self) -> Needs:
        """What an experiment must have; most methods override it by a class attribute, ``needs = Needs(...)``."""
        return Needs()

    def start_server(self, server: Server) -> None:
        """Fill ``server.memory`` before the first round."""

    def start_client(self, client: Client) -> None:
        """Fill ``client.memory`` before the client's first round."""

    def broadcast(self, server: Server, client: int) -> Down | None:
        """Return what the server sends to ``client``; ``None`` if there is nothing yet."""
        return None

    def local_update(self, client: Client, down: Down | None) -> Up:
        """Train the client's model on its samples and return what it sends to the server."""
        raise NotImplementedError

    def aggregate(self, server: Server, uploads: Sequence[Upload[Up]]) -> None:
        """Fold this round's uploads, ordered by client, into ``server.memory``."""

    def predict(self, client: Client, x: Tensor, down: Down | None) -> Tensor:
        """Return class scores (n, classes) for a batch, by the rule that the paper evaluates; default: the head."""
        scores: Tensor = client.model(x)
        return scores

    def answering(self, client: Client, down: Down | None) -> Callable[[Tensor], Tensor]:
        """Return the function from a batch to class scores by which :meth:`predict` answers.

        It is asked for once per evaluation: override it where something must be found out before the first answer.
        """
        return lambda x: self.predict(client, x, down)

    def pulling(self, z: Tensor, y: Tensor, down: Down) -> Tensor | None:
        """Return the part of a batch's loss that pulls features ``z`` (n, dim) to what the server sent; default: none.

        A simulation records how hard it pulls beside cross entropy.
        """
        return None

    def server_model(self, server: Server) -> SplitModel | None:
        """Return the model that the server has, to be evaluated on the shared test set; ``None`` if it has none."""
        return None

    def shown(self, server: Server) -> dict[str, Tensor]:
        """Return tensors of the server that a snapshot keeps for figures, by name; none by default."""
        return {}

    def check(self, server: Server, up: Up) -> None:
        """Raise :class:`PayloadError` for an upload that must not reach ``aggregate``.

        What the payload itself can tell (:meth:`Payload.check`) has been checked before.
        """

    def check_from(self, server: Server, client: int, up: Up) -> None:
        """Check an upload as :meth:`check` does; override it where the check depends on which client sent it."""
        self.check(server, up)

    def prototypes(self, down: Down | None) -> Prototypes | None:
        """Return the global prototypes in a broadcast, so that every method can be evaluated by them."""
        return down if isinstance(down, Prototypes) else None

    def global_prototypes(self, server: Server) -> Prototypes | None:
        """Return the prototypes that the server has for all clients; ``None`` if it has none."""
        return self.prototypes(self.broadcast(server, 0))
