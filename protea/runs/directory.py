"""A run's directory: the one place where a run writes its files.

    config.toml        the full resolved config; run it again with this file alone
    environment.json   versions, machine, threads; a checksum of config.toml and of itself
    partition.json     who has which samples
    metrics.jsonl      a line on the data, then one per round and one per client in it; append-only
    summary.json       the headline numbers, once the run has ended; the gain over runs beside it
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
from protea.core.shell import quoted

LOCK = ".lock"
# Files that may exist before config.toml does.
BEFORE = {LOCK, "environment.json", ".environment.json.partial", ".config.toml.partial"}


class RunDirectory:
    """The directory of one run, whose files are listed at the top of this module."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.go_on = f"protea resume {quoted(path)}"  # the command that resumes the run, named in error messages

    @classmethod
    def create(cls, path: Path, config: str, environment: Mapping[str, Any]) -> RunDirectory:
        """Make the directory of a new run.  A directory that holds anything else is refused, never overwritten.

        ``config.toml`` is written last: a directory that has it holds a run that can be resumed.
        """
        cls.refuse_taken(path)
        run = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            with run.held():
                cls.refuse_taken(path)  # again: another process may have been faster
                mark = hashlib.blake2b(config.encode(), digest_size=16).hexdigest()
                write_sealed(path / "environment.json", {**environment, "config": mark})
                write_text(path / "config.toml", config)
                run.metrics_path.touch()
        except OSError as error:
            raise ConfigError(f"{path} cannot be made: {error.strerror}.  Choose another --out.") from error
        return run

    @staticmethod
    def refuse_taken(path: Path) -> None:
        """Raise unless the path is new, empty, or left by a run that was stopped before it began."""
        if path.exists() and (not path.is_dir() or any(file.name not in BEFORE for file in path.iterdir())):
            raise ConfigError(
                f"{path} exists and is not empty.  Choose another --out, or continue it: protea resume {quoted(path)}"
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock of the run, so that no other process writes to it; raise if another holds it."""
        taken = f"{self.path} is being written by another process.  Wait, or stop that one."
        with hold_lock(self.path / LOCK, taken):
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn a failure to write into a :class:`CheckpointError` that says how to resume the run."""
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
        """Open the directory of an existing run; raise :class:`ConfigError` if there is none."""
        if (path / "sweep.json").is_file():
            raise ConfigError(f"{path} is a sweep.  To go on with it, type the command again that started it.")
        if not (path / "config.toml").is_file():
            raise ConfigError(f"{path} is not a run directory: it has no config.toml.")
        return cls(path)

    def check(self) -> None:
        """Raise :class:`CheckpointError` if ``config.toml`` was changed since the run was made."""
        known, config = read_sealed(self.path / "environment.json").get("config"), self.path / "config.toml"
        if known != FileSum.of(config).blake2b:
            raise CheckpointError(
                f"{config} is not as it was when the run was made: environment.json has another checksum of it.\n"
                f"  Undo the change, or run it anew: protea run {quoted(config)} --out NEW"
            )

    @property
    def config_path(self) -> Path:
        """The file of settings.  A directory that has it holds a run."""
        return self.path / "config.toml"

    @property
    def partition_path(self) -> Path:
        """The file that says which client has which samples."""
        return self.path / "partition.json"

    @property
    def metrics_path(self) -> Path:
        """The file of results, one JSON object in each line."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of all checkpoints."""
        return self.path / "checkpoints"

    @property
    def begun(self) -> bool:
        """Whether the directory holds a run, which can be read or resumed."""
        return self.config_path.is_file()

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append lines to ``metrics.jsonl`` in one write; they are on disk when this returns."""
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        with naming_file(self.metrics_path), self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of ``metrics.jsonl``, as far as they are complete."""
        with self.metrics_path.open(encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):  # else another process is still writing it
                    yield read_line(line)

    def cut(self, size: int, round: int) -> None:
        """Cut off what came after a checkpoint: all but the first ``size`` bytes of the metrics, and later snapshots.

        Snapshots of prototypes are kept up to ``round``.
        """
        kept = b""
        if size:
            with self.metrics_path.open("rb") as file:
                kept = file.read(size)
        write_bytes(self.metrics_path, kept)
        for partial in self.path.glob(".*.partial"):  # left by a process that was killed while it wrote
            partial.unlink()
        for later in [path for number, path in self.snapshots().items() if number > round]:
            later.unlink()

    def keep_snapshot(self, round: int, content: bytes) -> None:
        """Write the prototypes after a round, in safetensors format."""
        (self.path / "prototypes").mkdir(exist_ok=True)
        write_bytes(self.path / "prototypes" / f"{round:06d}.safetensors", content)

    def snapshots(self) -> dict[int, Path]:
        """Return the files of prototypes by round."""
        return {int(path.stem): path for path in sorted((self.path / "prototypes").glob("[0-9]*.safetensors"))}

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``, which marks the run as ended."""
        write_json(self.path / "summary.json", summary)

    def summary(self) -> dict[str, Any] | None:
        """Read ``summary.json``; None if the run has not ended."""
        path = self.path / "summary.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def ended(self) -> bool:
        """Return whether the run has ended; raise :class:`CheckpointError` if its summary is damaged."""
        try:
            return self.summary() is not None
        except (OSError, ValueError) as error:
            file = self.path / "summary.json"
            raise CheckpointError(
                f"{file} cannot be read: {error}.  Delete it; protea resume {quoted(self.path)} makes it again."
            ) from error


def read_line(line: str) -> dict[str, Any]:
    """Read a line of JSON; :class:`ValueError` for anything else."""
    try:
        found: dict[str, Any] = json.loads(line)
    except RecursionError:
        raise ValueError("a line is nested too deep") from None
    return found
