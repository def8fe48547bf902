"""What travels: small frozen dataclasses of tensors, flattened to named tensors and to bytes.

Methods see only the typed form.  Byte counts, checks, engines and files work on the flat
form.  Only tensors travel: no class names, no code, no pickle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, ClassVar, Self, TypeVar, cast, get_args, get_origin, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from protea.errors import PayloadError

Named = dict[str, Tensor]


class Payload:
    """Base of all that travels.

    A subclass is a frozen dataclass whose fields are tensors, payloads, or mappings of names
    to either; ``None`` where a field says so.
    """

    kinds: ClassVar[dict[str, type[Payload]]] = {}  # by class name; what a checkpoint may hold

    def __init_subclass__(cls) -> None:
        other = Payload.kinds.setdefault(cls.__name__, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"There is a payload {cls.__name__} already, in {other.__module__}; choose another name.")
        Payload.kinds[cls.__name__] = cls

    def flat(self) -> Named:
        """Named tensors, ``{"field.subfield": tensor}``."""
        return {name: tensor for f in fields(cast(Any, self)) for name, tensor in _flat(f.name, getattr(self, f.name))}

    @classmethod
    def from_flat(cls, named: Named) -> Self:
        """The inverse of :meth:`flat`; names that are not declared are refused."""
        hints = get_type_hints(cls)
        parts = {f.name: _below(f.name, named) for f in fields(cast(Any, cls))}
        known = {name for part in parts.values() for name in part.values()}
        if unknown := named.keys() - known:
            raise PayloadError(f"{cls.__name__} has no {sorted(unknown)[0]!r}; it holds {', '.join(parts)}.")
        return cls(**{
            name: _build(hints[name], {k: named[v] for k, v in part.items()}, f"{cls.__name__}.{name}")
            for name, part in parts.items()
        })  # fmt: skip

    def check(self, classes: int, dim: int) -> None:
        """Raise :class:`PayloadError` for what no honest sender would send, here or in payloads within."""
        for f in fields(cast(Any, self)):
            item = getattr(self, f.name)
            for inner in item.values() if isinstance(item, Mapping) else [item]:
                if isinstance(inner, Payload):
                    inner.check(classes, dim)
        for name, tensor in self.flat().items():
            if tensor.is_complex():
                raise PayloadError(f"{type(self).__name__}.{name} holds complex numbers.")
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise PayloadError(f"{type(self).__name__}.{name} holds values that are not finite (nan or inf).")


P = TypeVar("P", bound=Payload)


def pack(payload: Payload | None) -> Named:
    """Flatten and copy: a payload on its way never shares memory with a live model."""
    if payload is None:
        return {}
    if not isinstance(cast(object, payload), Payload):
        raise PayloadError(f"{type(payload).__name__} cannot travel; a payload is a dataclass derived from Payload.")
    return {name: t.detach().to("cpu", copy=True).contiguous() for name, t in payload.flat().items()}


def unpack(kind: type[P], named: Named) -> P | None:
    """Rebuild a payload of type ``kind``; nothing stands for ``None``."""
    if named and not issubclass(kind, Payload):
        raise PayloadError(f"nothing was expected; {', '.join(sorted(named))} arrived.")
    return kind.from_flat(named) if named else None


def nbytes(named: Named) -> int:
    """Exact size of the tensors themselves."""
    return sum(t.numel() * t.element_size() for t in named.values())


def refuse_large(named: Named, norm: float) -> None:
    """Raise :class:`PayloadError` where a row of floats, along the last dimension, is longer than ``norm``."""
    for name, tensor in named.items():
        if tensor.is_floating_point() and tensor.numel():
            rows = tensor.double().reshape(-1, tensor.shape[-1] if tensor.ndim else 1)
            largest = float(rows.norm(dim=1).max())
            if largest > norm:
                raise PayloadError(
                    f"{name} has a row of norm {largest:.3g}; at most {norm:.3g} is accepted (limits.norm)."
                )


def halved(named: Named) -> Named:
    """Floats in half the size, for pictures; not for learning."""
    return {name: t.half() if t.is_floating_point() else t for name, t in named.items()}


def to_bytes(named: Named, **about: object) -> bytes:
    """One safetensors message; ``about`` is small and plain (JSON)."""
    return save(named, metadata={"about": json.dumps(about)})


def from_bytes(message: bytes) -> tuple[Named, dict[str, Any]]:
    """The inverse of :func:`to_bytes`."""
    try:
        named = load(message)
        size = int.from_bytes(message[:8], "little")
        about = json.loads(json.loads(message[8 : 8 + size])["__metadata__"]["about"])
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise PayloadError(f"This message of {len(message)} bytes cannot be read: {error}") from error
    return named, about


def _flat(name: str, item: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(item, Tensor):
        yield name, item
    elif isinstance(item, Payload):
        yield from ((f"{name}.{inner}", t) for inner, t in item.flat().items())
    elif isinstance(item, Mapping):
        for key, value in item.items():
            yield from _flat(f"{name}.{key}", value)
    elif item is not None:
        raise PayloadError(f"{name} is a {type(item).__name__}; only tensors travel.")


def _below(name: str, named: Named) -> dict[str, str]:
    """Names at or below ``name``, each without that prefix."""
    return {k[len(name) + 1 :]: k for k in named if k == name or k.startswith(f"{name}.")}


def _build(hint: Any, part: Named, where: str) -> object:
    options = [option for option in get_args(hint) if option is not type(None)]
    if type(None) in get_args(hint):
        if not part:
            return None
        hint = options[0]
    if hint is Tensor:
        if part.keys() != {""}:
            raise PayloadError(f"{where} must be one tensor; found {sorted(part) or 'nothing'}.")
        return part[""]
    if isinstance(get_origin(hint), type) and issubclass(cast(type, get_origin(hint)), Mapping):
        kind = get_args(hint)[1]
        if kind is Tensor:
            return dict(part)
        keys = dict.fromkeys(name.partition(".")[0] for name in part)
        return {k: _build(kind, {n: part[v] for n, v in _below(k, part).items()}, f"{where}.{k}") for k in keys}
    return cast("type[Payload]", hint).from_flat(part)
