"""Clients that wait on disk where memory is short."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from protea.client import Client
from protea.errors import ConfigError
from protea.state import carry_clients, save_client

FOR_CLIENTS = 0.5  # of what is left once torch and the data are there; the other half is for work on one of them


class Shelf:
    """Where clients go that were used least recently, once all together take more than the process may have."""

    def __init__(self, memory: int | None, folder: Path | None) -> None:
        self.folder, self.path = folder, Path()
        self.here: set[int] = set()  # clients whose newest state is on disk
        self.sizes: dict[int, int] = {}  # bytes of clients in memory
        self.room: float | None = None  # bytes for all of them; None for no end
        if memory is not None:
            self.room = FOR_CLIENTS * (memory - peak_memory())
            if self.room <= 0:
                raise ConfigError(
                    f"engine.memory leaves {memory:,} bytes to a process that has {peak_memory():,} before it has any "
                    f"client.  Give more, or use fewer engine.workers."
                )

    def place(self, id: int) -> Path | None:
        """Where the client's state is to be read from, if it was put here."""
        if id not in self.here:
            return None
        self.here.remove(id)
        return self.path

    def make_room(self, clients: dict[int, Client]) -> None:
        """Put away the first of the clients, whose last one was used last, until the others fit."""
        if self.room is None or not clients:
            return
        *others, last = clients
        self.sizes[last] = size(clients[last])
        over = sum(self.sizes.values()) - self.room
        for id in others:
            if over <= 0:
                break
            if self.path == Path():
                self.path = Path(tempfile.mkdtemp(prefix="clients-", dir=self.folder))
            save_client(clients.pop(id), self.path)
            self.here.add(id)
            over -= self.sizes.pop(id)

    def carry(self, directory: Path) -> None:
        """Give the clients that are here to a directory that has the others."""
        if self.here:
            carry_clients(self.path, directory)

    def clear(self) -> None:
        self.here.clear()
        self.sizes.clear()
        if self.path != Path():
            shutil.rmtree(self.path, ignore_errors=True)
            self.path = Path()


def size(client: Client) -> int:
    """Bytes of a client's tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(client))


def _tensors(client: Client) -> Iterator[Tensor]:
    yield from client.model.state_dict().values()
    for value in client.memory.values():
        match value:
            case Tensor():
                yield value
            case torch.nn.Module():
                yield from value.state_dict().values()
            case _ if hasattr(value, "flat"):
                yield from value.flat().values()
    yield from client.kept()


def peak_memory() -> int:
    """The most bytes that this process ever had; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(found if sys.platform == "darwin" else 1024 * found)
