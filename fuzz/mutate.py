"""Ways to spoil a safetensors message: blindly, in its header, or in its tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from protea.core.message import DTYPES

NUMBERS = [0, 1, 2, 3, 5, 7, 16, 255, 2**16, 2**20, 2**31 - 1, 2**31, 2**32, 2**40, 2**53, 2**62, 2**63, 2**64, -1]
SIZES = [0, 1, 2, 5, 6, 7, 15, 16, 17, 24, 64]  # of tensors that are really made
HUGE = [2**15, 2**20, 2**20 + 1, 2**31, 2**40, 2**62]  # of tensors without a number
VALUES = [float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e30, 1e10, 1.5, 1e-40, -1.0, -0.0]
KINDS = [*sorted(DTYPES, key=str), torch.complex64, torch.float8_e4m3fn]
WORDS = ["BOOL", "U8", "I8", "U16", "I32", "U64", "F16", "BF16", "F64", "C64", "F8_E5M2", "F4", "F8_E8M0", "Q9", ""]
NAMES = ["", "\n", "\x00", "ü", "x" * 600, ".", "tensors", "tensors.", "counts", "vectors", "model/x", "memory/x/", "/"]
TEXTS = [
    *(
        "",
        "{}",
        "[]",
        "null",
        "NaN",
        "1e999",
        '"',
        '{"a": {}}',
        '{"a": 1, "a": 2}',
        "[" * 5000,
        "9" * 5000,
        '{"a":' * 5000,
    ),
    *('{"x": "tensor"}', '{"x": "module"}', '{"x": ["tensor"]}', '{"x": "Prototypes"}', '{"x": {"value": null}}'),
]
Mutation = Callable[[Random, bytes, Sequence[bytes]], bytes]


def spoil(rng: Random, message: bytes, others: Sequence[bytes]) -> bytes:
    """One to three mutations of the message; ``others`` are messages from which parts may come.

    Half the time only such as leave a message that can be read, to see what comes after that.
    """
    ways = rng.choice((ALL, DEEP))
    for _ in range(rng.choice((1, 1, 2, 3))):
        message = rng.choice(ways)(rng, message, others)
    return message


def flip(rng: Random, message: bytes, others: Sequence[bytes]) -> bytes:
    """Some bits; half the time near the beginning, where the header is."""
    changed = bytearray(message or b"\0")
    reach = min(len(changed), 400) if rng.random() < 0.5 else len(changed)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(reach)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng: Random, message: bytes, others: Sequence[bytes]) -> bytes:
    return message[: rng.randint(0, len(message))]


def extend(rng: Random, message: bytes, others: Sequence[bytes]) -> bytes:
    return message + rng.randbytes(rng.choice((1, 4, 8, 64, 1000)))


def splice(rng: Random, message: bytes, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others)
    return message[: rng.randint(0, len(message))] + other[rng.randint(0, len(other)) :]


def repeat(rng: Random, message: bytes, others: Sequence[bytes]) -> bytes:
    start = rng.randint(0, len(message))
    part = message[start : start + rng.choice((1, 8, 100))]
    return message[:start] + part * rng.choice((2, 3, 200)) + message[start:]


def resize_header(rng: Random, message: bytes, others: Sequence[bytes]) -> bytes:
    """Another length of the header than it has."""
    size = int.from_bytes(message[:8], "little")
    other = rng.choice((size - 1, size + 1, 0, len(message), len(message) - 8, 2**20 + 1, 2**31, 2**63, 2**64 - 1))
    return (other % 2**64).to_bytes(8, "little") + message[8:]


def number(rng: Random, message: bytes, others: Sequence[bytes]) -> bytes:
    """Another number somewhere in the header."""
    header, data = halves(message)
    places = list(re.finditer(rb"\d+", header))
    if not places:
        return message
    place = rng.choice(places)
    return joined(header[: place.start()] + str(rng.choice(NUMBERS)).encode() + header[place.end() :], data)


def entry(rng: Random, message: bytes, others: Sequence[bytes]) -> bytes:
    """The header says something else of one tensor, or beside the tensors; the rest of the message is as it was."""
    raw, data = halves(message)
    try:
        header = json.loads(raw)
        name = rng.choice([*header])
        entry: Any = header[name]
        match rng.randrange(10):
            case 0:
                entry["dtype"] = rng.choice(WORDS)
            case 1:
                entry["shape"] = [rng.choice(NUMBERS) for _ in range(rng.choice((0, 1, 2, 3, 30)))]
            case 2:
                entry["data_offsets"] = [rng.choice(NUMBERS), rng.choice(NUMBERS)]
            case 3:
                header[rng.choice(NAMES)] = header.pop(name)
            case 4:
                del header[name]
            case 5:
                header[rng.choice(NAMES)] = entry
            case 9:  # nothing, of any shape
                shape = [0, *(rng.choice(NUMBERS) for _ in range(2))]
                rng.shuffle(shape)
                header[name] = {"dtype": rng.choice(WORDS), "shape": shape, "data_offsets": [len(data)] * 2}
            case 6:
                header[name] = rng.choice([None, 1, "x", [], {}, [entry], [[[]]]])
            case 7:
                key = rng.choice(["about", "memory", "more", *header["__metadata__"]])
                header["__metadata__"][key] = rng.choice([*TEXTS, None, 1, {}])
            case _:
                text = header["__metadata__"]
                for key in text:
                    text[key] = reworded(rng, text[key])
        return joined(json.dumps(header, allow_nan=False).encode(), data)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):  # spoilt already
        return message


def reworded(rng: Random, text: str) -> str:
    """A JSON text with one word or number replaced."""
    places = list(re.finditer(r"\w+", text))
    if not places:
        return rng.choice(TEXTS)
    place = rng.choice(places)
    words = ["tensor", "module", "Prototypes", "Weights", "DualKnowledge", "value", "null", "NaN", "1e999", "[]", "{}"]
    return text[: place.start()] + rng.choice(words) + text[place.end() :]


def tensor(rng: Random, message: bytes, others: Sequence[bytes]) -> bytes:
    """A whole message whose header is right, with a tensor changed, lost, added or renamed."""
    try:
        named, about = dict(sorted(load(message).items())), json.loads(halves(message)[0]).get("__metadata__")
        name = rng.choice([*named])
        match rng.randrange(10):
            case 0 | 1 | 2 | 3:
                named[name] = valued(rng, named[name])
            case 9:
                named = {name: shaped(rng, tensor) for name, tensor in named.items()}
            case 4:
                named[name] = named[name].abs().to(rng.choice(KINDS))  # real, if it was complex
            case 5:
                named[name] = shaped(rng, named[name])
            case 6:
                del named[name]
            case 7:
                named[rng.choice([*NAMES, *(f"{name}.{k}" for k in range(3))])] = named[name].clone()
            case _:
                other = rng.choice([*named])
                named[name], named[other] = named[other], named[name]
        header, data = halves(save(named))
        return joined(json.dumps({"__metadata__": about, **json.loads(header)}).encode(), data)
    except Exception:  # spoilt already, or more than can be saved
        return message


def valued(rng: Random, tensor: Tensor) -> Tensor:
    """Other numbers in some places, or in all."""
    flat = tensor.clone().reshape(-1)
    places = torch.tensor([rng.randrange(len(flat)) for _ in range(rng.choice((1, 3)))])
    where = slice(None) if rng.random() < 0.2 else places
    if flat.is_floating_point():
        flat[where] = rng.choice(VALUES)
    elif flat.dtype != torch.bool:
        flat[where] = rng.choice((0, -1, 1, 2**40)) if flat.dtype == torch.int64 else 1
    else:
        flat.view(torch.uint8)[where] = rng.choice((0, 1, 2, 255))
    return flat.reshape(tensor.shape)


def shaped(rng: Random, tensor: Tensor) -> Tensor:
    """Another shape: other axes, other sizes, or huge ones with nothing in them."""
    match rng.randrange(5):
        case 0:
            return tensor.reshape(-1)
        case 1:
            return tensor.reshape(*[1] * rng.choice((1, 9, 70)), *tensor.shape)
        case 2:
            return torch.empty(rng.choice([(0, rng.choice(HUGE)), (rng.choice(HUGE), 0)]), dtype=tensor.dtype)
        case 3:
            return torch.zeros(rng.choice((1000, 2**14)), dtype=tensor.dtype)  # as counts: very many classes
        case _:
            return torch.ones([rng.choice(SIZES) for _ in range(rng.randint(0, 3))], dtype=tensor.dtype)


def halves(message: bytes) -> tuple[bytes, bytes]:
    """Header and data."""
    end = 8 + int.from_bytes(message[:8], "little")
    return message[8:end], message[end:]


def joined(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


DEEP: Sequence[Mutation] = (tensor, tensor, tensor, entry)
ALL: Sequence[Mutation] = (flip, cut, extend, splice, repeat, resize_header, number, entry, tensor)
