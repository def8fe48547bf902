"""The folders in which files of data sets are looked for, and the files in them.  Nothing here needs torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from protea.core.files import user_cache

SYSTEM = Path("/usr/share/datasets")


def data_places(system: Path = SYSTEM) -> list[Path]:
    """Return the folders to look in, in this order; downloads go to the first."""
    own = os.environ.get("PROTEA_DATA")
    return [*([Path(own).expanduser()] if own else []), user_cache(), system]


def find_file(folder: Path, name: str) -> Path | None:
    """Return the path of a file in a folder, plain or as .gz; ``None`` if it is not there."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    return None


def complete_folder(places: Sequence[Path], files: Sequence[str]) -> Path | None:
    """Return the first folder that holds all the files, plain or as .gz; ``None`` if there is none."""
    return next((place for place in places if all(find_file(place, file) for file in files)), None)
