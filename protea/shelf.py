"""Clients that wait on disk where memory is short."""

from __future__ import annotations

import ctypes
import os
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

FULL = 0.75  # of what a process may have; the rest is for work on a client


class Shelf:
    """Where clients go that were used least recently, once the process has as much memory as it may have."""

    def __init__(self, memory: int | None, folder: Path | None) -> None:
        self.folder, self.path = folder, Path()
        self.here: set[int] = set()  # clients whose newest state is on disk
        self.full = None if memory is None else FULL * memory
        if self.full is not None and current_memory() > self.full:
            raise ConfigError(
                f"engine.memory leaves {memory:,} bytes to a process that has {current_memory():,} before it has any "
                f"client.  Give more, or use fewer engine.workers."
            )

    def place(self, id: int) -> Path | None:
        """Where the client's state is to be read from, if it was put here."""
        if id not in self.here:
            return None
        self.here.remove(id)
        return self.path

    def make_room(self, clients: dict[int, Client]) -> None:
        """Put away the first of the clients, whose last one was used last, until enough memory is free."""
        if self.full is None or (over := current_memory() - self.full) <= 0:
            return
        for id in list(clients)[:-1]:
            if over <= 0:
                break
            if self.path == Path():
                self.path = Path(tempfile.mkdtemp(prefix="clients-", dir=self.folder))
            over -= size(clients[id])
            save_client(clients.pop(id), self.path)
            self.here.add(id)
        give_back()

    def carry(self, directory: Path) -> None:
        """Give the clients that are here to a directory that has the others."""
        if self.here:
            carry_clients(self.path, directory)

    def clear(self) -> None:
        self.here.clear()
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


def current_memory() -> int:
    """Bytes that this process has now; the most it ever had where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak_memory()
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_memory() -> int:
    """The most bytes that this process ever had; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(found if sys.platform == "darwin" else 1024 * found)


def give_back() -> None:
    """Let the C library return what is free to the system, where it can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
