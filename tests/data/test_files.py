"""Finding and fetching, against a server on this machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from protea.core.errors import DataError
from protea.data import files
from protea.data.download import Remote, fetch


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder and the address it is served at."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for data, and no other."""
    monkeypatch.setenv("PROTEA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(files, "SYSTEM", tmp_path / "system")
    return tmp_path / "data"


def sha256(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def tar(name: str, content: bytes = b"inside") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def entries(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_file_is_fetched_checked_and_named(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, site = served
    (folder / "labels.mat").write_bytes(b"abc")
    md5 = "md5:900150983cd24fb0d6963f7d28e17f72"  # of abc, RFC 1321
    fetch(Remote(f"{site}/labels.mat", md5), tmp_path / "data")
    assert (tmp_path / "data/labels.mat").read_bytes() == b"abc"
    assert entries(tmp_path / "data") == ["labels.mat"]


def test_a_wrong_checksum_leaves_nothing_behind(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, site = served
    (folder / "labels.mat").write_bytes(b"abd")
    with pytest.raises(DataError, match=r"instead of sha256:.*\n.*damaged on the way"):
        fetch(Remote(f"{site}/labels.mat", sha256(b"abc")), tmp_path / "data")
    assert entries(tmp_path / "data") == []


def test_archives_are_unpacked(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, site = served
    (folder / "one.tar.gz").write_bytes(tar("bin/a.bin"))
    with zipfile.ZipFile(folder / "two.zip", "w") as archive:
        archive.writestr("deep/er/b.txt", "b")
    for name in ("one.tar.gz", "two.zip"):
        fetch(Remote(f"{site}/{name}", sha256((folder / name).read_bytes())), tmp_path / "data")
    assert entries(tmp_path / "data") == ["bin", "bin/a.bin", "deep", "deep/er", "deep/er/b.txt"]


def test_an_archive_does_not_write_elsewhere(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, site = served
    (folder / "evil.tgz").write_bytes(tar("../../evil"))
    with pytest.raises(DataError, match="cannot be unpacked"):
        fetch(Remote(f"{site}/evil.tgz", sha256((folder / "evil.tgz").read_bytes())), tmp_path / "data")
    assert entries(tmp_path / "data") == []
    assert not (tmp_path / "evil").exists()


def test_a_damaged_archive_and_one_already_there_are_refused(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, site = served
    (folder / "bad.zip").write_bytes(b"not a zip")
    with pytest.raises(DataError, match="cannot be unpacked"):
        fetch(Remote(f"{site}/bad.zip", sha256(b"not a zip")), tmp_path / "data")
    (folder / "one.tgz").write_bytes(tar("bin/a.bin"))
    (tmp_path / "data/bin").mkdir(parents=True)
    with pytest.raises(DataError, match="is there already but not complete"):
        fetch(Remote(f"{site}/one.tgz", sha256((folder / "one.tgz").read_bytes())), tmp_path / "data")


def test_what_is_not_here_is_fetched_once(served: tuple[Path, str], data_folder: Path) -> None:
    folder, site = served
    (folder / "toy.tgz").write_bytes(tar("toy-bin/a.bin"))
    remote = Remote(f"{site}/toy.tgz", sha256((folder / "toy.tgz").read_bytes()))
    places = ("toy-bin", "toy/toy-bin")
    assert files.SourceFiles("toy", places, ["a.bin"], [remote]).find() == data_folder / "toy/toy-bin"
    (folder / "toy.tgz").unlink()
    assert files.SourceFiles("toy", places, ["a.bin"], [remote]).find() == data_folder / "toy/toy-bin"


def test_an_archive_of_something_else_is_refused(served: tuple[Path, str], data_folder: Path) -> None:
    folder, site = served
    (folder / "toy.tgz").write_bytes(tar("toy-bin/b.bin"))
    remote = Remote(f"{site}/toy.tgz", sha256((folder / "toy.tgz").read_bytes()))
    with pytest.raises(DataError, match=r"what was in it is not a.bin"):
        files.SourceFiles("toy", ["toy/toy-bin"], ["a.bin"], [remote]).find()


def test_offline_the_message_says_what_goes_where(data_folder: Path) -> None:
    (data_folder / "toy").mkdir(parents=True)
    (data_folder / "toy/a.bin").write_bytes(b"a")
    remote = Remote("http://127.0.0.1:9/toy.tgz", "md5:0")
    with pytest.raises(DataError) as caught:
        files.SourceFiles("toy", ["toy"], ["a.bin", "b.bin"], [remote]).find()
    message = str(caught.value)
    assert "http://127.0.0.1:9/toy.tgz" in message
    assert f"Put a.bin, b.bin into {data_folder / 'toy'}" in message
    assert f"{data_folder / 'toy'} is there, but lacks b.bin" in message


def test_a_missing_address_leaves_no_folder_behind(served: tuple[Path, str], data_folder: Path) -> None:
    _, site = served
    with pytest.raises(DataError, match="404"):
        files.SourceFiles("toy", ["toy"], ["a.bin"], [Remote(f"{site}/toy.tgz", "md5:0")]).find()
    assert not data_folder.exists()


def test_own_folder_first_then_the_cache_then_the_systems(data_folder: Path, tmp_path: Path) -> None:
    for root in (tmp_path / "system", tmp_path / "home/.cache/protea", data_folder):
        (root / "toy").mkdir(parents=True)
        (root / "toy/a.bin.gz").write_bytes(gzip.compress(b"a"))
        assert files.SourceFiles("toy", ["toy"], ["a.bin"], []).find() == root / "toy"


def test_a_users_path_is_looked_for_here_and_below_protea_data(data_folder: Path) -> None:
    data_folder.mkdir()
    (data_folder / "mine.csv").touch()
    assert files.user_path("mine.csv") == data_folder / "mine.csv"
    with pytest.raises(DataError, match=r"There is no other.csv.*data/other.csv"):
        files.user_path("other.csv")


def test_a_gz_cut_short_or_not_a_gz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"a" * 1000)[:-12])
    with pytest.raises(DataError, match="damaged or cut short"):
        files.read_content(path)
    path.write_bytes(b"plain")
    with pytest.raises(DataError, match="damaged or cut short"):
        files.read_content(path)
    with pytest.raises(DataError, match="cannot be read"):
        files.read_content(tmp_path / "none")
