"""The record of what left a site: one line of ``audit.jsonl`` for every message, and for all that was refused."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from protea.core.files import naming_file
from protea.core.message import parse_json
from protea.network.site.join import audit_lines

DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip


class Audit:
    """A file with one line for every message that left this site, and for everything that its policy refused."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, task: str, round: int, message: bytes, held_back: Sequence[str] = ()) -> None:
        """Write down a message of tensors, before it leaves, and the classes that are not in it."""
        self._append(task, round, header(message), message, {"held_back": list(held_back)} if held_back else {})

    def write_words(self, task: str, words: str) -> None:
        """Write down words that leave instead of an answer, such as why there is none."""
        self._append(task, 0, {}, words.encode(), {"words": words})

    def write_refusal(self, asked: str, round: int, policy: str, why: str, words: str = "") -> None:
        """Write down what the policy refused, and the line that says so; ``words`` are what leaves instead, if any."""
        self._append("refused", round, {}, words.encode(), {"asked": asked, "policy": policy, "words": why})

    def _append(
        self, task: str, round: int, tensors: dict[str, Any], message: bytes, more: Mapping[str, object]
    ) -> None:
        line = {
            "time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "task": task,
            "round": round,
            "tensors": {n: {"shape": t["shape"], "dtype": f"torch.{DTYPES[t['dtype']]}"} for n, t in tensors.items()},
            "numbers": sum(end - start for start, end in (t["data_offsets"] for t in tensors.values())),  # their bytes
            "bytes": len(message),
            "blake2b": hashlib.blake2b(message, digest_size=16).hexdigest(),
            **more,
        }
        with naming_file(self.path), self.path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":
                    file.write(b"\n")  # a process was killed while it wrote
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> Iterator[dict[str, Any]]:
        """Give all lines."""
        yield from audit_lines(self.path.read_bytes())


def header(message: bytes) -> dict[str, Any]:
    """Read type, shape and place of every tensor in a message of our own, without reading the tensors."""
    found: dict[str, Any] = parse_json(message[8 : 8 + int.from_bytes(message[:8], "little")])
    return {name: about for name, about in sorted(found.items()) if name != "__metadata__"}
