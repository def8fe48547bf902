"""Checkpoints: the state of server and clients after a round, complete once ``state.json`` is in place.

``state.json`` has a checksum of every file of the checkpoint, of the run's settings and
split, of the metrics up to that round, and of itself.  What does not agree is not used.

No state of random generators is needed: every draw is a function of seed and name.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from protea.errors import CheckpointError
from protea.federation import Federation
from protea.runs.store import write_text
from protea.state import carry_clients, load_server, save_server

FORMAT = 2
RUN = ("config.toml", "partition.json", "metrics.jsonl")  # files of the run that a checkpoint vouches for


@dataclass(frozen=True)
class Sum:
    """The size of a file, or of its beginning, and a checksum of that."""

    bytes: int
    blake2b: str

    @classmethod
    def of(cls, path: Path, size: int | None = None) -> Sum:
        digest, count = hashlib.blake2b(digest_size=16), 0
        with path.open("rb") as file:
            while block := file.read(1 << 20 if size is None else min(1 << 20, size - count)):
                digest.update(block)
                count += len(block)
        return cls(count, digest.hexdigest())


def save(folder: Path, loop: Federation, keep: int = 2) -> Path:
    """Write ``folder/000040`` and drop all but the newest ``keep``."""
    server, before = loop.server, complete(folder)
    path = folder / f"{server.round:06d}"
    shutil.rmtree(path, ignore_errors=True)  # a save that was interrupted
    path.mkdir(parents=True)
    save_server(server, path)
    loop.engine.save(path)
    if before and before[-1] != path:
        carry_clients(before[-1], path)
    state = {
        "format": FORMAT,
        "round": server.round,
        "files": {file.name: asdict(Sum.of(file)) for file in sorted(path.iterdir())},
        "run": {name: asdict(Sum.of(folder.parent / name)) for name in RUN if (folder.parent / name).is_file()},
    }
    write_text(path / "state.json", json.dumps({**state, "sum": seal(state)}, indent=2) + "\n")
    for old in complete(folder)[:-keep]:
        shutil.rmtree(old)
    return path


def newest(folder: Path) -> Path | None:
    """The newest checkpoint that is whole; None where there is none yet.

    One that is damaged is put aside, with a warning, if there is an earlier one that is not.
    """
    damaged: list[tuple[Path, CheckpointError]] = []
    for path in reversed(complete(folder)):
        try:
            verify(path)
        except CheckpointError as error:
            damaged.append((path, error))
            continue
        for bad, why in damaged:
            warnings.warn(f"{why}  Going on from {path.name}.", stacklevel=3)
            bad.rename(bad.with_name(f"damaged-{bad.name}"))
        return path
    if damaged:
        raise CheckpointError(
            f"{damaged[0][1]}\n  No other checkpoint is whole, so this run cannot go on.  Run its config.toml again."
        )
    return None


def load(path: Path, loop: Federation) -> None:
    """Go on from the checkpoint in ``path``, which :func:`newest` found whole."""
    loop.start()  # makes the modules whose weights are loaded
    load_server(loop.server, path)
    loop.server.round = read(path)["round"]
    loop.engine.load(path)


def metrics_size(path: Path) -> int:
    """How many bytes of the run's metrics belong to the checkpoint."""
    return int(read(path)["run"]["metrics.jsonl"]["bytes"])


def verify(path: Path) -> None:
    """Raise :class:`CheckpointError` unless everything is as it was written."""
    state = read(path)
    if (there := {file.name for file in path.iterdir()} - {"state.json"}) != state["files"].keys():
        odd = sorted(there ^ state["files"].keys())[0]
        raise CheckpointError(f"{path} is damaged: {odd} is {'not expected' if odd in there else 'missing'}.")
    for name, expected in [*state["files"].items(), *state["run"].items()]:
        file = path / name if name in state["files"] else path.parents[1] / name
        size = expected["bytes"] if name == "metrics.jsonl" else None  # which has grown since
        try:
            found = asdict(Sum.of(file, size))
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error.strerror}.") from error
        if found != expected:
            raise CheckpointError(
                f"{file} is not as it was when {path.name} was written ({found['bytes']} bytes, "
                f"{expected['bytes']} expected)."
            )


def read(path: Path) -> dict[str, Any]:
    """The checked content of ``state.json``."""
    file = path / "state.json"
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
        known = state.pop("sum")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{file} cannot be read: {error!r}.") from error
    if state.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {state.get('format')}; this version of Protea reads {FORMAT}.")
    if known != seal(state) or f"{state['round']:06d}" != path.name:
        raise CheckpointError(f"{file} is damaged: it does not agree with its checksum.")
    return dict(state)


def seal(state: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(state, sort_keys=True).encode(), digest_size=16).hexdigest()


def complete(folder: Path) -> Sequence[Path]:
    """Checkpoints that were written to their end, oldest first."""
    return sorted(path for path in folder.glob("[0-9]*") if (path / "state.json").is_file())
