"""Methods made of another method: a wrapper passes every hook on, and its subclasses change some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from protea.core.client import Client
from protea.core.method import Method, Needs, Reveals, Upload
from protea.core.prototypes import Prototypes
from protea.core.server import Server
from protea.core.split_model import SplitModel


@dataclass(frozen=True)
class Wrapper(Method[Any, Any]):
    """A method that does what ``inner`` does: the base class of those that do one thing differently."""

    inner: Method[Any, Any]

    word: ClassVar[str] = "wrapped"  # stands behind the inner method's name

    def __post_init__(self) -> None:
        """Declare what travels, which only the inner method knows."""
        object.__setattr__(self, "down", self.inner.down)
        object.__setattr__(self, "up", self.inner.up)

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    @property
    def reveals(self) -> frozenset[Reveals] | None:
        return self.inner.reveals

    def start_server(self, server: Server) -> None:
        self.inner.start_server(server)

    def start_client(self, client: Client) -> None:
        self.inner.start_client(client)

    def broadcast(self, server: Server, client: int) -> Any:
        return self.inner.broadcast(server, client)

    def local_update(self, client: Client, down: Any) -> Any:
        return self.inner.local_update(client, down)

    def aggregate(self, server: Server, uploads: Sequence[Upload[Any]]) -> None:
        self.inner.aggregate(server, uploads)

    def predict(self, client: Client, x: Tensor, down: Any) -> Tensor:
        return self.answering(client, down)(x)

    def answering(self, client: Client, down: Any) -> Callable[[Tensor], Tensor]:
        return self.inner.answering(client, down)

    def pulling(self, z: Tensor, y: Tensor, down: Any) -> Tensor | None:
        return self.inner.pulling(z, y, down)

    def server_model(self, server: Server) -> SplitModel | None:
        return self.inner.server_model(server)

    def shown(self, server: Server) -> dict[str, Tensor]:
        return self.inner.shown(server)

    def check(self, server: Server, up: Any) -> None:
        self.inner.check(server, up)

    def check_from(self, server: Server, client: int, up: Any) -> None:
        self.inner.check_from(server, client, up)

    def prototypes(self, down: Any) -> Prototypes | None:
        return self.inner.prototypes(down)

    def global_prototypes(self, server: Server) -> Prototypes | None:
        return self.inner.global_prototypes(server)
