"""Named tensors as one message of bytes, and back.

Nothing that arrives is trusted.  Whatever the bytes, what is wrong with them is reported by a
:class:`PayloadError`, and the memory that they make us allocate is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from protea.core.errors import PayloadError

Named = dict[str, Tensor]

HEADER = 1 << 20  # bytes that the header of a message may have: names, shapes, and what is said about the tensors
TENSORS = 10_000  # that a message may have
NAME = 500  # characters that the name of a tensor may have
AXES = 8  # that a tensor may have; torch itself fails on some larger numbers
EMPTY = 1 << 20  # largest size of a tensor without numbers, where nothing that arrived stands behind a size
DTYPES = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
}  # fmt: skip


def nbytes(named: Named) -> int:
    """Return the size of the numbers in these tensors, in bytes.

    >>> nbytes({"a": torch.zeros(2, 3), "b": torch.zeros(5, dtype=torch.bool)})
    29
    """
    return sum(t.numel() * t.element_size() for t in named.values())


def to_half(named: Named) -> Named:
    """Return floats as float16, for snapshots that are only drawn, never trained on."""
    return {name: t.half() if t.is_floating_point() else t for name, t in named.items()}


def to_bytes(named: Named, **about: object) -> bytes:
    """Return one safetensors message; ``about`` is small and plain, and travels in its header as JSON.

    >>> from_bytes(to_bytes({"a": torch.ones(2)}, round=3))
    ({'a': tensor([1., 1.])}, {'round': 3})
    """
    return save(named, metadata={"about": json.dumps(about)})


def from_bytes(message: bytes, limit: int | None = None) -> tuple[Named, dict[str, Any]]:
    """Read what :func:`to_bytes` gave; a message of more than ``limit`` bytes is refused unread.

    ``about`` is plain JSON; what it says is for the receiver to check.
    """
    named, about = read_message(message, limit)
    refuse_malformed(named)
    return named, about


def read_message(message: bytes, limit: int | None = None) -> tuple[Named, dict[str, Any]]:
    """Read a message whose tensors are for :func:`unpack`, which refuses those that no payload can hold."""
    if limit is not None and len(message) > limit:
        raise PayloadError(f"a message of {len(message)} bytes arrived; {limit} at most were expected.")
    named, text = parse_tensors(message, "about")
    about = parse_json(text)
    if not isinstance(about, dict):
        raise PayloadError(f"what is said about the tensors is a {type(about).__name__}, not an object with names.")
    return named, about


def parse_tensors(message: bytes, key: str) -> tuple[Named, str]:
    """Read the tensors of a safetensors message, and the text under ``key``, the only other thing it may hold.

    The header is checked before any tensor is made.  That offsets fit shapes and the message,
    without gap or overlap, is checked by safetensors.
    """
    size = int.from_bytes(message[:8], "little")
    if len(message) < 8 or size > min(HEADER, len(message) - 8):
        raise PayloadError(
            f"{len(message)} bytes with a header of {size} arrived; it has {HEADER} at most, and is whole."
        )
    header = parse_json(message[8 : 8 + size])
    about = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(about, dict) or about.keys() != {key} or not isinstance(about[key], str):
        raise PayloadError(f"a message without {key!r} arrived, or with more than that beside its tensors.")
    if len(header) - 1 > TENSORS:
        raise PayloadError(f"{len(header) - 1} tensors arrived; a message has {TENSORS} at most.")
    for name in header:
        if not 0 < len(name) <= NAME or not name.isprintable():
            raise PayloadError(
                f"a tensor has the name {shortened(repr(name))}, not {NAME} printable characters at most."
            )
    try:
        return load(message), about[key]
    except Exception as error:  # the library has many kinds for what it cannot read, and torch has more
        raise PayloadError(f"{len(message)} bytes cannot be read as tensors: {shortened(str(error))}") from error


def parse_json(text: str | bytes) -> Any:
    """Read a JSON text; refuse a name that occurs twice, of which readers differ in which one they take."""
    try:
        return json.loads(text if isinstance(text, str) else text.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"{len(text)} characters cannot be read as JSON: {shortened(str(error))}") from error


def refuse_malformed(named: Named) -> None:
    """Raise :class:`PayloadError` for tensors that no payload has: of odd types or shapes, on which torch may fail."""
    for name, tensor in named.items():
        if tensor.dtype not in DTYPES:
            raise PayloadError(f"{name!r} is of {tensor.dtype}, which does not travel.")
        if tensor.ndim > AXES or (not tensor.numel() and max(tensor.shape) > EMPTY):
            raise PayloadError(
                f"{name!r} has {tensor.ndim} axes, the longest of {max(tensor.shape)}; {AXES} axes may be, and {EMPTY} "
                f"along one where the tensor is empty."
            )
        if tensor.dtype == torch.bool and (tensor.view(torch.uint8) > 1).any():
            raise PayloadError(f"{name!r} holds truth values that are neither 0 nor 1.")


def first_names(names: Iterable[str]) -> str:
    """Return the first few names, for a message.

    >>> first_names(["b", "a", "d", "c"])
    'a, b, c and 1 more'
    """
    known = sorted(names)
    more = f" and {len(known) - 3} more" if len(known) > 3 else ""
    return ", ".join(shortened(name if name.isprintable() and name else repr(name)) for name in known[:3]) + more


def shortened(text: str) -> str:
    """Cut a text to 200 characters, for a message: what was sent may be long."""
    return text if len(text) <= 200 else f"{text[:200]}..."


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dictionary; raise :class:`ValueError` if a name occurs twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found
