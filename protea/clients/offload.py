"""Clients that wait on disk where memory is short.

The large tensors of such a client move into a file that is mapped into memory.  To put the client away is to let go of
the mapped pages: the system has them as it has those of any file, on disk or in memory that nobody needs, and brings
each back when it is next touched.  So nothing is built, written or read as a whole when a client comes and goes.

Where that is not enough, as with very many small clients, a client is saved, forgotten, and built anew.
"""

from __future__ import annotations

import mmap
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from weakref import WeakSet

import torch
from torch import Tensor, UntypedStorage

from protea.clients.state_files import carry_clients, path_of, save_client
from protea.core.client import Client
from protea.core.errors import ClientError, ConfigError
from protea.core.process_memory import current_memory, return_free_memory

FULL = 0.75  # of what a process may have; the rest is for work on a client
LARGE = 1 << 16  # bytes; smaller tensors stay in memory
ALIGNED = 64  # bytes, as torch has it
OBJECTS = 1 << 17  # bytes, about, of a client without its tensors


class Shelf:
    """Where clients go that were used least recently, once the process has as much memory as it may have."""

    def __init__(self, memory: int | None, folder: Path | None) -> None:
        self.folder = folder
        self.saved: Path | None = None  # where states are of clients that are gone
        self.away: set[int] = set()  # clients whose pages were let go
        self.gone: set[int] = set()  # clients that are to be built anew
        self.pages: dict[int, WeakSet[mmap.mmap]] = {}  # of each client that was ever here; tensors keep them alive
        self.full = None if memory is None else FULL * memory
        if self.full is not None and current_memory() > self.full:
            raise ConfigError(
                f"engine.memory leaves {memory:,} bytes to a process that has {current_memory():,} before it has any "
                f"client.  Give more, or use fewer engine.workers."
            )

    def make_room(self, clients: dict[int, Client]) -> None:
        """Put away the first of the clients, whose last one was used last, until enough memory is free."""
        if self.full is None or (over := current_memory() - self.full) <= 0:
            return
        *others, _ = clients
        for id in others:
            if over <= 0:
                break
            if id not in self.away:
                over -= self.put_away(clients[id])
        if current_memory() > self.full:
            return_free_memory()
        if self.away.issuperset(others):
            over = current_memory() - self.full
            for id in others:
                if over <= 0:
                    break
                over -= self._save(clients[id])
                del clients[id]

    def put_away(self, client: Client) -> int:
        """Out of memory, into a file; how many bytes that gives."""
        size = client.release()
        tensors = [tensor for tensor in client.tensors() if tensor.device.type == "cpu"]
        storages = {_place(tensor): tensor.untyped_storage() for tensor in tensors}
        large = {place: storage for place, storage in storages.items() if storage.nbytes() > LARGE}
        if own := {place: storage for place, storage in large.items() if storage.resizable()}:  # not in a file yet
            moved = dict(zip(own, self._mapped(client.id, own.values()), strict=True))
            for tensor in tensors:
                if (new := moved.get(_place(tensor))) is not None:
                    tensor.data = torch.empty(0, dtype=tensor.dtype).set_(
                        new, tensor.storage_offset(), tensor.size(), tensor.stride()
                    )
        self.away.add(client.id)
        self.let_go(client.id)
        return size + sum(storage.nbytes() for storage in large.values())

    def _mapped(self, id: int, storages: Iterable[UntypedStorage]) -> list[UntypedStorage]:
        """The same bytes in a file, which is gone as soon as nobody uses it, whatever becomes of this process."""
        sizes = [storage.nbytes() for storage in storages]
        starts = []
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                for storage in storages:
                    starts.append(file.tell())
                    file.write(_bytes(storage).numpy().data)
                    file.write(bytes(-file.tell() % ALIGNED))
                file.flush()
                pages = mmap.mmap(file.fileno(), 0)
        except OSError as error:
            raise self._no_room(id, error) from error
        self.pages.setdefault(id, WeakSet()).add(pages)
        return [
            torch.frombuffer(pages, dtype=torch.uint8, offset=start, count=size).untyped_storage()
            for start, size in zip(starts, sizes, strict=True)
        ]

    def _save(self, client: Client) -> int:
        """So that it can be forgotten; how many bytes that gives."""
        if self.saved is None:
            self.saved = Path(tempfile.mkdtemp(prefix="clients-", dir=self.folder))
        try:
            save_client(client, self.saved)
        except OSError as error:
            raise self._no_room(client.id, error) from error
        self.away.discard(client.id)
        self.pages.pop(client.id, None)
        self.gone.add(client.id)
        return OBJECTS + sum(tensor.nbytes for tensor in client.tensors() if tensor.nbytes <= LARGE)

    def _no_room(self, id: int, error: OSError) -> ClientError:
        return ClientError(
            f"client {id} cannot wait on disk, in {self.folder or tempfile.gettempdir()}: {error.strerror}.\n"
            f"  Set TMPDIR to a folder with more room, or give more engine.memory."
        )

    def place(self, id: int) -> Path | None:
        """Where the client's state is to be read from, if it is gone from memory."""
        return self.saved if id in self.gone else None

    def let_go(self, id: int) -> None:
        """Of the memory of a client that is away and was touched, to be saved for example."""
        for pages in self.pages.get(id, ()) if id in self.away else ():
            pages.madvise(mmap.MADV_DONTNEED)  # of a shared mapping: what was written stays

    def carry(self, directory: Path) -> None:
        """Give the clients that are gone to a directory that has the others."""
        if self.saved is not None:
            carry_clients(self.saved, directory)

    def forget(self, id: int) -> None:
        """All that is known of the client here."""
        if self.saved is not None:
            path_of(id, self.saved).unlink(missing_ok=True)
        self.away.discard(id)
        self.gone.discard(id)
        self.pages.pop(id, None)

    def clear(self) -> None:
        for each in (self.away, self.gone, self.pages):
            each.clear()
        if self.saved is not None:
            shutil.rmtree(self.saved, ignore_errors=True)
            self.saved = None


def _place(tensor: Tensor) -> int:
    """Where its storage is, which other tensors may share."""
    return tensor.untyped_storage().data_ptr()


def _bytes(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)
