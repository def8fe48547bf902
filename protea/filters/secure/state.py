"""What a client keeps between the steps of a secure sum, and the list of clients that all of them agree on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from protea.core.errors import PayloadError
from protea.core.message import Named
from protea.core.payload import Payload

KEY = 32  # bytes of a key, private or public
KEYS = 2  # that a client has: the first for messages to other clients, the second for masks
MESSAGES, MASKS = range(KEYS)


@dataclass(frozen=True)
class SumState(Payload):
    """A client's part in the secure sum of one round.

    Each attempt has keys of its own.  They are gone once the client has told what unmasks the sum, and so nobody can
    ask it for more, not even by asking the same client again under another pretext.
    """

    upload: Mapping[str, Tensor]  # what it adds to the sum
    number: Tensor  # (2,) the round, and the attempt in it
    private: Tensor  # (2, 32) keys; (0, 32) once they were used
    seed: Tensor | None = None  # (32,) of the mask that it has with nobody
    clients: Tensor | None = None  # (n,) all that have shared their secrets with each other, and it with them
    public: Tensor | None = None  # (n, 2, 32) their keys
    senders: Tensor | None = None  # (m,) those of them whose shares it has, and with whom it has masks
    shares: Tensor | None = None  # (m, 2, 33) of their seeds and private keys
    answered: Tensor | None = None  # (k,) the clients whose sum it has helped to unmask in this round


@dataclass(frozen=True)
class Participants:
    """The clients of one attempt, ascending, with their public keys: all clients must have been shown the same."""

    round: int
    clients: tuple[int, ...]
    public: tuple[tuple[bytes, bytes], ...]  # of each client, for messages and for masks

    @classmethod
    def of(cls, round: int, named: Named) -> Participants:
        """Read what the server says; raise :class:`PayloadError` if it is no list of different clients and keys."""
        clients, public = named.get("clients"), named.get("public")
        if clients is None or public is None or public.dtype != torch.uint8:
            raise PayloadError("a list of clients and their keys was expected.")
        numbers = clients_of(clients)
        if public.shape != (len(numbers), KEYS, KEY):
            raise PayloadError(f"{len(numbers)} clients came with keys of shape {tuple(public.shape)}.")
        keys = tuple((to_bytes(pair[MESSAGES]), to_bytes(pair[MASKS])) for pair in public)
        if len({key for pair in keys for key in pair}) < KEYS * len(keys):
            raise PayloadError("two clients came with the same key.")
        return cls(round, numbers, keys)

    def named(self) -> Named:
        """Return the list as the server sends it."""
        keys = [[to_tensor(key) for key in pair] for pair in self.public]
        public = torch.stack([torch.stack(pair) for pair in keys])
        return {"clients": torch.tensor(self.clients), "public": public}

    @cached_property
    def session(self) -> bytes:
        """A name of this attempt that no other one has: a digest of the whole list."""
        number = [value.to_bytes(8, "big") for value in (self.round, *self.clients)]
        return digest(*number, *(key for pair in self.public for key in pair))

    def key(self, client: int, purpose: int) -> bytes:
        """Return a client's public key, for ``MESSAGES`` or for ``MASKS``."""
        return self.public[self.clients.index(client)][purpose]


def clients_of(tensor: Tensor | None) -> tuple[int, ...]:
    """Read a list of clients; raise :class:`PayloadError` unless it is ascending, each once."""
    if tensor is None or tensor.dtype != torch.int64 or tensor.ndim != 1 or not len(tensor):
        raise PayloadError("a list of clients was expected.")
    numbers = tuple(int(number) for number in tensor)
    if numbers[0] < 0 or list(numbers) != sorted(set(numbers)):
        raise PayloadError("a list of clients came that is not in ascending order, each once.")
    return numbers


def digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of parts, each after its length, so that no two lists have the same."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()


def to_bytes(tensor: Tensor) -> bytes:
    """Return the bytes in a tensor of uint8."""
    return tensor.cpu().contiguous().numpy().tobytes()


def to_tensor(text: bytes) -> Tensor:
    """Return bytes as a tensor of uint8."""
    return torch.from_numpy(np.frombuffer(text, np.uint8).copy())


def expect_rows(named: Named, name: str, rows: int, width: int) -> Tensor:
    """Return a tensor of bytes; raise :class:`PayloadError` unless it alone came, with this shape."""
    tensor = named.get(name)
    if tensor is None or tensor.dtype != torch.uint8 or tensor.shape != (rows, width):
        found = "nothing" if tensor is None else f"{tuple(tensor.shape)} of {tensor.dtype}"
        raise PayloadError(f"{name!r}: {found} arrived; ({rows}, {width}) of torch.uint8 was expected.")
    return tensor
