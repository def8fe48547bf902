"""Clients beyond a memory limit wait on disk.

First the large tensors of a client move into a file that is mapped into memory, and the system takes the pages from
there when it needs room.  So nothing is built, written or read as a whole when a client comes and goes.

Where that is not enough, as with very many small clients, a client is saved, forgotten, and built anew when it is
next needed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Set
from pathlib import Path

from protea.clients.mapped_tensors import LARGE, MappedTensors
from protea.clients.state_files import carry_clients, path_of, save_client
from protea.clients.store import MakeClient, MemoryStore
from protea.core.client import Client
from protea.core.errors import ClientError, ConfigError
from protea.core.process_memory import current_memory, return_free_memory
from protea.core.scratch import ScratchFolder

FULL = 0.75  # of what a process may have; the rest is for work on a client
OBJECTS = 1 << 17  # bytes, about, of a client without its tensors


def full_at(memory: int) -> float:
    """Give the bytes at which a process that may have ``memory`` bytes counts as full.

    :class:`ConfigError` if this one has more already, before it has any client.
    """
    full = FULL * memory
    if current_memory() > full:
        raise ConfigError(
            f"engine.memory leaves {memory:,} bytes to a process that has {current_memory():,} before it has any "
            f"client.  Give more, or use fewer engine.workers."
        )
    return full


class OffloadedStore(MemoryStore):
    """Keeps clients in this process while it has fewer than ``full`` bytes; the least recently used wait on disk.

    Room is made before a client is given out for a job, so that a full disk never undoes a training.
    """

    def __init__(self, make: MakeClient, full: float, folder: Path | None = None) -> None:
        super().__init__(make)
        self.full, self.folder = full, folder
        self.mapped = MappedTensors(folder)
        self._in_use: set[int] = set()  # clients that were given out for a job
        self._offloaded: set[int] = set()  # clients whose pages were released, and not touched since
        self._evicted: set[int] = set()  # clients that were saved and are to be built anew
        self._states: Path | None = None  # where those were saved
        self._scratch: ScratchFolder | None = None  # which holds that folder, if nobody gave another

    @property
    def offloaded(self) -> Set[int]:
        """Clients whose large tensors are on disk."""
        return self._offloaded

    @property
    def evicted(self) -> Set[int]:
        """Clients that are on disk with all that they have."""
        return self._evicted

    def get(self, id: int) -> Client:
        self._make_room(id)
        client = super().get(id)
        self._offloaded.discard(id)
        self._in_use.add(id)
        return client

    def put_back(self, id: int) -> None:
        self._in_use.discard(id)

    def _begin(self, id: int, directory: Path | None) -> Client:
        client = super()._begin(id, self._states if id in self._evicted else directory)
        self._clear_away(id)
        return client

    def _make_room(self, wanted: int) -> None:
        """Move clients to disk, least recently used first, until enough memory is free for a job of ``wanted``."""
        if (over := current_memory() - self.full) <= 0:
            return
        others = [id for id in self._clients if id != wanted and id not in self._in_use]
        for id in others:
            if over <= 0:
                break
            if id not in self._offloaded:
                over -= self.offload(id)
        if current_memory() > self.full:
            return_free_memory()
        if self._offloaded.issuperset(others):
            over = current_memory() - self.full
            for id in others:
                if over <= 0:
                    break
                over -= self.evict(id)

    def offload(self, id: int) -> int:
        """Move a client's large tensors to disk; give the bytes of memory that this frees."""
        client = self._clients[id]
        size = client.release()
        tensors = [tensor for tensor in client.tensors() if tensor.device.type == "cpu"]
        try:
            size += self.mapped.move(id, tensors)
        except OSError as error:
            raise self._no_room(id, error) from error
        self._offloaded.add(id)
        self.mapped.release(id)
        return size

    def evict(self, id: int) -> int:
        """Save a client and forget it; give the bytes of memory that this frees, beside its large tensors."""
        client = self._clients[id]
        if self._states is None:
            self._scratch = ScratchFolder() if self.folder is None else None
            place = self.folder if self._scratch is None else self._scratch.path
            self._states = Path(tempfile.mkdtemp(prefix="clients-", dir=place))
        try:
            save_client(client, self._states)
        except OSError as error:
            raise self._no_room(id, error) from error
        self._offloaded.discard(id)
        self.mapped.forget(id)
        self._evicted.add(id)
        del self._clients[id]
        return OBJECTS + sum(tensor.nbytes for tensor in client.tensors() if tensor.nbytes <= LARGE)

    def _no_room(self, id: int, error: OSError) -> ClientError:
        return ClientError(
            f"client {id} cannot wait on disk, in {self.folder or tempfile.gettempdir()}: {error.strerror}.\n"
            f"  Set TMPDIR to a folder with more room, or give more engine.memory."
        )

    def write(self, directory: Path) -> None:
        for id, client in self._clients.items():
            save_client(client, directory)
            if id in self._offloaded:
                self.mapped.release(id)  # writing has touched them
        if self._states is not None:
            carry_clients(self._states, directory)

    def clear(self) -> None:
        super().clear()
        self.mapped.clear()
        for each in (self._in_use, self._offloaded, self._evicted):
            each.clear()
        if self._states is not None:
            shutil.rmtree(self._states, ignore_errors=True)
            self._states = None

    def forget(self, id: int) -> None:
        super().forget(id)
        self._clear_away(id)

    def _clear_away(self, id: int) -> None:
        """Remove what is on disk of a client, and the account of it."""
        if self._states is not None:
            path_of(id, self._states).unlink(missing_ok=True)
        for each in (self._in_use, self._offloaded, self._evicted):
            each.discard(id)
        self.mapped.forget(id)
