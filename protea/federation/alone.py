"""Every client in a federation of its own: the control that shows what a method's training does without the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from protea.config.words import ALONE
from protea.core.errors import CheckpointError, PayloadError
from protea.core.memory import Memory
from protea.core.message import Named, parse_json
from protea.core.method import Method, Upload
from protea.core.rng import draws_given_back
from protea.core.server import Server
from protea.core.wrapping import Wrapper


class MemoryPerClient(Memory):
    """The memory of a server that is one for each client: ``of(3)`` is client 3's, made when it is first asked for.

    What is stored under a name is common to all.
    """

    def __init__(self, make: Callable[[], Memory]) -> None:
        super().__init__()
        self.make = make
        self.parts: dict[int, Memory] = {}

    def of(self, client: int) -> Memory:
        """Give the memory that is one client's alone."""
        if client not in self.parts:
            self.parts[client] = self.make()
        return self.parts[client]

    def flat(self) -> tuple[Named, str]:
        tensors, common = super().flat()
        found, indexes = {f"common/{name}": tensor for name, tensor in tensors.items()}, dict[str, str]()
        for client in sorted(self.parts):
            tensors, indexes[str(client)] = self.parts[client].flat()
            found |= {f"{client}/{name}": tensor for name, tensor in tensors.items()}
        return found, json.dumps({"common": common, "clients": indexes})

    def restore(self, tensors: Named, index: str, device: torch.device | str = "cpu") -> None:
        groups: dict[str, Named] = {}
        for full, tensor in tensors.items():
            group, _, name = full.partition("/")
            groups.setdefault(group, {})[name] = tensor
        try:
            match parse_json(index):
                case {"common": str() as common, "clients": dict() as clients, **more} if not more:
                    pass
                case _:
                    raise PayloadError("its index is not one of a memory per client.")
            if not all(name.isdecimal() for name in clients) or groups.keys() - {"common", *clients}:
                raise PayloadError("its index does not name just the clients that are in it.")
        except PayloadError as error:
            raise CheckpointError(f"A memory cannot be restored: {error}") from error
        super().restore(groups.get("common", {}), common, device)
        self.parts = {int(client): self.make() for client in clients}
        for client, part in self.parts.items():
            part.restore(groups.get(str(client), {}), clients[str(client)], device)


@dataclass(frozen=True)
class Alone(Wrapper):
    """The same method with each client in a federation of one: its own server, and no uploads but its own.

    Each of these servers draws what the one server of a federation with one client would draw.  So what becomes of a
    client does not depend on the others, and one client alone is that client in a federation without others.
    """

    word = ALONE

    def start_server(self, server: Server) -> None:
        server.memory = MemoryPerClient(partial(self._started, server))

    def broadcast(self, server: Server, client: int) -> Any:
        own = own_server(server, client)
        with draws_given_back():
            return self.inner.broadcast(own, client)

    def aggregate(self, server: Server, uploads: Sequence[Upload[Any]]) -> None:
        for upload in uploads:
            own = own_server(server, upload.client)
            with draws_given_back():
                self.inner.aggregate(own, [upload])
        parts = [part for _, part in sorted(per_client(server).parts.items())]  # float sums depend on order
        for name in dict.fromkeys(name for part in parts for name in part):
            if values := [value for part in parts if isinstance(value := part.get(name), float)]:
                server.memory[name] = sum(values) / len(values)  # for the record

    def check_from(self, server: Server, client: int, up: Any) -> None:
        self.inner.check_from(own_server(server, client), client, up)

    def check(self, server: Server, up: Any) -> None:
        """Nothing: which server an upload must fit depends on its client."""

    def server_model(self, server: Server) -> None:
        """None: there is no server that all have in common."""

    def global_prototypes(self, server: Server) -> None:
        """None: there is no server that all have in common."""

    def _started(self, server: Server) -> Memory:
        """Make the memory of one client's server, as it is before the first round."""
        own = replace(server, round=0, memory=Memory())
        with server.rng.at("round", 0).default("start"):
            self.inner.start_server(own)
        return own.memory


def is_alone(method: Method[Any, Any]) -> bool:
    """Return whether a method, as it is played, has each client in a federation of its own."""
    while isinstance(method, Wrapper) and not isinstance(method, Alone):
        method = method.inner
    return isinstance(method, Alone)


def per_client(server: Server) -> MemoryPerClient:
    """Return the memory of a server that ``start_server`` of :class:`Alone` has prepared."""
    assert isinstance(server.memory, MemoryPerClient)
    return server.memory


def own_server(server: Server, client: int) -> Server:
    """Return the server of one client."""
    return replace(server, memory=per_client(server).of(client))
