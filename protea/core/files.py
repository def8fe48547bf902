"""Files that are whole or not there: written under a temporary name, checked by sums, guarded by locks."""

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
class FileSum:
    """The size of a file, or of its first part, in bytes, and a BLAKE2b checksum of that content."""

    bytes: int
    blake2b: str  # 32 hexadecimal digits

    @classmethod
    def of(cls, path: Path, size: int | None = None) -> FileSum:
        """Read the file, or only its first ``size`` bytes."""
        digest, count = hashlib.blake2b(digest_size=16), 0
        with path.open("rb") as file:
            while block := file.read(1 << 20 if size is None else min(1 << 20, size - count)):
                digest.update(block)
                count += len(block)
        return cls(count, digest.hexdigest())


@contextmanager
def hold_lock(path: Path, taken: str) -> Iterator[None]:
    """Hold the lock file at ``path``; raise :class:`ConfigError` with the message ``taken`` if another process does."""
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


def make_folder(path: Path) -> None:
    """Make a folder, with those above it, if it is not there; raise :class:`ConfigError` where that is impossible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be made: {error.strerror}.  Choose another directory.") from error


def user_cache() -> Path:
    """Return the user's cache folder for Protea: ``~/.cache/protea`` on Linux."""
    return Path(user_cache_dir("protea"))


def cache_folder(variable: str, name: str) -> Path:
    """Return the folder that an environment variable names or, if it is not set, ``name`` in the user's cache."""
    own = os.environ.get(variable)
    return Path(own).expanduser() if own else user_cache() / name


def unused_path(parent: Path, name: str) -> Path:
    """Return a path in ``parent`` that does not exist yet: ``name``, or ``name-2`` and so on."""
    path, count = parent / name, 1
    while path.exists():
        count += 1
        path = parent / f"{name}-{count}"
    return path


@contextmanager
def temporary_path(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Give a hidden name beside ``path`` to write to; a file that still has it at the end is removed.

    ``shared`` is for files that several processes may write at once: the name then has this process's number.
    """
    number = f".{os.getpid()}" if shared else ""
    partial = path.with_name(f".{path.name}{number}.partial")
    try:
        yield partial
    finally:
        with suppress(OSError):
            if partial.exists():
                partial.unlink()  # a full disk has use for the room


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Give a temporary path, as :func:`temporary_path` does, and rename it to ``path`` if nothing went wrong."""
    with temporary_path(path, shared=shared) as partial:
        yield partial
        partial.replace(path)


@contextmanager
def writing(path: Path, *, shared: bool = False) -> Iterator[IO[bytes]]:
    """Open a file for bytes that gets its name only once it is whole and on disk."""
    with replacing(path, shared=shared) as partial, partial.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file: a reader, or a process that starts after a crash, never sees half of it."""
    with naming_file(path), writing(path) as file:
        file.write(content)


@contextmanager
def private_to_owner() -> Iterator[None]:
    """Let files that are made within be read by their owner only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def write_private(path: Path, content: bytes) -> None:
    """Write a whole file that only its owner can read."""
    with private_to_owner():
        write_bytes(path, content)


def write_text(path: Path, text: str) -> None:
    """Write a whole file of UTF-8 text."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a whole file of indented JSON."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_part(path: Path, part: bytes, *, last: bool) -> None:
    """Append one part to a file that arrives in several; it gets its name with the ``last`` one."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("ab") as file:
        file.write(part)
    if last:
        partial.replace(path)


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Put the name of this file into errors of the operating system: a full disk, for one, names none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync_folder(folder: Path) -> None:
    """Have the operating system write the names in a folder to disk, as ``fsync`` does for the content of files."""
    if os.name == "posix":
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON together with a checksum of its content."""
    write_json(path, {**value, "sum": checksum_of(value)})


def read_sealed(path: Path) -> dict[str, Any]:
    """Read what :func:`write_sealed` wrote; raise :class:`CheckpointError` if it is missing, damaged or changed."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        known = value.pop("sum")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error!r}.") from error
    if known != checksum_of(value):
        raise CheckpointError(f"{path} is damaged: it does not agree with its checksum.")
    return dict(value)


def checksum_of(value: Mapping[str, Any]) -> str:
    """Return a checksum of plain values that does not depend on the order of their names.

    >>> checksum_of({"a": 1, "b": 2}) == checksum_of({"b": 2, "a": 1})
    True
    """
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()
