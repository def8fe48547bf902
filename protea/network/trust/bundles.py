"""Bundles: one file that a coordinator gives a site, with address, keys, certificates and the task.

To a site that made its own key a bundle brings no private one: ``site.pub`` says which key the bundle is for.
"""

from __future__ import annotations

import io
import json
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ConfigDict, NonNegativeInt, TypeAdapter

from protea.config.complaints import complaint
from protea.core.errors import ConfigError
from protea.core.files import naming_file, private_to_owner, write_private, writing
from protea.network import task as tasks
from protea.network.task import Task
from protea.network.trust.chain import CHAIN, check_chain
from protea.network.trust.keys import coordinator_key, public_of_site, refuse_no_certificate
from protea.network.trust.requests import KEY, NEXT
from protea.network.trust.signatures import SiteKey, fingerprint, site_public_key

PUBLIC_KEY = "site.pub"
PUBLIC = "public.safetensors"  # the only file that may be large: it goes to disk block by block
FILES = {"bundle.json", "task.toml", "coordinator.pub", CHAIN, "ca.crt", KEY, PUBLIC_KEY, PUBLIC}
LARGEST = {PUBLIC: 4 * 2**30}  # bytes that a file in a bundle may have
SMALL = 2**20  # bytes that the other files may have
DENSE = 100  # times as large as its packed form a file may be; what is denser was made to fill a disk
FORMAT = 1
LONGEST = 300  # characters of a site's name, or of an address


@dataclass(frozen=True)
class Invitation:
    """The content of ``bundle.json``: where a site connects, and as whom."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")

    format: int
    site: str  # its name
    id: NonNegativeInt  # its number as a client
    address: str  # host:port of the SuperLink
    tls: bool


_INVITATION = TypeAdapter(Invitation)


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files are in a site's directory."""

    folder: Path

    @property
    def invitation(self) -> Invitation:
        """Where the site connects, and as whom."""
        return read_invitation((self.folder / "bundle.json").read_bytes(), str(self.folder))

    @property
    def task(self) -> Task:
        """The task that all parties agree on."""
        return tasks.load_task(self.folder / "task.toml")

    @property
    def coordinator(self) -> bytes:
        """The coordinator's public key, PEM."""
        return (self.folder / "coordinator.pub").read_bytes()

    @property
    def ca(self) -> Path | None:
        """The certificate of the federation's CA; ``None`` without TLS."""
        return self.folder / "ca.crt" if self.invitation.tls else None

    @property
    def key(self) -> Path | None:
        """The site's private key: the coordinator's gift, or the site's own; ``None`` without TLS."""
        if not self.invitation.tls:
            return None
        return given if (given := self.folder / KEY).exists() else self.folder.parent / KEY

    @property
    def public(self) -> Path | None:
        """The file of public inputs; ``None`` if the task has none."""
        path = self.folder / PUBLIC
        return path if path.exists() else None


def pack_bundle(invitation: Invitation, files: dict[str, bytes]) -> bytes:
    """Return a bundle as the bytes of a zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {"bundle.json": json.dumps(asdict(invitation), indent=2).encode(), **files}.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def read_bundle(path: Path) -> dict[str, bytes]:
    """Read the small files of a bundle, all checked; raise :class:`ConfigError` for a file that is no bundle.

    Public inputs may be large.  They are looked through for damage, but not kept in memory.
    """
    files: dict[str, bytes] = {}
    try:
        with opened(path) as archive:
            for info in archive.infolist():
                if info.filename != PUBLIC:
                    files[info.filename] = archive.read(info)
                    continue
                with archive.open(info) as content:
                    while content.read(SMALL):
                        pass
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    invitation = read_invitation(files.get("bundle.json", b""), str(path))
    needed = {"task.toml", "coordinator.pub"} | ({"ca.crt"} if invitation.tls else set())
    if invitation.tls and PUBLIC_KEY not in files:
        needed.add(KEY)
    if missing := sorted(needed - files.keys()):
        raise ConfigError(f"{path} is not whole: {missing[0]} is missing.")
    check_bundle(files, str(path))
    return files


@contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a bundle whose table of contents holds what it should; damage found within is :class:`ConfigError` too."""
    try:
        with zipfile.ZipFile(path) as archive:
            check_contents(archive.infolist(), path)
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:  # packed otherwise
        raise ConfigError(f"{path} is not a bundle of Protea's: {error}.") from error


