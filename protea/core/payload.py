"""Payloads: what travels between clients and server, as frozen dataclasses of tensors, or as named tensors.

Methods see only the typed form.  Byte counts, checks, engines and files work on the flat
form.  Only tensors travel: no class names, no code, no pickle.  As bytes: ``message.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar, Self, TypeVar, cast, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from protea.core.errors import PayloadError
from protea.core.message import Named, first_names, refuse_malformed


class Payload:
    """Base class of all that travels.

    A subclass is a frozen dataclass whose fields are tensors, payloads, or mappings of names
    to either; a field may also be ``None`` if its type says so.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class ExampleScores(Payload):
    ...     scores: Tensor
    >>> ExampleScores(torch.ones(2)).flat()
    {'scores': tensor([1., 1.])}
    """

    kinds: ClassVar[dict[str, type[Payload]]] = {}  # by class name: those that a checkpoint may hold
    counting: ClassVar[tuple[str, ...]] = ()  # fields that count samples, and are no vectors

    def __init_subclass__(cls) -> None:
        other = Payload.kinds.setdefault(cls.__name__, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"There is a payload {cls.__name__} already, in {other.__module__}; choose another name.")
        Payload.kinds[cls.__name__] = cls

    def flat(self) -> Named:
        """Return named tensors, ``{"field.subfield": tensor}``."""
        return {name: tensor for f in fields(cast(Any, self)) for name, tensor in _flat(f.name, getattr(self, f.name))}

    @classmethod
    def from_flat(cls, named: Named) -> Self:
        """Rebuild a payload from :meth:`flat`; raise :class:`PayloadError` for names that are not declared."""
        hints = _hints(cast(Any, cls))
        parts = {f.name: _below(f.name, named) for f in fields(cast(Any, cls))}
        known = {name for part in parts.values() for name in part.values()}
        if unknown := named.keys() - known:
            raise PayloadError(f"{cls.__name__} has no {min(unknown)!r}; it holds {', '.join(parts)}.")
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
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise PayloadError(f"{type(self).__name__}.{name} holds values that are not finite (nan or inf).")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


P = TypeVar("P", bound=Payload)


def pack(payload: Payload | None) -> Named:
    """Flatten and copy to the CPU: what travels shares no memory, and no memory format, with a model in training."""
    if payload is None:
        return {}
    if not isinstance(cast(object, payload), Payload):
        raise PayloadError(f"{type(payload).__name__} cannot travel; a payload is a dataclass derived from Payload.")
    return {name: as_sent(t.detach().cpu()) for name, t in payload.flat().items()}


def as_sent(tensor: Tensor) -> Tensor:
    """Return a contiguous copy, as reading from a file would give: float sums may depend on the memory format."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def unpack(kind: type[P], named: Named) -> P | None:
    """Rebuild a payload of type ``kind`` from what :func:`pack` gave; no tensors at all stand for ``None``.

    What no payload can hold is refused.

    >>> unpack(Payload, {}) is None
    True
    """
    refuse_malformed(named)
    if named and not issubclass(kind, Payload):
        raise PayloadError(f"nothing was expected; {first_names(named)} arrived.")
    return kind.from_flat(named) if named else None


def places_of(wanted: type[Payload], kind: type[Any], named: Named) -> list[str]:
    """Return the prefixes of names in a flattened payload of type ``kind`` below which there are ``wanted`` payloads.

    The prefix of the payload itself is empty.
    """
    if not issubclass(kind, Payload):
        return []
    if issubclass(kind, wanted):
        return [""]
    found = []
    for name, hint in _hints(cast(Any, kind)).items():
        below = _below(name, named)
        if isinstance(get_origin(hint), type) and issubclass(cast(type, get_origin(hint)), Mapping):
            inner, prefixes = get_args(hint)[1], list(dict.fromkeys(f"{name}.{key.partition('.')[0]}" for key in below))
        else:  # maybe None as well
            inner = next(option for option in (*get_args(hint), hint) if option is not type(None))
            prefixes = [name] if below else []
        for prefix in prefixes:
            part = {key: named[full] for key, full in _below(prefix, named).items()}
            found += [f"{prefix}.{rest}".rstrip(".") for rest in places_of(wanted, inner, part)]
    return found


