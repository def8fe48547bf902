"""Folders for what a process needs on disk while it runs.

Each is held by a lock that ends with its process, however that ends.  So what a killed process has left can be told
from what others still use, and is cleared away when the next folder is made.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

if sys.platform != "win32":  # which has no locks that outlast a rename, so that nothing is cleared there
    import fcntl

PREFIX = "protea-"
HELD = ".held"  # the file in a folder that its process has locked


class ScratchFolder:
    """A new folder in the system's temporary one; gone with :meth:`cleanup`, or with this object."""

    def __init__(self) -> None:
        clear_leftovers()
        new = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))  # by a name that nobody clears, until it is locked
        held = os.open(new / HELD, os.O_RDWR | os.O_CREAT, 0o600)
        if sys.platform != "win32":
            with suppress(OSError):  # a file system without locks
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = new.with_name(new.name.removeprefix("."))
        new.rename(self.path)
        self._gone = weakref.finalize(self, _remove, self.path, held)

    @property
    def name(self) -> str:
        """The path as text."""
        return str(self.path)

    def cleanup(self) -> None:
        """Remove the folder with all that is in it."""
        self._gone()


def _remove(path: Path, held: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(held)


def clear_leftovers() -> list[Path]:
    """Remove the folders of processes that are gone; give their paths."""
    found = []
    for folder in _ownerless():
        shutil.rmtree(folder, ignore_errors=True)
        found.append(folder)
    return found


def _ownerless() -> Iterator[Path]:
    """Yield this user's folders whose lock nobody holds."""
    if sys.platform == "win32":
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is another user's, or went just now
            held = folder / HELD
            if folder.is_symlink() or held.is_symlink() or held.stat().st_uid != os.getuid():
                continue
            file = os.open(held, os.O_RDWR)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield folder
            finally:
                os.close(file)
