"""A run's directory: the one place where a run leaves its traces.

    config.toml        the full resolved config; run it again with this file alone
    environment.json   versions, machine, threads
    partition.json     who has which samples
    metrics.jsonl      a line on the data, then one per round and one per client in it; append-only
    summary.json       the headline numbers, once the run has ended
    prototypes/        000040.safetensors: all prototypes after some rounds, for the report
    checkpoints/       000040/{server,client-007}.safetensors + state.json

This module knows files and plain values, and nothing of learning.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from protea.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows: two processes on one run or sweep are not told apart
    fcntl = None  # type: ignore[assignment]


class Run:
    """A run directory, new or old."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: str, environment: Mapping[str, Any]) -> Run:
        """A new directory; one that holds a run already is never overwritten."""
        cls.refuse_taken(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{path} cannot be made: {error.strerror}.  Choose another --out.") from error
        run = cls(path)
        write_text(path / "config.toml", config)
        write_json(path / "environment.json", environment)
        run.metrics_path.touch()
        return run

    @staticmethod
    def refuse_taken(path: Path) -> None:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(
                f"{path} exists and is not empty.  Choose another --out, or continue it: protea resume {path}"
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within, no other process may write to this run."""
        taken = f"{self.path} is being written by another process.  Wait, or stop that one."
        with locked(self.path / "config.toml", taken):
            yield

    @classmethod
    def open(cls, path: Path) -> Run:
        if (path / "sweep.json").is_file():
            raise ConfigError(f"{path} is a sweep.  To go on with it, type the command again that started it.")
        if not (path / "config.toml").is_file():
            raise ConfigError(f"{path} is not a run directory: it has no config.toml.")
        return cls(path)

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add lines to ``metrics.jsonl`` in one write, on disk when this returns."""
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> Iterator[dict[str, Any]]:
        with self.metrics_path.open(encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):  # else it is being written
                    yield json.loads(line)

    def cut(self, size: int, round: int) -> None:
        """Keep the first ``size`` bytes of the metrics, and snapshots up to ``round``."""
        with self.metrics_path.open("rb") as file:
            write_bytes(self.metrics_path, file.read(size))
        for later in [path for number, path in self.snapshots().items() if number > round]:
            later.unlink()

    def keep_snapshot(self, round: int, content: bytes) -> None:
        (self.path / "prototypes").mkdir(exist_ok=True)
        write_bytes(self.path / "prototypes" / f"{round:06d}.safetensors", content)

    def snapshots(self) -> dict[int, Path]:
        """By round."""
        return {int(path.stem): path for path in sorted((self.path / "prototypes").glob("[0-9]*.safetensors"))}

    def finish(self, summary: Mapping[str, Any]) -> None:
        write_json(self.path / "summary.json", summary)

    def summary(self) -> dict[str, Any] | None:
        path = self.path / "summary.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


@contextmanager
def locked(path: Path, taken: str) -> Iterator[None]:
    """Within, this process alone has the file; :class:`ConfigError` with the words ``taken`` if another one does."""
    with path.open() as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(taken) from error
        yield


def fresh(parent: Path, name: str) -> Path:
    """A path in ``parent`` that is not taken: ``name``, or ``name-2`` and so on."""
    path, count = parent / name, 1
    while path.exists():
        count += 1
        path = parent / f"{name}-{count}"
    return path


def write_bytes(path: Path, content: bytes) -> None:
    """Write under a temporary name, then rename: a reader never sees half a file."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")
