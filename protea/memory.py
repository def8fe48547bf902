"""What a client or the server remembers from round to round."""

from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from protea.errors import CheckpointError
from protea.payload import Named, Payload

T = TypeVar("T")


class Memory(UserDict[str, Any]):
    """Named tensors, payloads, modules, and plain values: all that can be saved without code.

    Modules are made by a method's ``start_client`` or ``start_server``; a checkpoint holds
    their weights only, and finds them in place.
    """

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(value, Tensor | Payload | nn.Module | bool | int | float | str):
            raise TypeError(
                f"memory[{name!r}] cannot hold a {type(value).__name__}: it holds tensors, payloads, modules, "
                f"numbers and strings, so that a run can be saved.  Wrap it in a Payload."
            )
        if "/" in name:
            raise KeyError(f"memory[{name!r}]: a name has no slash, which parts names in checkpoints.")
        super().__setitem__(name, value)

    def flat(self) -> tuple[Named, str]:
        """Named tensors, and a JSON index that says what each name is."""
        tensors: Named = {}
        index: dict[str, Any] = {}
        for name, value in self.data.items():
            match value:
                case Tensor():
                    index[name], parts = "tensor", {"": value}
                case nn.Module():
                    index[name], parts = "module", value.state_dict()
                case Payload():
                    index[name], parts = type(value).__name__, value.flat()
                case _:
                    index[name], parts = {"value": value}, {}
            tensors |= {f"{name}/{part}": t.detach().cpu().contiguous().clone() for part, t in parts.items()}
        return tensors, json.dumps(index)

    def restore(self, tensors: Named, index: str, device: torch.device | str = "cpu") -> None:
        """Take up what :meth:`flat` gave."""
        kinds: Mapping[str, Any] = json.loads(index)
        for name in self.data.keys() - kinds.keys():
            del self.data[name]
        for name, kind in kinds.items():
            parts = {k.removeprefix(f"{name}/"): t.to(device) for k, t in tensors.items() if k.startswith(f"{name}/")}
            if isinstance(kind, dict):
                self.data[name] = kind["value"]
            elif kind == "tensor":
                self.data[name] = parts[""]
            elif kind == "module":
                module = self.data.get(name)
                if not isinstance(module, nn.Module):
                    raise CheckpointError(
                        f"memory[{name!r}] is a module that start_client or start_server did not make."
                    )
                module.load_state_dict(parts)
            elif kind in Payload.kinds:
                self.data[name] = Payload.kinds[kind].from_flat(parts)
            else:
                raise CheckpointError(f"memory[{name!r}] is of kind {kind!r}, which is unknown here.")
