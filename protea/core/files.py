"""Files that are whole or not there: written under another name, checked by sums, guarded by locks."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_dir

from protea.core.errors import CheckpointError, ConfigError


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


@contextmanager
def locked(path: Path, taken: str) -> Iterator[None]:
    """Hold the lock file at ``path``; :class:`ConfigError` with the words ``taken`` if another process holds it."""
    lock = FileLock(path, blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise ConfigError(taken) from error
    except NotImplementedError:
        pass  # a file system without locks: two processes are not told apart
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error
    try:
        yield
    finally:
        lock.release()


def cache_folder(variable: str, name: str) -> Path:
    """Where something is kept for later runs: the folder that an environment variable names, or the user's cache."""
    own = os.environ.get(variable)
    return Path(own).expanduser() if own else Path(user_cache_dir("protea")) / name


def fresh(parent: Path, name: str) -> Path:
    """A path in ``parent`` that is not taken: ``name``, or ``name-2`` and so on."""
    path, count = parent / name, 1
    while path.exists():
        count += 1
        path = parent / f"{name}-{count}"
    return path


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that gets its name only once it is whole: a reader never sees half of it."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()  # a full disk has use for the room
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file that is whole or not there."""
    with named(path), whole_file(path) as file:
        file.write(content)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """An error of the system within names this file: a disk that is full names none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync(folder: Path) -> None:
    """Have the names in a folder on disk, as its files are."""
    if os.name == "posix":
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON with a checksum of its content."""
    write_json(path, {**value, "sum": seal(value)})


def read_sealed(path: Path) -> dict[str, Any]:
    """What :func:`write_sealed` wrote; :class:`CheckpointError` unless it is just that."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        known = value.pop("sum")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error!r}.") from error
    if known != seal(value):
        raise CheckpointError(f"{path} is damaged: it does not agree with its checksum.")
    return dict(value)


def seal(value: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()
