"""Where ``module:name`` is looked for: where Python looks, and beside the experiment file.

A run's directory is a record, and nothing in it is imported.  Its ``environment.json`` names the folders of own modules
that the run was begun with.  These are used again if it was this user who has run experiments from there before: a
directory that comes from elsewhere cannot name folders to import from.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from protea.core.files import user_cache

ENVIRONMENT = "environment.json"


def add_folder_of(file: Path) -> None:
    """Let modules beside an experiment file be found, last of all, so that they hide nothing."""
    folder = file.absolute().parent
    if not (folder / ENVIRONMENT).exists():
        _append(folder)
        return
    with suppress(OSError, ValueError, TypeError):  # what is wrong with a run's file is said where it is read
        for name in json.loads((folder / ENVIRONMENT).read_bytes()).get("folders", []):
            if _note_of(Path(name)).exists():
                _append(Path(name))


def own_folders() -> list[str]:
    """Give the added folders that something was imported from, for a run's record; they count as this user's now."""
    files = [file for module in [*sys.modules.values()] if (file := getattr(module, "__file__", None))]
    found = [folder for folder in _added if any(file.startswith(f"{folder}{os.sep}") for file in files)]
    for folder in found:
        with suppress(OSError):  # without a cache, the user sets PYTHONPATH
            _note_of(Path(folder)).parent.mkdir(parents=True, exist_ok=True)
            _note_of(Path(folder)).touch()
    return found


_added: list[str] = []  # folders, in this process


def _append(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        _added.append(str(folder))


def _note_of(folder: Path) -> Path:
    """The file that says that this user has run experiments from a folder."""
    return user_cache() / "folders" / hashlib.blake2b(str(folder).encode(), digest_size=16).hexdigest()
