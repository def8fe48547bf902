"""Tensors in files that are mapped into memory.

To take such tensors out of memory is to let go of the mapped pages: the system has them as it has those of any file,
on disk or in memory that nobody needs, and brings each back when it is next touched.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from weakref import WeakSet

import torch
from torch import Tensor, UntypedStorage

LARGE = 1 << 16  # bytes; smaller tensors stay in memory
ALIGNED = 64  # bytes, as torch has it


class MappedTensors:
    """The large tensors of clients, in files without a name below ``folder``."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._pages: dict[int, WeakSet[mmap.mmap]] = {}  # by client; the tensors themselves keep them alive

    def move(self, id: int, tensors: Sequence[Tensor]) -> int:
        """Move the large tensors of a client into a file, but for those that are in one; give their size in bytes.

        Each stays the same object, with the same values.  Raises :class:`OSError` where the disk has no room.
        """
        storages = {_address(tensor): tensor.untyped_storage() for tensor in tensors}
        large = {address: storage for address, storage in storages.items() if storage.nbytes() > LARGE}
        own = {address: storage for address, storage in large.items() if storage.resizable()}  # in no file yet
        if own:
            mapped = dict(zip(own, self._written(id, own.values()), strict=True))
            for tensor in tensors:
                if (new := mapped.get(_address(tensor))) is not None:
                    tensor.data = torch.empty(0, dtype=tensor.dtype).set_(
                        new, tensor.storage_offset(), tensor.size(), tensor.stride()
                    )
        return sum(storage.nbytes() for storage in large.values())

    def _written(self, id: int, storages: Iterable[UntypedStorage]) -> list[UntypedStorage]:
        """Copy bytes to a file, which is gone as soon as nobody uses it, whatever becomes of this process."""
        sizes = [storage.nbytes() for storage in storages]
        starts = []
        with tempfile.TemporaryFile(dir=self.folder) as file:
            for storage in storages:
                starts.append(file.tell())
                file.write(_bytes(storage).numpy().data)
                file.write(bytes(-file.tell() % ALIGNED))
            file.flush()
            pages = mmap.mmap(file.fileno(), 0)
        self._pages.setdefault(id, WeakSet()).add(pages)
        return [
            torch.frombuffer(pages, dtype=torch.uint8, offset=start, count=size).untyped_storage()
            for start, size in zip(starts, sizes, strict=True)
        ]

    def pages(self, id: int) -> list[mmap.mmap]:
        """Give the mapped files of a client that are in use."""
        return list(self._pages.get(id, ()))

    def release(self, id: int) -> None:
        """Release the mapped pages of a client from memory."""
        for pages in self.pages(id):
            pages.madvise(mmap.MADV_DONTNEED)  # of a shared mapping: what was written stays

    def forget(self, id: int) -> None:
        """Stop keeping account of a client; its files go when its tensors go."""
        self._pages.pop(id, None)

    def clear(self) -> None:
        """Stop keeping account of all clients."""
        self._pages.clear()


def _address(tensor: Tensor) -> int:
    """Give the address of a tensor's storage, which other tensors may share."""
    return tensor.untyped_storage().data_ptr()


def _bytes(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)
