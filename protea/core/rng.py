"""Named random streams.

Every random draw names its purpose.  A stream is a pure function of the run's seed and
that name, so a draw does not depend on which process makes it, on what was drawn before,
or on whether the run was resumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Streams:
    """A family of random streams: one for each purpose, all given by the run's seed and a path of names.

    >>> Streams(7).at("client", 3).at("round", 12).seed("batches") == \
        Streams(7, "client/3/round/12/").seed("batches")
    True
    """

    root: int
    path: str = ""

    def at(self, *names: object) -> Streams:
        """Return the streams further down the path: of a client, of a round.

        >>> Streams(7).at("client", 3)
        Streams(root=7, path='client/3/')
        """
        return Streams(self.root, self.path + "".join(f"{name}/" for name in names))

    def seed(self, purpose: str) -> int:
        """Return a seed of 63 bits: BLAKE2b of path and purpose, as ``hash()`` differs between processes."""
        digest = hashlib.blake2b(f"{self.root}/{self.path}{purpose}".encode(), digest_size=8)
        return int.from_bytes(digest.digest(), "big") >> 1

    def key(self, purpose: str) -> bytes:
        """Return 32 bytes, for keys of simulated clients: whoever knows the root knows them."""
        return hashlib.blake2b(f"{self.root}/{self.path}{purpose}".encode(), digest_size=32).digest()

    def generator(self, purpose: str) -> torch.Generator:
        """Return a new torch generator, on the CPU, at the beginning of a stream."""
        return torch.Generator().manual_seed(self.seed(purpose))

    def numpy(self, purpose: str) -> np.random.Generator:
        """Return a new NumPy generator at the beginning of a stream."""
        return np.random.default_rng(self.seed(purpose))

    @contextmanager
    def default(self, purpose: str) -> Iterator[None]:
        """Use a stream within the block for draws that take no generator, such as dropout and first weights."""
        seed = self.seed(purpose)
        with draws_given_back():
            torch.default_generator.manual_seed(seed)  # torch.manual_seed is far slower
            if torch.cuda.is_initialized():
                torch.cuda.manual_seed_all(seed)
            yield


@contextmanager
def draws_given_back() -> Iterator[None]:
    """Put torch's default generators back, after the block, to where they were before it.

    Several blocks in a row, each within this, so draw the same numbers.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        yield
