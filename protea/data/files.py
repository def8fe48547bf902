"""Where the files of a data set are: on this machine, or else with its authors.

Looked for in ``$PROTEA_DATA``, ``~/.cache/protea`` and ``/usr/share/datasets``.  A checksum
guards what is downloaded.  What was found is guarded by its own structure (sizes, magic
numbers, gzip's checksum), so that a subset in the official layout is accepted too.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from protea.data.download import Remote, fetch
from protea.errors import DataError

SYSTEM = Path("/usr/share/datasets")


def roots() -> list[Path]:
    """Where to look, in this order; downloads go to the first."""
    own = os.environ.get("PROTEA_DATA")
    return [*([Path(own).expanduser()] if own else []), Path.home() / ".cache" / "protea", SYSTEM]


def find(name: str, folders: Sequence[str], files: Sequence[str], remotes: Sequence[Remote]) -> Path:
    """The first folder that holds all the files, plain or as .gz; if there is none, they are downloaded.

    ``folders`` are relative to a root; the first is where the files are to go.
    """
    places = [root / folder for root in roots() for folder in folders]
    for place in places:
        if all(present(place, file) for file in files):
            return place
    home = roots()[0] / name
    partly = next((place for place in places if place.is_dir()), None)
    try:
        for remote in remotes:
            fetch(remote, home)
    except DataError as error:
        missing = [file for file in files if partly and not present(partly, file)]
        raise DataError(
            f"{name} is not on this machine and could not be downloaded.\n  {error}\n"
            f"  Looked in: {', '.join(map(str, places))}.\n"
            + (f"  {partly} is there, but lacks {', '.join(missing)}.\n" if partly else "")
            + f"  Put {', '.join(files)} into {places[0]},\n"
            f"  or set PROTEA_DATA to the folder that holds {folders[0]}.\n"
            f"  Its authors have it at {', '.join(remote.url for remote in remotes)}."
        ) from error
    for place in places:
        if all(present(place, file) for file in files):
            return place
    raise DataError(f"{name} was downloaded to {home}, but what was in it is not {', '.join(files)}.")


def present(folder: Path, name: str) -> Path | None:
    """The file of this name, plain or as .gz."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    return None


def own(path: str) -> Path:
    """A file or folder of the user's: as named, or below ``$PROTEA_DATA``."""
    places = [Path(path).expanduser()]
    if root := os.environ.get("PROTEA_DATA"):
        places.append(Path(root).expanduser() / path)
    for place in places:
        if place.exists():
            return place
    raise DataError(f"There is no {path}.  Looked for {' and '.join(str(place.absolute()) for place in places)}.")


def content(path: Path) -> bytes:
    """All bytes of a file, unpacked if it is a .gz."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged or cut short ({error}).  Remove it and get it again.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
