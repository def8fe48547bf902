"""Downloads: a file is checked before it gets its name, so it is whole or not there."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import tarfile
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from protea.core.errors import DataError
from protea.core.files import temporary_path


@dataclass(frozen=True)
class Remote:
    """A file as its authors publish it, with the checksum they give: ``md5:...`` or ``sha256:...``."""

    url: str
    digest: str

    @property
    def name(self) -> str:
        """The name of the file: the last part of its address."""
        return self.url.rsplit("/", 1)[1]


def fetch(remote: Remote, folder: Path) -> None:
    """Download a file into a folder, and check it; of an archive, its content."""
    try:
        with temporary_path(folder / remote.name, shared=True) as partial:
            found = download(remote, partial)
            if found != remote.digest:
                raise DataError(
                    f"{remote.url} gave a file with {found} instead of {remote.digest}:\n"
                    f"  it was damaged on the way, or has been changed."
                )
            if remote.name.endswith((".zip", ".tgz", ".tar.gz")):
                unpack_archive(partial, folder)
            else:
                partial.replace(folder / remote.name)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{remote.url} could not be fetched into {folder}: {error}.") from error


def download(remote: Remote, target: Path) -> str:
    """Write what the address gives to ``target``, and return its digest, as in ``Remote.digest``."""
    algorithm = remote.digest.partition(":")[0]
    digest = hashlib.new(algorithm, usedforsecurity=False)
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with (
        urllib.request.urlopen(remote.url, timeout=30) as answer,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        size = answer.headers.get("Content-Length")
        task = progress.add_task(remote.name, total=int(size) if size else None)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            while chunk := answer.read(2**20):
                file.write(chunk)
                digest.update(chunk)
                progress.advance(task, len(chunk))
    return f"{algorithm}:{digest.hexdigest()}"


# Python before 3.11.4 has no filters; plain_members refuses what matters of what they refuse.
SAFE: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def plain_members(tar: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """List the files and folders of an archive; links, devices and paths that lead out of it are refused."""
    members = tar.getmembers()
    for member in members:
        place = PurePosixPath(member.name)
        if not (member.isreg() or member.isdir()) or place.is_absolute() or ".." in place.parts:
            raise tarfile.TarError(f"{member.name!r} is a link or a device, or leads out of the archive's folder")
        member.mode = 0o755 if member.isdir() else 0o644
    return members


def unpack_archive(archive: Path, folder: Path) -> None:
    """Unpack an archive in a temporary folder, and rename what is in it into ``folder``."""
    inside = archive.with_suffix(".unpacked")
    inside.mkdir()
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(inside)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(inside, plain_members(tar), **SAFE)
        for entry in inside.iterdir():
            if (folder / entry.name).exists():
                raise DataError(f"{folder / entry.name} is there already but not complete.  Remove or rename it.")
            entry.rename(folder / entry.name)
    except (tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(f"The archive cannot be unpacked: {error}.") from error
    finally:
        shutil.rmtree(inside, ignore_errors=True)
