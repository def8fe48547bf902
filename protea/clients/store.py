"""Where the state of clients lives.  There are three kinds of store, and a worker cannot tell them apart.

MemoryStore      in this process (this file)
OffloadedStore   in this process up to a limit, the rest in files that are mapped into memory (offload.py)
DurableStore     on disk after every round, so that a killed process goes on where it was (durable.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from protea.clients.state_files import load_client, save_client
from protea.core.client import Client

MakeClient = Callable[[int], Client]  # builds a client that nobody has met, from its number


class ClientStore(ABC):
    """Keeps clients between their jobs."""

    @property
    @abstractmethod
    def clients(self) -> Mapping[int, Client]:
        """The clients that are in this process, the one used last at the end."""

    @abstractmethod
    def get(self, id: int) -> Client:
        """Give a client for a job.  It is built on first use: one that is never chosen costs nothing."""

    @abstractmethod
    def put_back(self, id: int) -> None:
        """Take a client back after its job; until then it is not moved out of memory."""

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write the clients met here to a directory, from which the others then go on.

        The caller adds to the directory the states of clients that were not met here.
        """

    @abstractmethod
    def load(self, directory: Path) -> None:
        """Forget all clients; each goes on from its state in the directory, or anew if it has none there."""

    @abstractmethod
    def forget(self, id: int) -> None:
        """Forget what this process knows of a client; it is built again when it is next needed."""


class MemoryStore(ClientStore):
    """Keeps all clients in this process."""

    def __init__(self, make: MakeClient) -> None:
        self.make = make
        self._clients: dict[int, Client] = {}  # the one used last at the end
        self._saved: Path | None = None  # where clients that were not met yet may have left their state

    @property
    def clients(self) -> Mapping[int, Client]:
        return self._clients

    def get(self, id: int) -> Client:
        client = self._clients.pop(id, None)
        if client is None:
            client = self._begin(id, self._saved)
        self._clients[id] = client
        return client

    def put_back(self, id: int) -> None: ...

    def restore(self, id: int, directory: Path | None) -> None:
        """Have a client as its state in the directory says, or anew if it has none there."""
        self.forget(id)
        self._clients[id] = self._begin(id, directory)

    def _begin(self, id: int, directory: Path | None) -> Client:
        client = self.make(id)
        if directory is not None:
            load_client(client, directory)
        return client

    def write(self, directory: Path) -> None:
        """Write the state of every client met here."""
        for client in self._clients.values():
            save_client(client, directory)

    def save(self, directory: Path) -> None:
        self.write(directory)
        self._saved = directory

    def load(self, directory: Path) -> None:
        self.clear()
        self._saved = directory

    def clear(self) -> None:
        """Forget all clients; each begins anew."""
        self._clients.clear()
        self._saved = None

    def forget(self, id: int) -> None:
        self._clients.pop(id, None)
