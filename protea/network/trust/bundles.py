"""Bundles: one file that a coordinator gives a site, with address, keys, certificates and the task."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ConfigDict, NonNegativeInt, TypeAdapter, ValidationError

from protea.core.errors import ConfigError
from protea.network import task as tasks
from protea.network.task import Task
from protea.network.trust.keys import coordinator_key, public_of_site, refuse_no_certificate, write_private

FILES = {"bundle.json", "task.toml", "coordinator.pub", "ca.crt", "site.key", "public.safetensors"}
LARGEST = {"public.safetensors": 4 * 2**30}  # bytes that a file in a bundle may have
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
        """The site's private key; ``None`` without TLS."""
        return self.folder / "site.key" if self.invitation.tls else None

    @property
    def public(self) -> Path | None:
        """The file of public inputs; ``None`` if the task has none."""
        path = self.folder / "public.safetensors"
        return path if path.exists() else None


def pack_bundle(invitation: Invitation, files: dict[str, bytes]) -> bytes:
    """Return a bundle as the bytes of a zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {"bundle.json": json.dumps(asdict(invitation), indent=2).encode(), **files}.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def read_bundle(path: Path) -> dict[str, bytes]:
    """Read the files of a bundle, all checked; raise :class:`ConfigError` for a file that is no bundle."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
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
            files = {info.filename: archive.read(info) for info in infos}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:  # packed otherwise
        raise ConfigError(f"{path} is not a bundle of Protea's: {error}.") from error
    invitation = read_invitation(files.get("bundle.json", b""), str(path))
    needed = {"task.toml", "coordinator.pub"} | ({"ca.crt", "site.key"} if invitation.tls else set())
    if missing := sorted(needed - files.keys()):
        raise ConfigError(f"{path} is not whole: {missing[0]} is missing.")
    check_bundle(files, str(path))
    return files


def check_bundle(files: dict[str, bytes], where: str) -> None:
    """Raise :class:`ConfigError` for files of a bundle that a site could not use: task, keys, certificate."""
    try:
        text = files["task.toml"].decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: task.toml is not text: {error}") from error
    tasks.parse_task(text, f"{where}: task.toml")
    try:
        coordinator_key(files["coordinator.pub"])
        if "site.key" in files:
            public_of_site(files["site.key"])
        if "ca.crt" in files:
            refuse_no_certificate(files["ca.crt"])
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def open_bundle(path: Path, folder: Path) -> Bundle:
    """Write the files of a bundle into a site's directory; one that is not whole is refused before that."""
    files = read_bundle(path)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name in sorted(files, key=lambda name: (name == "bundle.json", name)):  # that one says that all are there
        write_private(folder / name, files[name])
    for name in FILES - files.keys():
        (folder / name).unlink(missing_ok=True)  # of an earlier bundle
    return Bundle(folder)


def read_invitation(content: bytes, where: str) -> Invitation:
    """Read ``bundle.json``; raise :class:`ConfigError`, beginning with ``where``, for anything else."""
    try:
        invitation: Invitation = _INVITATION.validate_json(content)
    except (ValueError, ValidationError) as error:
        raise ConfigError(f"{where} is not a bundle of Protea's: bundle.json cannot be read: {error}") from error
    for name, text in (("site", invitation.site), ("address", invitation.address)):
        if not text.isprintable() or len(text) > LONGEST:
            raise ConfigError(f"{where} is not a bundle of Protea's: its {name} is {text[:LONGEST]!r}.")
    if invitation.format != FORMAT:
        raise ConfigError(f"{where} has format {invitation.format}; this version of Protea reads {FORMAT}.")
    return invitation
