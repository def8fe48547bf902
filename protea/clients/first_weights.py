"""First weights from files, so that models begin as they did elsewhere: in another run, or in another program.

A folder has ``client-000.safetensors`` and so on, with the names of ``SplitModel.state_dict()``.  What a method keeps
beside the model may be there too, as ``memory/NAME/...``, and that of the server in ``server.safetensors``: by the
names that checkpoints have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import nn

from protea.clients.state_files import path_of
from protea.core.errors import ConfigError, PayloadError
from protea.core.memory import Memory
from protea.core.message import Named, refuse_malformed
from protea.core.payload import Payload
from protea.core.split_model import SplitModel
from protea.core.weights import Weights

MEMORY = "memory/"
SETTING = "models.start"


@dataclass(frozen=True)
class FirstWeights:
    """The folder that ``models.start`` names."""

    folder: Path

    def check(self, clients: int, models: Sequence[SplitModel]) -> None:
        """Raise :class:`ConfigError` unless every client has a file that fits its model, client i that of i modulo."""
        if not self.folder.is_dir():
            raise ConfigError(f"{SETTING} is {str(self.folder)!r}, and there is no such folder.")
        for id in range(clients):
            load_named(self.of_client(id), models[id % len(models)], check=True)

    def of_client(self, id: int) -> Path:
        """Return the file of a client; raise :class:`ConfigError` where there is none."""
        path = path_of(id, self.folder)
        if not path.is_file():
            raise ConfigError(f"{SETTING}: {path} does not exist.  Every client needs a file there, or none: unset it.")
        return path

    def into_model(self, id: int, model: SplitModel) -> None:
        """Give a client's model its first weights."""
        load_named(self.of_client(id), model)

    def into_memory(self, id: int, memory: Memory) -> None:
        """Give modules that a method keeps at a client their first weights, where the client's file has them."""
        load_kept(self.of_client(id), memory)

    def into_server(self, memory: Memory) -> None:
        """Give modules that a method keeps on the server their first weights, where there is a file for it."""
        path = self.folder / "server.safetensors"
        if path.is_file():
            load_kept(path, memory)


def load_named(path: Path, model: nn.Module, *, check: bool = False) -> None:
    """Load the weights of a model from a file; with ``check`` only look whether they would fit."""
    found = Weights({name: tensor for name, tensor in read(path).items() if not name.startswith(MEMORY)})
    try:
        if check:
            found.check_like(Weights.of(model))
        else:
            found.load_into(model)
    except PayloadError as error:
        name = getattr(model, "name", type(model).__name__)
        raise ConfigError(f"{SETTING}: {path} does not fit {name}.  {error}") from error


def load_kept(path: Path, memory: Memory) -> None:
    """Load what a file has of the modules and payloads of a memory, by the names that a checkpoint gives them."""
    parts: dict[str, Named] = {}
    for full, tensor in read(path).items():
        if full.startswith(MEMORY):
            name, _, part = full.removeprefix(MEMORY).partition("/")
            parts.setdefault(name, {})[part] = tensor
    for name, tensors in parts.items():
        try:
            match memory.get(name):
                case nn.Module() as module:
                    Weights(tensors).load_into(module)
                case Payload() as payload:
                    memory[name] = type(payload).from_flat(tensors)
                case _:
                    known = ", ".join(key for key, value in memory.items() if isinstance(value, nn.Module | Payload))
                    raise PayloadError(f"the method keeps nothing of this name, but {known or 'nothing at all'}.")
        except PayloadError as error:
            raise ConfigError(f"{SETTING}: {path}, {MEMORY}{name}: {error}") from error


def read(path: Path) -> Named:
    """Read the tensors of a file; raise :class:`ConfigError` for one that is no safetensors file or not finite."""
    try:
        with safe_open(path, framework="pt") as file:
            found: Named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no dictionary
        refuse_malformed(found)
    except (OSError, SafetensorError, PayloadError) as error:
        raise ConfigError(f"{SETTING}: {path} cannot be read: {error}") from error
    return found
