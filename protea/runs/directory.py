"""A run's directory: the one place where a run leaves its traces.

    config.toml        the full resolved config; run it again with this file alone
    environment.json   versions, machine, threads; a checksum of config.toml and of itself
    partition.json     who has which samples
    metrics.jsonl      a line on the data, then one per round and one per client in it; append-only
    summary.json       the headline numbers, once the run has ended
    prototypes/        000040.safetensors: all prototypes after some rounds, for the report
    checkpoints/       000040/{server,client-007}.safetensors + state.json
    .lock              held by the process that writes here

This module knows files and plain values, and nothing of learning.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from protea.core.errors import CheckpointError, ConfigError
from protea.core.files import (
    FileSum,
    hold_lock,
    naming_file,
    read_sealed,
    write_bytes,
    write_json,
    write_sealed,
    write_text,
)

LOCK = ".lock"
BEFORE = {LOCK, "environment.json", ".environment.json.partial", ".config.toml.partial"}  # all there before config.toml


class RunDirectory:
    """A run directory, new or old."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.go_on = f"protea resume {path}"  # what to type after an error

    @classmethod
    def create(cls, path: Path, config: str, environment: Mapping[str, Any]) -> RunDirectory:
        """Make a new directory; one that holds a run already is never overwritten.

        ``config.toml`` comes last: where it is, there is a run that can be resumed.
        """
        cls.refuse_taken(path)
        run = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            with run.held():
                cls.refuse_taken(path)  # by a process that was faster
                mark = hashlib.blake2b(config.encode(), digest_size=16).hexdigest()
                write_sealed(path / "environment.json", {**environment, "config": mark})
                write_text(path / "config.toml", config)
                run.metrics_path.touch()
        except OSError as error:
            raise ConfigError(f"{path} cannot be made: {error.strerror}.  Choose another --out.") from error
        return run

    @staticmethod
    def refuse_taken(path: Path) -> None:
        """Raise if the path is anything but new, empty, or left by a run that was stopped before it began."""
        if path.exists() and (not path.is_dir() or any(file.name not in BEFORE for file in path.iterdir())):
            raise ConfigError(
                f"{path} exists and is not empty.  Choose another --out, or continue it: protea resume {path}"
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within, no other process may write to this run."""
        taken = f"{self.path} is being written by another process.  Wait, or stop that one."
        with hold_lock(self.path / LOCK, taken):
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What cannot be written here becomes an error that says how to go on."""
        try:
            yield
        except (OSError, CheckpointError) as error:
            why = str(error)
            if isinstance(error, OSError):
                why = f"{error.filename or self.path} cannot be written: {error.strerror}."
            raise CheckpointError(
                f"{why}\n  Nothing that was complete is lost.  Put that right (free space, permissions), "
                f"then: {self.go_on}"
            ) from error

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        if (path / "sweep.json").is_file():
            raise ConfigError(f"{path} is a sweep.  To go on with it, type the command again that started it.")
        if not (path / "config.toml").is_file():
            raise ConfigError(f"{path} is not a run directory: it has no config.toml.")
        return cls(path)

    def check(self) -> None:
        """Raise :class:`CheckpointError` unless the settings are those that the run was made with."""
        known, config = read_sealed(self.path / "environment.json").get("config"), self.path / "config.toml"
        if known != FileSum.of(config).blake2b:
            raise CheckpointError(
                f"{config} is not as it was when the run was made: environment.json has another checksum of it.\n"
                f"  Undo the change, or run it anew: protea run {config} --out NEW"
            )

    @property
    def config_path(self) -> Path:
        """The settings; where this file is, there is a run."""
        return self.path / "config.toml"

    @property
    def partition_path(self) -> Path:
        return self.path / "partition.json"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of all checkpoints."""
        return self.path / "checkpoints"

    @property
    def begun(self) -> bool:
        """Whether there is a run, which may be gone on with or read."""
        return self.config_path.is_file()

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add lines to ``metrics.jsonl`` in one write, on disk when this returns."""
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        with naming_file(self.metrics_path), self.metrics_path.open("a", encoding="utf-8") as file:
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
        kept = b""
        if size:
            with self.metrics_path.open("rb") as file:
                kept = file.read(size)
        write_bytes(self.metrics_path, kept)
        for partial in self.path.glob(".*.partial"):  # a process was killed while it wrote
            partial.unlink()
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

    def ended(self) -> bool:
        """Whether there is a summary; one that is damaged is an error."""
        try:
            return self.summary() is not None
        except (OSError, ValueError) as error:
            file = self.path / "summary.json"
            raise CheckpointError(
                f"{file} cannot be read: {error}.  Delete it; protea resume {self.path} makes it again."
            ) from error