def declares(wanted: type[Payload], kind: Any) -> bool:
    """Return whether a payload of type ``kind``, or one within it, is declared to hold a ``wanted`` payload.

    >>> declares(Payload, None)
    False
    """
    if isinstance(kind, type) and issubclass(kind, Payload):
        hints = _hints(cast(Any, kind))
        return issubclass(kind, wanted) or any(declares(wanted, hints[f.name]) for f in fields(cast(Any, kind)))
    return any(declares(wanted, option) for option in get_args(kind))


def count_names(kind: type[Any], named: Named) -> set[str]:
    """Return the names of all tensors in a flattened payload of type ``kind`` that count samples."""
    return {
        f"{place}.{field}".lstrip(".")
        for counted in tuple(Payload.kinds.values())
        if counted.counting
        for place in places_of(counted, kind, named)
        for field in counted.counting
    }


def vector_names(kind: type[Any], named: Named) -> list[str]:
    """Return the names of all tensors of floats in a flattened payload of type ``kind`` that count no samples."""
    counts = count_names(kind, named)
    return [name for name, tensor in named.items() if tensor.is_floating_point() and name not in counts]


def tensors_in(item: object) -> Iterator[Tensor]:
    """Yield the tensors of a payload as they are in memory; less than that may travel."""
    if isinstance(item, Tensor):
        yield item
    elif isinstance(item, Payload):
        for field in fields(cast(Any, item)):
            yield from tensors_in(getattr(item, field.name))
    elif isinstance(item, Mapping):
        for part in item.values():
            yield from tensors_in(part)


def refuse_large(named: Named, norm: float) -> None:
    """Raise :class:`PayloadError` if a row (along the last axis) of floats is longer than ``norm``.

    The tensors are well-formed (:func:`refuse_malformed`): there are floats whose norm torch cannot tell.
    """
    for name, tensor in named.items():
        if tensor.is_floating_point() and tensor.numel():
            rows = tensor if tensor.ndim else tensor.reshape(1)
            longest = float(torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64).max())
            if longest > norm:  # what is not finite has a message of its own
                raise PayloadError(
                    f"{name!r} has a row of norm {longest:.3g}; at most {norm:g} is accepted (limits.norm)."
                )


def _flat(name: str, item: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a field with their full names."""
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
    """Return the names at or below ``name``: without that prefix, and in full."""
    return {k[len(name) + 1 :]: k for k in named if k == name or k.startswith(f"{name}.")}


def _build(hint: Any, part: Named, where: str) -> object:
    """Rebuild the value of one field from its declared type and the tensors below its name."""
    options = [option for option in get_args(hint) if option is not type(None)]
    if type(None) in get_args(hint):
        if not part:
            return None
        hint = options[0]
    if hint is Tensor:
        if part.keys() != {""}:
            raise PayloadError(f"{where} must be one tensor; found {first_names(part) or 'nothing'}.")
        return part[""]
    if isinstance(get_origin(hint), type) and issubclass(cast(type, get_origin(hint)), Mapping):
        kind = get_args(hint)[1]
        if "" in part:
            raise PayloadError(f"{where} must be tensors with names; found one without.")
        if kind is Tensor:
            return dict(part)
        groups: dict[str, Named] = {}
        for name, tensor in part.items():
            key, _, rest = name.partition(".")
            groups.setdefault(key, {})[rest] = tensor
        return {key: _build(kind, group, f"{where}.{key}") for key, group in groups.items()}
    return cast("type[Payload]", hint).from_flat(part)
