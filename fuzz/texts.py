"""Ways to spoil files that are text, keys in text form, or archives: blindly, or so that they can still be read."""

from __future__ import annotations

import base64
import io
import re
import zipfile
from collections.abc import Sequence
from random import Random

from fuzz.mutate import cut, extend, flip, repeat, splice

NUMBERS = ["0", "-1", "1", "2", "255", "65537", "2147483648", "9223372036854775808", "1e12", "1e999", "-1e999", "nan"]
NUMBERS += ["inf", "0.1", "NaN", "Infinity", "9" * 5000, "0x" + "f" * 5000, "1_0", "0x10", "1979-05-27", "true", "null"]
WORDS = ['""', '"\\u001b[2J"', '"x\\ny"', '"' + "x" * 3000 + '"', "[]", "{}", "null", "true", "[" * 3000, "{" * 3000]
WORDS += ['"../../x"', '"os:system"', '"\\ud800"', '{"a": 1, "a": 2}', "[[[[[]]]]]", "'", '"""']


def spoil_text(rng: Random, message: bytes, others: Sequence[bytes]) -> bytes:
    """One to three mutations of a text: of its bytes, its numbers, its words, or its lines."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        way = rng.choice((*BLIND, number, number, word, word, line, line))
        message = way(rng, message, others)
    return message


BLIND = (flip, cut, extend, splice, repeat)


def number(rng: Random, message: bytes, others: Sequence[bytes]) -> bytes:
    """Another number somewhere."""
    return replaced(rng, message, rb"-?\d+(?:\.\d+)?", NUMBERS)


def word(rng: Random, message: bytes, others: Sequence[bytes]) -> bytes:
    """Another value, or none, in the place of a quoted word, a list or a table."""
    return replaced(rng, message, rb'"[^"\n]*"|\[[^\[\]]*\]|\{[^{}]*\}', [*WORDS, *NUMBERS, ""])


def replaced(rng: Random, message: bytes, pattern: bytes, by: Sequence[str]) -> bytes:
    places = list(re.finditer(pattern, message))
    if not places:
        return message
    place = rng.choice(places)
    return message[: place.start()] + rng.choice(by).encode() + message[place.end() :]


def line(rng: Random, message: bytes, others: Sequence[bytes]) -> bytes:
    """A line lost, twice, elsewhere, or from another file."""
    lines = message.split(b"\n")
    place = rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            del lines[place]
        case 1:
            lines.insert(rng.randrange(len(lines)), lines[place])
        case 2:
            lines.insert(rng.randrange(len(lines)), lines.pop(place))
        case _:
            lines[place] = rng.choice(rng.choice(others).split(b"\n"))
    return b"\n".join(lines)


def spoil_key(rng: Random, message: bytes, others: Sequence[bytes]) -> bytes:
    """A text with a key or a certificate, half the time spoilt within, so that it is still well packed."""
    found = re.search(rb"(-----BEGIN [^-]+-----\n)([A-Za-z0-9+/=\n]+)(-----END)", message)
    if found is None or rng.random() < 0.5:
        return spoil_text(rng, message, others)
    inner = base64.b64decode(found[2])
    for _ in range(rng.choice((1, 1, 2))):
        inner = rng.choice(BLIND)(rng, inner, others)
    packed = base64.encodebytes(inner)
    return message[: found.start(2)] + packed + message[found.end(2) :]


def spoil_archive(rng: Random, message: bytes, others: Sequence[bytes]) -> bytes:
    """An archive: its bytes, or one of the files in it, or which files there are."""
    if rng.random() < 0.3:
        return rng.choice(BLIND)(rng, message, others)
    with zipfile.ZipFile(io.BytesIO(message)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice([*files])
    match rng.randrange(8):
        case 0:
            del files[name]
        case 1:
            files[rng.choice(["../x", "/x", "x", "site.pub", "coordinator.chain", "public.safetensors"])] = files[name]
        case 2:
            files[name] = bytes(rng.choice((0, 2**20 + 1)))
        case _:
            spoilt = spoil_key if files[name].startswith(b"-----") else spoil_text
            files[name] = spoilt(rng, files[name], others)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED))) as archive:
        for each, content in files.items():
            archive.writestr(each, content)
    return buffer.getvalue()
