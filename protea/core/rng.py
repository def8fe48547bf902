"""Named random streams.

Every random draw names its purpose.  A stream is a pure function of the run's seed and
that name, so a draw does not depend on which process makes it, on what was drawn before,
or on whether the run was resumed.

A seed that must stay secret is bytes.  Torch's generator on the CPU takes 32 bits of a number as its seed, few enough
to try them all, so for a secret its whole state is filled instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

WORDS = slice(24, 24 + 8 * 624)  # in the state of torch's Mersenne Twister: its 624 words, each in 8 bytes


@dataclass(frozen=True)
class Streams:
    """A family of random streams: one for each purpose, all given by the run's seed and a path of names.

    >>> Streams(7).at("client", 3).at("round", 12).seed("batches") == \
        Streams(7, "client/3/round/12/").seed("batches")
    True
    """

    root: int | bytes  # the run's seed; bytes for one that nobody else may know
    path: str = ""

    def at(self, *names: object) -> Streams:
        """Return the streams further down the path: of a client, of a round.

        >>> Streams(7).at("client", 3)
        Streams(root=7, path='client/3/')
        """
        return replace(self, path=self.path + "".join(f"{name}/" for name in names))

    def seed(self, purpose: str) -> int:
        """Return a seed of 63 bits: BLAKE2b of path and purpose, as ``hash()`` differs between processes."""
        if isinstance(self.root, bytes):
            return int.from_bytes(self._secret(purpose, 8), "big") >> 1
        digest = hashlib.blake2b(f"{self.root}/{self.path}{purpose}".encode(), digest_size=8)
        return int.from_bytes(digest.digest(), "big") >> 1

    def key(self, purpose: str) -> bytes:
        """Return 32 bytes, for keys of simulated clients: whoever knows the root knows them."""
        if isinstance(self.root, bytes):
            return self._secret(purpose, 32)
        return hashlib.blake2b(f"{self.root}/{self.path}{purpose}".encode(), digest_size=32).digest()

    def generator(self, purpose: str) -> torch.Generator:
        """Return a new torch generator, on the CPU, at the beginning of a stream."""
        return self._begin(torch.Generator(), purpose)

    def numpy(self, purpose: str) -> np.random.Generator:
        """Return a new NumPy generator at the beginning of a stream."""
        secret = isinstance(self.root, bytes)
        return np.random.default_rng(int.from_bytes(self._secret(purpose, 32), "big") if secret else self.seed(purpose))

    @contextmanager
    def default(self, purpose: str) -> Iterator[None]:
        """Use a stream within the block for draws that take no generator, such as dropout and first weights."""
        seed = self.seed(purpose)
        with draws_given_back():
            self._begin(torch.default_generator, purpose)  # torch.manual_seed is far slower
            if torch.cuda.is_initialized():
                torch.cuda.manual_seed_all(seed)
            yield

    def _begin(self, generator: torch.Generator, purpose: str) -> torch.Generator:
        """Put a generator of the CPU to the beginning of a stream."""
        generator.manual_seed(self.seed(purpose))
        if isinstance(self.root, bytes):
            state = generator.get_state()
            words = state[WORDS].view(torch.int64)  # of 32 bits each
            drawn = np.frombuffer(self._secret(purpose, 4 * len(words)), dtype="<u4")
            words.copy_(torch.from_numpy(drawn.astype(np.int64)))
            generator.set_state(state)
        return generator

    def _secret(self, purpose: str, size: int) -> bytes:
        """Return ``size`` bytes that only who knows the root can compute: SHAKE-256 of root, path and purpose."""
        assert isinstance(self.root, bytes)
        text = f"{self.path}{purpose}/{size}".encode()
        return hashlib.shake_256(len(self.root).to_bytes(8, "big") + self.root + text).digest(size)


@contextmanager
def draws_given_back() -> Iterator[None]:
    """Put torch's default generators back, after the block, to where they were before it.

    Several blocks in a row, each within this, so draw the same numbers.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        yield
