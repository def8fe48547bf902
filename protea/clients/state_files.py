"""One client's or the server's state in one safetensors file."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save
from torch import nn

from protea.core.client import Client
from protea.core.errors import CheckpointError, PayloadError
from protea.core.files import write_bytes
from protea.core.memory import Memory
from protea.core.message import Named, parse_tensors
from protea.core.server import Server
from protea.core.weights import Weights


def save_client(client: Client, directory: Path) -> None:
    """Write a client's model and memory to its file in a directory."""
    model = {name: t.detach().cpu().contiguous().clone() for name, t in client.model.state_dict().items()}
    _write(path_of(client.id, directory), client.memory, model)


def load_client(client: Client, directory: Path) -> None:
    """Read a client's model and memory from its file in a directory; one that never took part has none."""
    path = path_of(client.id, directory)
    if path.exists():
        _read(path, client.memory, client.model, str(client.device))


@contextmanager
def undone_if_it_fails(client: Client) -> Iterator[None]:
    """Put a client back to what it was before if anything is raised within."""
    model = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}
    memory = copy.deepcopy(client.memory.data)
    try:
        yield
    except BaseException:
        client.model.load_state_dict(model)
        client.memory.data = memory
        raise


def carry_clients(earlier: Path, directory: Path) -> None:
    """Link from an earlier directory the files of clients that a directory does not have."""
    for path in earlier.glob("client-*.safetensors"):
        if not (directory / path.name).exists():
            try:
                os.link(path, directory / path.name)
            except OSError:  # a file system without links
                shutil.copyfile(path, directory / path.name)


def save_server(server: Server, directory: Path) -> None:
    """Write the server's memory to its file in a directory."""
    _write(directory / "server.safetensors", server.memory, {})


def load_server(server: Server, directory: Path) -> None:
    """Read the server's memory from its file in a directory."""
    nothing = nn.Module()  # what models the server has are in its memory
    _read(directory / "server.safetensors", server.memory, nothing, str(server.device))


def name_of(id: int) -> str:
    """Give the name of a client in names of files."""
    return f"client-{id:03d}"


def path_of(id: int, directory: Path) -> Path:
    """Give the file of a client's state in a directory of saved clients."""
    return directory / f"{name_of(id)}.safetensors"


def _write(path: Path, memory: Memory, model: Named) -> None:
    tensors, index = memory.flat()
    named = {f"memory/{k}": t for k, t in tensors.items()} | {f"model/{k}": t for k, t in model.items()}
    write_bytes(path, save(named, metadata={"memory": index}))


def _read(path: Path, memory: Memory, model: nn.Module, device: str) -> None:
    """Fill memory and model from the file; :class:`CheckpointError` if it does not hold just what they need."""
    try:
        named, index = parse_tensors(path.read_bytes(), "memory")
        parts: dict[str, Named] = {"memory": {}, "model": {}}
        for full, tensor in named.items():
            part, _, name = full.partition("/")
            if part not in parts:
                raise PayloadError(f"{full!r} belongs neither to a memory nor to a model.")
            parts[part][name] = tensor
        memory.restore(parts["memory"], index, device)
        Weights(parts["model"]).load_into(model)
    except (OSError, PayloadError, CheckpointError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
