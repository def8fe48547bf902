"""Where the files of a data set are: on this machine, or else with its authors.

They are looked for in ``$PROTEA_DATA``, the user's cache (``~/.cache/protea`` on Linux) and
``/usr/share/datasets``.  Downloads are checked by a checksum.  Files that are found are checked by
their own structure (sizes, magic numbers, gzip's checksum), so that a subset in the official
format is accepted too.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from protea.core import data_places
from protea.core.data_places import complete_folder
from protea.core.data_places import find_file as find_file  # for sources
from protea.core.errors import DataError
from protea.data.download import Remote, fetch

SYSTEM = data_places.SYSTEM


def data_folders() -> list[Path]:
    """Return the folders to look in, in this order; downloads go to the first."""
    return data_places.data_places(SYSTEM)


@dataclass(frozen=True)
class SourceFiles:
    """The files that a source reads, the folders they may be in, and where they can be downloaded."""

    name: str
    folders: Sequence[str]  # relative to each of data_folders(); the first is where the files are to go
    files: Sequence[str]
    remotes: Sequence[Remote]

    @property
    def places(self) -> list[Path]:
        """All folders that are looked in."""
        return [root / folder for root in data_folders() for folder in self.folders]

    def folder(self) -> Path | None:
        """Return the first folder that holds all the files, plain or as .gz; ``None`` if there is none."""
        return complete_folder(self.places, self.files)

    def find(self) -> Path:
        """Return the folder that holds the files; download them if there is none."""
        if (place := self.folder()) is not None:
            return place
        target = data_folders()[0] / self.name
        try:
            for remote in self.remotes:
                fetch(remote, target)
        except DataError as error:
            raise DataError(self.missing(error)) from error
        if (place := self.folder()) is None:
            raise DataError(
                f"{self.name} was downloaded to {target}, but what was in it is not {', '.join(self.files)}."
            )
        return place

    def missing(self, error: DataError) -> str:
        """Return the message for files that are not here and could not be downloaded."""
        partly = next((place for place in self.places if place.is_dir()), None)
        lacking = [file for file in self.files if partly and not find_file(partly, file)]
        return (
            f"{self.name} is not on this machine and could not be downloaded.\n  {error}\n"
            f"  Looked in: {', '.join(map(str, self.places))}.\n"
            + (f"  {partly} is there, but lacks {', '.join(lacking)}.\n" if partly else "")
            + f"  Put {', '.join(self.files)} into {self.places[0]},\n"
            f"  or set PROTEA_DATA to the folder that holds {self.folders[0]}.\n"
            f"  Its authors have it at {', '.join(remote.url for remote in self.remotes)}."
        )


def user_path(path: str) -> Path:
    """Return the path of a user's file or folder: as named, or below ``$PROTEA_DATA``."""
    places = [Path(path).expanduser()]
    if root := os.environ.get("PROTEA_DATA"):
        places.append(Path(root).expanduser() / path)
    for place in places:
        if place.exists():
            return place
    raise DataError(f"There is no {path}.  Looked for {' and '.join(str(place.absolute()) for place in places)}.")


def read_content(path: Path) -> bytes:
    """Read all bytes of a file, unpacked if it is a .gz."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged or cut short ({error}).  Remove it and get it again.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
