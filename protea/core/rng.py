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
    """All random streams below one path.

    >>> Streams(7).at("client", 3).at("round", 12).seed("batches") == \
        Streams(7, "client/3/round/12/").seed("batches")
    True
    """

    root: int
    path: str = ""

    def at(self, *names: object) -> Streams:
        return Streams(self.root, self.path + "".join(f"{name}/" for name in names))

    def seed(self, purpose: str) -> int:
        """63 bits of BLAKE2 of the path; never ``hash()``, which differs between processes."""
        digest = hashlib.blake2b(f"{self.root}/{self.path}{purpose}".encode(), digest_size=8)
        return int.from_bytes(digest.digest(), "big") >> 1

    def generator(self, purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed(purpose))

    def numpy(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(self.seed(purpose))

    @contextmanager
    def default(self, purpose: str) -> Iterator[None]:
        """Use this stream for draws that take no generator, such as dropout and weight init."""
        seed, cuda = self.seed(purpose), torch.cuda.is_initialized()
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if cuda else []):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed is far slower
            if cuda:
                torch.cuda.manual_seed_all(seed)
            yield
