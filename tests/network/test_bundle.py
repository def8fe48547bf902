"""What a coordinator gives a site, and the directory that it comes from."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

import places
from cryptography.hazmat.primitives.asymmetric import ed25519

from protea.core.errors import ConfigError
from protea.core.files import write_private
from protea.network.coordinator.directory import CoordinatorDirectory
from protea.network.task import new_task
from protea.network.trust import bundles as bundles
from protea.network.trust.bundles import FORMAT, SMALL, Invitation, open_bundle, pack_bundle, read_bundle
from protea.network.trust.keys import Signer, make_site_key, public_of_site

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files of a real bundle."""
    base = places.base(tmp_path_factory.mktemp("base") / "digits")
    return read_bundle(base.invite("north"))


def zipped(files: list[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files:
            archive.writestr(name, content)
    return buffer.getvalue()


def without(files: Files, name: str) -> Files:
    return {key: value for key, value in files.items() if key != name}


def told(files: Files, **changes: object) -> Files:
    """With something else in bundle.json."""
    return {**files, "bundle.json": json.dumps({**json.loads(files["bundle.json"]), **changes}).encode()}


def declared(files: Files, size: int) -> bytes:
    """A bundle whose task.toml is said to be of so many bytes, in the archive's table of contents."""
    content = bytearray(zipped(list(files.items())))
    at = content.rindex(b"task.toml") - 46  # the entry's fixed part is before its name
    assert content[at : at + 4] == b"PK\x01\x02"
    content[at + 24 : at + 28] = size.to_bytes(4, "little")
    return bytes(content)


def damaged(files: Files) -> bytes:
    """Packed, with rubble where the packed task was."""
    content = bytearray(
        pack_bundle(Invitation(FORMAT, "north", 0, "localhost:8443", True), without(files, "bundle.json"))
    )
    at = content.index(b"task.toml") + len("task.toml")
    content[at : at + 40] = bytes(range(40))
    return bytes(content)


def locked(files: Files) -> bytes:
    """Marked as encrypted."""
    content = bytearray(zipped(list(files.items())))
    for sign, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.index(sign)
        content[at + offset] |= 1
    return bytes(content)


def with_packed_point(key: bytes) -> bytes:
    """A site's key whose public point has the mark of the compressed form."""
    return changed_pem(key, lambda body: body.replace(b"\x00\x00\x00\x61\x04", b"\x00\x00\x00\x61\x02"))


def of_version_eight(certificate: bytes) -> bytes:
    """A certificate that says it is of X.509's version 8, of which there are three."""
    return changed_pem(certificate, lambda body: body.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07", 1))


def changed_pem(content: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """A PEM file with other bytes in it."""
    first, *lines, last = content.strip().splitlines()
    before = base64.b64decode(b"".join(lines))
    after = change(before)
    assert after != before
    return b"\n".join([first, base64.b64encode(after), last, b""])


BAD: dict[str, tuple[Callable[[Files], bytes], str]] = {
    "nothing": (lambda files: b"", "not a bundle of Protea's"),
    "no zip": (lambda files: b"PK rubble" * 50, "not a bundle of Protea's"),
    "half of it": (lambda files: zipped(list(files.items()))[:900], "not a bundle of Protea's"),
    "damaged": (damaged, "not a bundle of Protea's"),
    "encrypted": (locked, "not a bundle of Protea's"),
    "an odd name": (lambda files: zipped([*files.items(), ("notes.txt", b"")]), "'notes.txt' is in it"),
    "a way out": (lambda files: zipped([*files.items(), ("../site.py", b"")]), "'../site.py' is in it"),
    "a way out to a known name": (lambda files: zipped([*files.items(), ("../task.toml", b"")]), "'../task.toml'"),
    "a place on the disk": (lambda files: zipped([*files.items(), ("/etc/cron.d/x", b"")]), "is in it"),
    "a folder": (lambda files: zipped([*files.items(), ("bundle/", b"")]), "'bundle/' is in it"),
    "too large by its own word": (lambda files: declared(files, SMALL + 1), "twice, or too large"),
    "too large": (lambda files: zipped([*without(files, "ca.crt").items(), ("ca.crt", bytes(SMALL + 1))]), "too large"),
    "no invitation": (lambda files: zipped(list(without(files, "bundle.json").items())), "bundle.json cannot be read"),
    "an invitation that is no JSON": (
        lambda files: zipped(list({**files, "bundle.json": b"{"}.items())),
        "bundle.json cannot be read",
    ),
    "an invitation with more": (lambda files: zipped(list(told(files, more=1).items())), "bundle.json cannot be read"),
    "a number in words": (lambda files: zipped(list(told(files, id="0").items())), "bundle.json cannot be read"),
    "a number below zero": (lambda files: zipped(list(told(files, id=-1).items())), "bundle.json cannot be read"),
    "another format": (lambda files: zipped(list(told(files, format=9).items())), f"has format 9.*reads {FORMAT}"),
    **{
        f"no {name}": (lambda files, name=name: zipped(list(without(files, name).items())), f"{name} is missing")  # type: ignore[misc]
        for name in ("task.toml", "coordinator.pub", "ca.crt", "site.key")
    },
    "a task that is no TOML": (lambda files: zipped(list({**files, "task.toml": b"["}.items())), "not a TOML file"),
    "a task that is no text": (lambda files: zipped(list({**files, "task.toml": b"\xff"}.items())), "is not text"),
    "a task that cannot run": (
        lambda files: zipped(list({**files, "task.toml": b'classes = ["a"]'}.items())),
        "two or more different names",
    ),
    "a key that is none": (lambda files: zipped(list({**files, "site.key": b"key"}.items())), "The site's key"),
    "a key of another kind": (
        lambda files: zipped(list({**files, "coordinator.pub": public_of_site(make_site_key()[0])}.items())),
        "The coordinator's key is not",
    ),
    "denser than samples are": (
        lambda files: pack_bundle(
            Invitation(FORMAT, "north", 0, "localhost:8443", True),
            {**without(files, "bundle.json"), "public.safetensors": bytes(8 * SMALL)},
        ),
        "public.safetensors says that .* bytes unpack to 8,388,608",
    ),
    "a name that writes on the screen": (
        lambda files: zipped(list(told(files, site="north\x1b[2J").items())),
        r"its site is 'north\\x1b\[2J'",
    ),
    "an address that does": (
        lambda files: zipped(list(told(files, address="h:1\r").items())),
        "its address is",
    ),
    "a task that is nested too deep": (
        lambda files: zipped(list({**files, "task.toml": b"a = " + b"[" * 100_000}.items())),
        "nested too deep",
    ),
    "a key with a point that is packed": (
        lambda files: zipped(list({**files, "site.key": with_packed_point(files["site.key"])}.items())),
        "The site's key cannot be read",
    ),
    "a certificate of a version that is not": (
        lambda files: zipped(list({**files, "ca.crt": of_version_eight(files["ca.crt"])}.items())),
        "The certificate cannot be read",
    ),
    "a certificate that is none": (lambda files: zipped(list({**files, "ca.crt": b"-"}.items())), "The certificate"),
}


@pytest.mark.parametrize(("make", "complaint"), BAD.values(), ids=BAD)
def test_what_is_no_bundle_is_refused_before_anything_is_written(
    good: Files, tmp_path: Path, make: Callable[[Files], bytes], complaint: str
) -> None:
    path, folder = tmp_path / "north.protea", tmp_path / "inside" / "bundle"
    path.write_bytes(make(good))
    with pytest.raises(ConfigError, match=complaint):
        open_bundle(path, folder)
    assert sorted(tmp_path.rglob("*")) == [path]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_is_in_it_twice_is_refused(good: Files, tmp_path: Path) -> None:
    """Readers differ in which of the two they take."""
    (tmp_path / "b.protea").write_bytes(zipped([*good.items(), ("task.toml", b'classes = ["a", "b"]')]))
    with pytest.raises(ConfigError, match="twice"):
        open_bundle(tmp_path / "b.protea", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_bundle_that_is_not_there_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "none.protea", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_bundle(path)


def test_a_bundle_comes_out_as_it_went_in(good: Files, tmp_path: Path) -> None:
    path = tmp_path / "north.protea"
    path.write_bytes(pack_bundle(Invitation(FORMAT, "north", 3, "h:1", True), without(good, "bundle.json")))
    found = open_bundle(path, tmp_path / "bundle")
    assert found.invitation == Invitation(FORMAT, "north", 3, "h:1", True)
    assert found.task.classes == places.CLASSES and found.coordinator == good["coordinator.pub"]
    assert found.ca is not None and found.ca.read_bytes() == good["ca.crt"]
    assert found.key is not None and found.key.read_bytes() == good["site.key"]
    assert found.public is None
    assert {file.name for file in (tmp_path / "bundle").iterdir()} == good.keys()


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_an_open_bundle_is_for_its_owner_only(good: Files, tmp_path: Path) -> None:
    (tmp_path / "b.protea").write_bytes(zipped([*good.items(), ("public.safetensors", b"inputs")]))
    (tmp_path / "bundle").mkdir(mode=0o755)
    open_bundle(tmp_path / "b.protea", tmp_path / "bundle")
    assert (tmp_path / "bundle").stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "bundle").iterdir()} == {0o600}


def test_a_newer_bundle_takes_the_place_of_the_old_one(good: Files, tmp_path: Path) -> None:
    """Also of what is in the old one only."""
    (tmp_path / "b.protea").write_bytes(zipped([*good.items(), ("public.safetensors", b"old")]))
    assert open_bundle(tmp_path / "b.protea", tmp_path / "bundle").public is not None
    (tmp_path / "b.protea").write_bytes(zipped(list(good.items())))
    assert open_bundle(tmp_path / "b.protea", tmp_path / "bundle").public is None


def test_public_inputs_go_to_disk_without_being_in_memory_at_once(good: Files, tmp_path: Path) -> None:
    inputs = Random(1).randbytes(24 * 2**20)
    (tmp_path / "b.protea").write_bytes(zipped([*good.items(), ("public.safetensors", inputs)]))
    tracemalloc.start()
    try:
        public = open_bundle(tmp_path / "b.protea", tmp_path / "bundle").public
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert public is not None and public.read_bytes() == inputs
    assert most < 8 * 2**20


def test_damaged_public_inputs_are_refused_before_anything_is_written(good: Files, tmp_path: Path) -> None:
    inputs = Random(1).randbytes(4 * SMALL)
    packed = bytearray(zipped([*good.items(), ("public.safetensors", inputs)]))
    packed[len(packed) // 2] ^= 1
    (tmp_path / "b.protea").write_bytes(packed)
    with pytest.raises(ConfigError, match="is not a bundle of Protea's"):
        open_bundle(tmp_path / "b.protea", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_bundle_that_was_not_written_to_its_end_is_none(
    good: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b.protea").write_bytes(zipped(list(good.items())))
    written: list[str] = []

    def full(path: Path, content: bytes) -> None:
        if len(written) == len(good) - 1:
            raise OSError(28, "No space left on device", str(path))
        written.append(path.name)
        write_private(path, content)

    monkeypatch.setattr(bundles, "write_private", full)
    with pytest.raises(OSError, match="No space left"):
        open_bundle(tmp_path / "b.protea", tmp_path / "bundle")
    assert sorted(written) == sorted(good.keys() - {"bundle.json"})  # by which a site knows that it has one


# The coordinator's directory


def test_a_home_is_found_again_as_it_was_made(tmp_path: Path) -> None:
    made_one = places.base(tmp_path / "base")
    paths = [made_one.invite(name) for name in ("north", "south")]
    base = CoordinatorDirectory.open(tmp_path / "base")
    assert [site.name for site in base.guests.sites] == ["north", "south"] and base.task == made_one.task
    assert base.site_keys == {
        name: public_of_site(read_bundle(path)["site.key"])
        for name, path in zip(("north", "south"), paths, strict=True)
    }
    for number, path in enumerate(paths):
        found = open_bundle(path, tmp_path / "open" / str(number))
        assert (found.invitation.id, found.invitation.address) == (number, "localhost:8443")
        assert found.coordinator == base.signer.public() and found.task.mark() == base.task.mark()
    assert isinstance(base.signer.key, ed25519.Ed25519PrivateKey) and base.tls is not None


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_what_is_secret_in_a_home_is_for_its_owner_only(tmp_path: Path) -> None:
    base = places.base(tmp_path / "base")
    bundle = base.invite("north")
    for folder in ("keys", "bundles"):
        assert (base.path / folder).stat().st_mode & 0o777 == 0o700
    secrets = [bundle, *(base.path / "keys").glob("*.key")]
    assert len(secrets) == 4 and {path.stat().st_mode & 0o777 for path in secrets} == {0o600}


def test_no_key_of_the_coordinator_is_in_a_bundle(tmp_path: Path) -> None:
    base = places.base(tmp_path / "base")
    content = b"".join(read_bundle(base.invite("north")).values())
    for path in (base.path / "keys").glob("*.key"):
        assert path.read_bytes().splitlines()[1] not in content


def test_without_tls_there_are_no_keys_of_sites(tmp_path: Path) -> None:
    base = places.base(tmp_path / "base", tls=False)
    path = base.invite("north")
    assert read_bundle(path).keys() == {"bundle.json", "task.toml", "coordinator.pub"}
    assert base.site_keys == {} and base.tls is None
    opened = open_bundle(path, tmp_path / "open")
    assert opened.ca is None and opened.key is None


def test_an_ipv6_address_can_be_told_from_its_port(tmp_path: Path) -> None:
    task = new_task({"classes": ["a", "b"]}, [])
    base = CoordinatorDirectory.create(tmp_path / "base", task, "2001:db8::7", 8443, True)
    assert open_bundle(base.invite("north"), tmp_path / "open").invitation.address == "[2001:db8::7]:8443"


def test_a_directory_that_has_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("mine")
    for name in ("file", "folder"):
        with pytest.raises(ConfigError, match="exists and is not an empty directory"):
            places.base(tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine" and len(list((tmp_path / "folder").iterdir())) == 1


def test_a_host_or_port_that_is_none_leaves_no_half_of_a_home(tmp_path: Path) -> None:
    task = new_task({"classes": ["a", "b"]}, [])
    for host, port in (("https://example.org", 8443), ("example.org", 0), ("example.org", 70_000)):
        with pytest.raises(ConfigError):
            CoordinatorDirectory.create(tmp_path / "base", task, host, port, True)
    assert not (tmp_path / "base").exists()


def test_what_is_no_home_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no federation.json.*protea federation init"):
        CoordinatorDirectory.open(tmp_path)
    (tmp_path / "federation.json").write_text('{"host": "h"}')
    with pytest.raises(ConfigError, match="cannot be read"):
        CoordinatorDirectory.open(tmp_path)


@pytest.mark.parametrize("name", ["north", "north-2", "st.mary", "klinik_a", "klinik_a-2", "7", "Übach"])
def test_names_of_sites(tmp_path: Path, name: str) -> None:
    assert places.base(tmp_path / "base", tls=False).invite(name).name == f"{name}.protea"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", "/x", ".x", "-x", "--help", "a b", "a\n", "a\0", "x" * 65, "[red]"]
)
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    base = places.base(tmp_path / "base", tls=False)
    with pytest.raises(ConfigError, match="is no name for a site"):
        base.invite(name)
    assert base.guests.sites == () and not (base.path / "bundles").exists()


def test_no_two_sites_have_one_name(tmp_path: Path) -> None:
    base = places.base(tmp_path / "base", tls=False)
    bundle = base.invite("north").read_bytes()
    base.remove("north")
    for name in ("north", "North"):  # on some disks these are one file
        with pytest.raises(ConfigError, match="was invited already"):
            base.invite(name)
    assert (base.path / "bundles" / "north.protea").read_bytes() == bundle


def test_a_site_that_was_removed_keeps_its_number_and_loses_its_key(tmp_path: Path) -> None:
    base = places.base(tmp_path / "base")
    for name in ("north", "south"):
        base.invite(name)
    base.remove("north")
    assert [site.removed for site in base.guests.sites] == [True, False] and base.site_keys.keys() == {"south"}
    assert open_bundle(base.invite("west"), tmp_path / "open").invitation.id == 2
    for name in ("north", "suoth"):
        with pytest.raises(ConfigError, match=r"There is no site.*Did you mean south"):
            base.remove(name)


def change(base: CoordinatorDirectory) -> None:
    """Another task."""
    text = (base.path / "task.toml").read_text()
    (base.path / "task.toml").write_text(text.replace("rounds = 4", "rounds = 5"))


def test_after_a_change_of_the_task_bundles_are_outdated_until_they_are_renewed(tmp_path: Path) -> None:
    base = places.base(tmp_path / "base")
    for name in ("north", "south"):
        base.invite(name)
    keys = base.site_keys
    assert base.outdated() == []
    change(base)
    assert base.outdated() == ["north", "south"]
    paths = base.renew()
    assert base.outdated() == [] and base.site_keys == keys
    assert [read_bundle(path)["site.key"] for path in paths] != [] and open_bundle(
        paths[1], tmp_path / "o"
    ).task.rounds == 5
    assert public_of_site(read_bundle(paths[0])["site.key"]) == keys["north"]


def test_a_site_that_was_removed_does_not_hold_up_the_others(tmp_path: Path) -> None:
    base = places.base(tmp_path / "base")
    for name in ("north", "south"):
        base.invite(name)
    base.remove("north")
    change(base)
    assert [path.name for path in base.renew()] == ["south.protea"] and base.outdated() == []


def test_a_bundle_that_was_deleted_is_renewed_with_a_new_key(tmp_path: Path) -> None:
    """As init tells to do once it was handed over."""
    base = places.base(tmp_path / "base")
    for name in ("north", "south"):
        base.invite(name)
    before = base.site_keys
    (base.path / "bundles" / "north.protea").unlink()
    change(base)
    assert base.outdated() == ["south"]
    north, south = base.renew()
    assert base.site_keys["south"] == before["south"] == public_of_site(read_bundle(south)["site.key"])
    assert base.site_keys["north"] != before["north"]
    assert base.site_keys["north"] == public_of_site(read_bundle(north)["site.key"])
    shutil.rmtree(base.path / "bundles")
    assert len(base.renew()) == 2 and base.site_keys.keys() == {"north", "south"}


def test_a_signer_is_read_from_the_home(tmp_path: Path) -> None:
    base = places.base(tmp_path / "base", tls=False)
    assert (
        isinstance(base.signer, Signer) and base.signer.public() == CoordinatorDirectory.open(base.path).signer.public()
    )
