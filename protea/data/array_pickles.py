"""Arrays, lists and numbers out of a pickle, read without running anything that it asks for.

A pickle is a small program.  :func:`read_array_pickle` follows it by hand, knows only the opcodes with which plain
values and NumPy's arrays of numbers are written, and refuses all others.  No function that a pickle names is looked
up: the six names that NumPy writes stand for what is done here.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from protea.core.errors import DataError

MOST = 100_000_000  # opcodes: of a set of texts, a few for each word
NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
NAMES = {
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",  # bytes, as old protocols write them
    ("__builtin__", "bytes"): "no_bytes",
    **{(f"numpy.{core}.multiarray", "_reconstruct"): "reconstruct" for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): "scalar" for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): "frombuffer" for core in ("core", "_core")},
}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
LITERALS = frozenset(
    {
        *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
        *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    }
)


class PickledArray:
    """An array of a pickle: ``numbers``, or the ``items`` of an array of objects, row by row."""

    def __init__(self) -> None:
        self.numbers: npt.NDArray[Any] | None = None
        self.items: list[Any] | None = None
        self.shape: tuple[int, ...] | None = None  # None until its content was read


@dataclass(frozen=True)
class _Name:
    """One of the names in ``NAMES``; nothing that could be called."""

    word: str


class _NumberType:
    """A type of numbers, or ``O`` for objects."""

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "="

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.code).newbyteorder(self.order)  # type: ignore[arg-type]


_MARK = object()


def read_array_pickle(content: bytes, where: str) -> Any:
    """Return the value that a pickle holds: None, bools, numbers, str, bytes, lists, tuples, dicts with names as keys,
    and :class:`PickledArray`; raise :class:`DataError` for anything else, before anything of it is run.

    ``where`` is what messages call the pickle.

    >>> import pickle
    >>> read_array_pickle(pickle.dumps({"y": [1, 2.5, "north"]}), "here")
    {'y': [1, 2.5, 'north']}
    """
    reader = _Reader(where)
    try:
        return reader.read(content)
    except DataError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, MemoryError, RecursionError) as error:
        raise DataError(
            f"{where} is not what NumPy writes, or is damaged ({type(error).__name__}: {str(error)[:100]})."
        ) from error


class _Reader:
    """The stack and the memo of one pickle."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def read(self, content: bytes) -> Any:
        for count, (opcode, argument, position) in enumerate(pickletools.genops(content)):
            if count > MOST:
                self.refuse(f"has more than {MOST:,} steps")
            name = opcode.name
            if name == "STOP":
                value = self.pop()
                if self.stack:
                    raise ValueError("it holds more than one value")
                return value
            if name in LITERALS:
                self.stack.append(bytes(argument) if isinstance(argument, bytearray) else argument)
            elif name in CONSTANTS:
                self.stack.append(CONSTANTS[name])
            elif (step := STEPS.get(name)) is not None:
                step(self, argument)
            elif name not in ("PROTO", "FRAME"):
                self.refuse(f"has the opcode {name} at byte {position}")
        raise ValueError("it has no end")

    def refuse(self, why: str) -> NoReturn:
        raise DataError(
            f"{self.where} {why}, which arrays of numbers do not need.  A pickle can run any code, so only numbers, "
            f"text, lists and arrays are read; nothing was run.  Save plain arrays: numpy.savez(path, x=..., y=...)"
        )

    # Values

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise ValueError("a value is missing")
        return self.stack.pop()

    def to_mark(self) -> list[Any]:
        """Take what was put on the stack since the last mark."""
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:  # beyond the first one: an IndexError
            at -= 1
        taken = self.stack[at + 1 :]
        del self.stack[at:]
        return taken

    def push_tuple(self, length: int) -> None:
        taken = [self.pop() for _ in range(length)]
        self.stack.append(tuple(reversed(taken)))

    def extend(self, values: Sequence[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise TypeError("something is appended to what is no list")
        self.stack[-1].extend(values)

    def update(self, values: Sequence[Any]) -> None:
        target, names = self.stack[-1], values[::2]
        if type(target) is not dict or len(values) % 2 or not all(type(name) is str for name in names):
            raise TypeError("a dictionary is expected, with names as keys")
        target.update(zip(names, values[1::2], strict=True))

    # NumPy's arrays

    def name(self, module: Any, name: Any) -> None:
        word = NAMES.get((module, name)) if type(module) is str and type(name) is str else None
        if word is None:
            self.refuse(f"names {str(module)[:60]}.{str(name)[:60]}")
        self.stack.append(_Name(word))

    def call(self) -> None:
        given, callee = self.pop(), self.pop()
        word = callee.word if type(callee) is _Name else ""
        if type(given) is not tuple or word not in (
            "dtype",
            "encode",
            "no_bytes",
            "reconstruct",
            "scalar",
            "frombuffer",
        ):
            self.refuse("calls something")
        self.stack.append(getattr(self, f"call_{word}")(*given))

    def call_dtype(self, code: Any, align: Any, copy: Any) -> _NumberType:
        if code in ("O", "O8"):
            return _NumberType("O")
        if code not in NUMBERS:
            self.refuse(f"has an array of type {str(code)[:20]!r}")
        return _NumberType(code)

    def call_encode(self, text: Any, encoding: Any) -> bytes:
        if type(text) is not str or encoding != "latin1":
            raise TypeError("bytes are expected")
        return text.encode("latin1")

    def call_no_bytes(self) -> bytes:
        return b""

    def call_reconstruct(self, kind: Any, shape: Any, code: Any) -> PickledArray:
        if type(kind) is not _Name or kind.word != "ndarray" or shape != (0,) or code not in (b"b", "b"):
            raise TypeError("an array is expected")
        return PickledArray()

    def call_scalar(self, kind: Any, content: Any) -> Any:
        return self.numbers(kind, (), content)[()].item()

    def call_frombuffer(self, content: Any, kind: Any, shape: Any, order: Any) -> PickledArray:
        return self.filled(PickledArray(), (1, shape, kind, order == "F", content))

    def build(self) -> None:
        """Give the array or type on the stack what belongs to it."""
        state, target = self.pop(), self.stack[-1]
        if type(state) is not tuple or len(state) < 5:
            raise TypeError("the state of an array is expected")
        if type(target) is PickledArray:
            self.filled(target, state)
        elif type(target) is _NumberType and state[0] == 3 and all(each is None for each in state[2:5]):
            if state[1] not in ("<", ">", "|", "="):
                raise ValueError("an order of bytes is expected")
            target.order = state[1]
        else:
            self.refuse("sets the state of something")

    def filled(self, array: PickledArray, state: tuple[Any, ...]) -> PickledArray:
        """Set an array's content from what NumPy writes: version, shape, type, order, and bytes or items."""
        version, shape, kind, fortran, content = state
        if array.shape is not None or version != 1 or type(kind) is not _NumberType or type(shape) is not tuple:
            raise TypeError("an array's content is expected, once")
        if not all(type(each) is int and each >= 0 for each in shape) or len(shape) > 32:
            raise ValueError("a shape is expected")
        if kind.code != "O":
            array.numbers = self.numbers(kind, shape, content, "F" if fortran is True else "C")
        elif type(content) is not list or len(content) != prod(shape) or (fortran is True and len(shape) > 1):
            raise ValueError("the objects of an array are expected, row by row")
        else:
            array.items = content
        array.shape = shape
        return array

    def numbers(self, kind: Any, shape: tuple[int, ...], content: Any, order: Any = "C") -> npt.NDArray[Any]:
        if type(kind) is not _NumberType or kind.code == "O" or type(content) is not bytes:
            raise TypeError("numbers are expected")
        if len(content) != prod(shape) * kind.dtype.itemsize:
            raise ValueError(f"{len(content)} bytes are not an array of shape {shape}")
        found = np.frombuffer(content, kind.dtype) if content else np.empty(0, kind.dtype)
        return found.reshape(shape, order=order).astype(kind.dtype.newbyteorder("="), copy=False)


def _remember(reader: _Reader, place: int | None) -> None:
    value = reader.pop()  # which a mark is not
    reader.memo[len(reader.memo) if place is None else place] = value
    reader.stack.append(value)


STEPS: dict[str, Callable[[_Reader, Any], object]] = {
    "MARK": lambda reader, _: reader.stack.append(_MARK),
    "EMPTY_TUPLE": lambda reader, _: reader.stack.append(()),
    "EMPTY_LIST": lambda reader, _: reader.stack.append([]),
    "EMPTY_DICT": lambda reader, _: reader.stack.append({}),
    "TUPLE": lambda reader, _: reader.stack.append(tuple(reader.to_mark())),
    "TUPLE1": lambda reader, _: reader.push_tuple(1),
    "TUPLE2": lambda reader, _: reader.push_tuple(2),
    "TUPLE3": lambda reader, _: reader.push_tuple(3),
    "APPEND": lambda reader, _: reader.extend([reader.pop()]),
    "APPENDS": lambda reader, _: reader.extend(reader.to_mark()),
    "SETITEM": lambda reader, _: reader.update([reader.pop(), reader.pop()][::-1]),
    "SETITEMS": lambda reader, _: reader.update(reader.to_mark()),
    "MEMOIZE": lambda reader, _: _remember(reader, None),
    "BINPUT": _remember,
    "LONG_BINPUT": _remember,
    "BINGET": lambda reader, place: reader.stack.append(reader.memo[place]),
    "LONG_BINGET": lambda reader, place: reader.stack.append(reader.memo[place]),
    "GLOBAL": lambda reader, both: reader.name(*both.split(" ", 1)),
    "STACK_GLOBAL": lambda reader, _: reader.name(*[reader.pop(), reader.pop()][::-1]),
    "REDUCE": lambda reader, _: reader.call(),
    "BUILD": lambda reader, _: reader.build(),
}
