"""Texts as one array of bytes: read once, mapped by every process, cut into strings when asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Texts:
    """The inputs of a data set of texts.

    Two models may cut a text into different tokens, so what clients share is the text itself.
    """

    blob: Tensor  # uint8: all texts in UTF-8, one after the other
    ends: Tensor  # int64 (texts,): where each ends

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Pack strings."""
        parts = [text.encode("utf-8", "surrogatepass") for text in texts]
        joined = bytearray(b"".join(parts))
        blob = torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.zeros(0, dtype=torch.uint8)
        return cls(blob, torch.tensor([len(part) for part in parts], dtype=torch.int64).cumsum(0))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> str:
        return self._bytes(row).decode("utf-8", "replace")

    def take(self, rows: Tensor) -> Iterator[str]:
        """Yield the texts of these rows."""
        return (self[row] for row in rows.tolist())

    def digest(self, rows: Tensor) -> str:
        """Return a checksum of the texts of these rows, in this order."""
        found = hashlib.blake2b(digest_size=16)
        for row in rows.tolist():
            part = self._bytes(row)
            found.update(len(part).to_bytes(8, "little") + part)
        return found.hexdigest()

    def _bytes(self, row: int) -> bytes:
        start = int(self.ends[row - 1]) if row else 0
        return bytes(self.blob[start : int(self.ends[row])].numpy())