def check_contents(infos: list[zipfile.ZipInfo], path: Path) -> None:
    """Raise :class:`ConfigError` for files that no bundle has, that are there twice, or that unpack to too much."""
    names = [info.filename for info in infos]
    if odd := sorted(set(names) - FILES):
        raise ConfigError(f"{path} is not a bundle of Protea's: {odd[0]!r} is in it.")
    large = [info for info in infos if info.file_size > LARGEST.get(info.filename, SMALL)]
    if large or len(set(names)) < len(names):
        raise ConfigError(f"{path} is not a bundle of Protea's: a file is in it twice, or too large.")
    if dense := [info for info in infos if info.file_size > SMALL + DENSE * info.compress_size]:
        raise ConfigError(
            f"{path} is not a bundle of Protea's: {dense[0].filename} says that {dense[0].compress_size:,} "
            f"bytes unpack to {dense[0].file_size:,}."
        )


def check_bundle(files: dict[str, bytes], where: str) -> None:
    """Raise :class:`ConfigError` for files of a bundle that a site could not use: task, keys, certificate."""
    try:
        text = files["task.toml"].decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: task.toml is not text: {error}") from error
    tasks.parse_task(text, f"{where}: task.toml")
    try:
        coordinator_key(files["coordinator.pub"])
        if KEY in files:
            public_of_site(files[KEY])
        if PUBLIC_KEY in files:
            site_public_key(files[PUBLIC_KEY])
        if CHAIN in files:
            check_chain(files[CHAIN])
        if "ca.crt" in files:
            refuse_no_certificate(files["ca.crt"])
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def open_bundle(path: Path, folder: Path) -> Bundle:
    """Write the files of a bundle into a site's directory; one that is not whole is refused before that."""
    files = read_bundle(path)
    taken = key_for(files, folder.parent, path)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    if taken is not None:
        taken.replace(folder.parent / KEY)
    public = unpack_public(path, folder)
    for name in sorted(files, key=lambda name: (name == "bundle.json", name)):  # that one says that all are there
        write_private(folder / name, files[name])
    for name in FILES - files.keys() - public:
        (folder / name).unlink(missing_ok=True)  # of an earlier bundle
    return Bundle(folder)


def unpack_public(path: Path, folder: Path) -> set[str]:
    """Copy the public inputs of a bundle into a folder, block by block; return the names that the folder now has."""
    with opened(path) as archive:
        if PUBLIC not in archive.namelist():
            return set()
        place = folder / PUBLIC
        with archive.open(PUBLIC) as content, private_to_owner(), naming_file(place), writing(place) as file:
            shutil.copyfileobj(content, file, SMALL)
    return {PUBLIC}


def key_for(files: dict[str, bytes], site: Path, path: Path) -> Path | None:
    """Return the file of a site's next key, if a bundle is for that one; None if it is for the key that it has.

    :class:`ConfigError` if the bundle is for a key that is not in this directory.
    """
    if KEY in files or PUBLIC_KEY not in files:
        return None
    wanted = site_public_key(files[PUBLIC_KEY])
    for name in (NEXT, KEY):
        if (site / name).exists() and SiteKey((site / name).read_bytes()).key.public_key() == wanted:
            return site / name if name == NEXT else None
    raise ConfigError(
        f"{path} is for the key {fingerprint(files[PUBLIC_KEY])}, which is not in {site}.  Open it in the directory in "
        f"which the request was made; or ask anew: protea site request NAME --dir {site}"
    )


def read_invitation(content: bytes, where: str) -> Invitation:
    """Read ``bundle.json``; raise :class:`ConfigError`, beginning with ``where``, for anything else."""
    try:
        invitation: Invitation = _INVITATION.validate_json(content)
    except ValueError as error:
        raise ConfigError(
            f"{where} is not a bundle of Protea's: bundle.json cannot be read: {complaint(error)}."
        ) from error
    for name, text in (("site", invitation.site), ("address", invitation.address)):
        if not text.isprintable() or len(text) > LONGEST:
            raise ConfigError(f"{where} is not a bundle of Protea's: its {name} is {text[:LONGEST]!r}.")
    if invitation.format != FORMAT:
        raise ConfigError(f"{where} has format {invitation.format}; this version of Protea reads {FORMAT}.")
    return invitation
