"""The memory of a client or the server: what it keeps from round to round."""

from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from protea.core.errors import CheckpointError, PayloadError
from protea.core.message import Named, parse_json, refuse_malformed, shortened
from protea.core.payload import Payload, tensors_in
from protea.core.weights import Weights

T = TypeVar("T")


class Memory(UserDict[str, Any]):
    """A dictionary of tensors, payloads, modules and plain values, all of which can be saved without code.

    Modules are made by a method's ``start_client`` or ``start_server``.  A checkpoint holds their
    weights only, and loads these into the modules that are there.

    >>> memory = Memory()
    >>> memory["rounds"] = 3
    >>> memory["names"] = ["a"]
    Traceback (most recent call last):
    ...
    TypeError: memory['names'] cannot hold a list: it holds tensors, payloads, modules, numbers and strings, so that a \
run can be saved.  Wrap it in a Payload.
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

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that it holds, alone or in payloads; those of modules are not among them."""
        return tensors_in(self.data)

    def flat(self) -> tuple[Named, str]:
        """Return named tensors, copied to the CPU, and a JSON index that says what each name is."""
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
        """Restore what :meth:`flat` returned; raise :class:`CheckpointError` for anything else."""
        parts: dict[str, Named] = {}
        for full, tensor in tensors.items():
            name, _, part = full.partition("/")
            parts.setdefault(name, {})[part] = tensor.to(device)
        try:
            refuse_malformed(tensors)
            kinds = parse_json(index)
            if not isinstance(kinds, dict) or parts.keys() - kinds.keys() or any("/" in name for name in kinds):
                raise PayloadError("its index does not name just what is in it.")
            self.data = {name: self._restored(name, kind, parts.get(name, {})) for name, kind in kinds.items()}
        except PayloadError as error:
            raise CheckpointError(f"A memory cannot be restored: {error}") from error

    def _restored(self, name: str, kind: object, parts: Named) -> Any:
        match kind:
            case {"value": bool() | int() | float() | str() as value, **more} if not more and not parts:
                return value
            case "tensor" if parts.keys() == {""}:
                return parts[""]
            case "module":
                module = self.data.get(name)
                if not isinstance(module, nn.Module):
                    raise CheckpointError(
                        f"memory[{name!r}] is a module that start_client or start_server did not make."
                    )
                Weights(parts).load_into(module)
                return module
            case str() if kind in Payload.kinds:
                return Payload.kinds[kind].from_flat(parts)
        raise CheckpointError(
            f"memory[{name!r}] is of kind {shortened(repr(kind))}, which is unknown here or has other parts."
        )
