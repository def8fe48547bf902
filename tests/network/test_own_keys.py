"""Sites that make their own keys: requests, bundles without private keys, changed keys, and who said what."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

import places
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from typer.testing import CliRunner

from protea.cli.app import app
from protea.core.errors import ConfigError, PayloadError
from protea.core.message import to_bytes
from protea.network.coordinator.certificates import Certificates
from protea.network.coordinator.directory import CoordinatorDirectory
from protea.network.coordinator.ledger import LedgerEntry, add_entry, read_entries, spans
from protea.network.site.service import SiteService
from protea.network.trust import ends, keys
from protea.network.trust.bundles import open_bundle, read_bundle
from protea.network.trust.chain import check_chain, leads, longer_chain
from protea.network.trust.keys import Signer, make_site_key
from protea.network.trust.requests import KEY, NEXT, Request, parse_request, read_request, request_text, write_request
from protea.network.trust.signatures import SEAL, SignedAnswer, SiteKey, fingerprint, holds, unsealed


@pytest.fixture
def base(tmp_path: Path) -> CoordinatorDirectory:
    return places.base(tmp_path / "base")


def asked(folder: Path, name: str = "north", **more: Any) -> Request:
    return read_request(write_request(folder, name, **more))


# Requests


def test_a_bundle_that_answers_a_request_has_no_private_key(tmp_path: Path, base: CoordinatorDirectory) -> None:
    request = asked(tmp_path / "north")
    path = base.answer(request)
    files = read_bundle(path)
    assert b"PRIVATE" not in b"".join(files.values()) and files["site.pub"].decode() == request.key
    assert base.site_keys == {"north": request.key.encode()}
    found = open_bundle(path, tmp_path / "north" / "bundle")
    assert found.key == tmp_path / "north" / KEY and SiteKey(found.key.read_bytes()).public.decode() == request.key
    assert base.guests.sites[0].own and base.guests.sites[0].former == ()


def test_a_request_asked_for_twice_is_of_the_same_key(tmp_path: Path) -> None:
    first = asked(tmp_path)
    assert asked(tmp_path, former=tmp_path / KEY).key == first.key


def test_a_bundle_for_another_key_is_refused_before_anything_is_written(
    tmp_path: Path, base: CoordinatorDirectory
) -> None:
    path = base.answer(asked(tmp_path / "north"))
    with pytest.raises(ConfigError, match=r"is for the key .* which is not in"):
        open_bundle(path, tmp_path / "elsewhere" / "bundle")
    assert not (tmp_path / "elsewhere").exists()


def spoilt(request: Request, **changes: Any) -> bytes:
    return json.dumps({**asdict(request), **changes}).encode()


WRONG: dict[str, tuple[Callable[[Request], bytes], str]] = {
    "nothing": (lambda request: b"", "is not a request"),
    "rubble": (lambda request: b"\xff\x00", "is not a request"),
    "deep": (lambda request: b"[" * 10_000, "is not a request"),
    "large": (lambda request: spoilt(request, former="0" * 20_000), "more than 16,384 bytes"),
    "another format": (lambda request: spoilt(request, format=2), "has format 2"),
    "another name": (lambda request: spoilt(request, site="south"), "not signed by the key in it"),
    "a name that writes on a screen": (lambda request: spoilt(request, site="n\x1b[2J"), "no name for a site"),
    "no key": (lambda request: spoilt(request, key="-"), "public key cannot be read"),
    "a key of another kind": (
        lambda request: spoilt(request, key=Signer(Signer.make()).public().decode()),
        "not a P-384 key",
    ),
    "another key": (lambda request: spoilt(request, key=make_site_key()[1].decode()), "not signed by the key in it"),
    "a signature that is none": (lambda request: spoilt(request, signature="xy"), "is not a request"),
    "a former one that is none": (lambda request: spoilt(request, former="00"), "of 1 bytes"),
    "and more": (lambda request: spoilt(request, more=1), "is not a request"),
}


@pytest.mark.parametrize(("make", "complaint"), WRONG.values(), ids=WRONG)
def test_what_is_no_request_is_refused(tmp_path: Path, make: Callable[[Request], bytes], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_request(make(asked(tmp_path)), "north.request")


def test_two_sites_do_not_have_one_key(tmp_path: Path, base: CoordinatorDirectory) -> None:
    base.answer(asked(tmp_path / "north"))
    again = asked(tmp_path / "north", "south", former=tmp_path / "north" / KEY)
    with pytest.raises(ConfigError, match="that of the site 'north'"):
        base.answer(again)


def test_without_tls_there_is_nothing_to_ask_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without TLS"):
        places.base(tmp_path / "base", tls=False).answer(asked(tmp_path))


# Keys that change


def test_a_site_changes_its_key_and_the_new_bundle_puts_it_in_place(tmp_path: Path, base: CoordinatorDirectory) -> None:
    home = tmp_path / "north"
    open_bundle(base.answer(asked(home)), home / "bundle")
    first = (home / KEY).read_bytes()
    request = asked(home, former=home / KEY, rotate=True)
    assert (home / KEY).read_bytes() == first and (home / NEXT).exists()
    path = base.answer(request)
    assert base.site_keys["north"].decode() == request.key
    assert base.guests.sites[0].former == (SiteKey(first).public.decode(),)
    found = open_bundle(path, home / "bundle")
    assert not (home / NEXT).exists() and found.key is not None
    assert SiteKey(found.key.read_bytes()).public.decode() == request.key


def test_a_key_that_the_coordinator_made_is_changed_to_one_of_the_sites_own(
    tmp_path: Path, base: CoordinatorDirectory
) -> None:
    site = places.site(tmp_path / "north", base.invite("north"))
    given = site.path / "bundle" / KEY
    open_bundle(base.answer(asked(site.path, former=given, rotate=True)), site.path / "bundle")
    assert not given.exists() and site.bundle.key == site.path / KEY and base.guests.sites[0].own


def test_a_new_key_that_the_former_one_has_not_signed_is_taken_on_command_only(
    tmp_path: Path, base: CoordinatorDirectory
) -> None:
    base.answer(asked(tmp_path / "north"))
    stranger = asked(tmp_path / "stranger")
    with pytest.raises(ConfigError, match="has not signed this request"):
        base.answer(stranger)
    before = base.site_keys["north"]
    base.answer(stranger, replace_key=True)
    assert base.site_keys["north"].decode() == stranger.key and base.guests.sites[0].former == (before.decode(),)
    with pytest.raises(ConfigError, match="had this key before"):
        base.answer(asked(tmp_path / "north", former=tmp_path / "north" / KEY), replace_key=True)


def test_a_site_that_was_removed_gets_no_new_key(tmp_path: Path, base: CoordinatorDirectory) -> None:
    request = asked(tmp_path)
    base.answer(request)
    base.remove("north")
    with pytest.raises(ConfigError, match="was removed"):
        base.answer(request)


def test_the_coordinators_keys_change_and_sites_know_it_for_the_same(
    tmp_path: Path, base: CoordinatorDirectory
) -> None:
    first, authority = base.signer.public(), (base.path / "keys" / "ca.crt").read_bytes()
    base.answer(asked(tmp_path / "north"))
    base.invite("south")
    assert {path.name for path in base.rotate()} == {"north.protea", "south.protea"}
    second = base.signer.public()
    base.rotate()
    files = read_bundle(base.path / "bundles" / "north.protea")
    third = files["coordinator.pub"]
    assert len({first, second, third}) == 3 and files["ca.crt"] != authority
    assert all(leads(files["coordinator.chain"], known, third) for known in (first, second, third))
    assert not leads(files["coordinator.chain"], Signer(Signer.make()).public(), third)
    assert not leads(files["coordinator.chain"], first, Signer(Signer.make()).public())


def test_a_chain_that_is_broken_is_refused() -> None:
    first, second, third = (Signer(Signer.make()) for _ in range(3))
    chain = longer_chain(longer_chain(b"[]", first, second.public()), second, third.public())
    check_chain(chain)
    links = json.loads(chain)
    with pytest.raises(ConfigError, match="broken"):
        check_chain(json.dumps([links[1], links[0]]).encode())
    for wrong in (b"", b"{}", b'[{"key": "-", "signature": "00"}]', b"[" * 5000):
        with pytest.raises(ConfigError, match="chain"):
            check_chain(wrong)
    torn = longer_chain(longer_chain(b"[]", first, second.public()), first, third.public())  # stopped in the middle
    assert len(json.loads(torn)) == 1 and leads(torn, first.public(), third.public())


# Signatures


def test_a_site_signs_its_answers_and_each_word_counts(tmp_path: Path, base: CoordinatorDirectory) -> None:
    home = tmp_path / "north"
    bundle = base.answer(asked(home))
    site = places.site(home, bundle, policy=places.ALL)
    answer = SiteService(site).handle("job", base.signer("job", places.job("train", 1)))
    signature, reply = unsealed(places.parted(answer)[0])
    said = SignedAnswer.of(base.task.mark(), "north", "train", 1, reply)
    public = base.site_keys["north"]
    assert holds(said.text, signature, public)
    for other in (
        replace(said, round=2),
        replace(said, site="south"),
        replace(said, asked="evaluate"),
        replace(said, task="0" * 32),
        replace(said, sha256="0" * 64),
    ):
        assert not holds(other.text, signature, public)
    assert not holds(said.text, signature, make_site_key()[1])
    assert not holds(said.text, bytes(SEAL), public) and not holds(said.text, b"", public)


def test_an_answer_too_short_for_a_signature_is_refused() -> None:
    with pytest.raises(PayloadError, match="no signature"):
        unsealed(bytes(SEAL))


def test_fingerprints_are_read_aloud_and_differ() -> None:
    (_, one), (_, two) = make_site_key(), make_site_key()
    assert fingerprint(one) != fingerprint(two) and [len(part) for part in fingerprint(one).split()] == [4] * 8


# Certificates


def short(folder: Path, name: str, days: int) -> None:
    """Let a certificate in a folder end in so many days."""
    old = x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())
    ca = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder(extensions=list(old.extensions))
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(7)
        .not_valid_before(now - dt.timedelta(days=400))
        .not_valid_after(now + dt.timedelta(days=days, hours=1))
    )
    new = builder.sign(ca, hashes.SHA384())
    (folder / f"{name}.crt").write_bytes(new.public_bytes(keys.Encoding.PEM))


def test_certificates_are_made_anew_before_they_end(base: CoordinatorDirectory) -> None:
    folder = base.path / "keys"
    found = Certificates(folder, ["localhost"])
    found.looked -= 10_000
    assert not found.renewed() and found.warnings() == []
    short(folder, "server", 29)
    assert len(found.warnings()) == 1 and not found.renewed()  # it looks once an hour
    found.looked -= 10_000
    assert found.renewed() and found.warnings() == []
    assert ends.end_of(folder / "server.crt") > dt.datetime.now(dt.UTC) + dt.timedelta(days=700)


def test_the_authority_lives_on_under_the_same_key_and_sites_take_its_new_certificate(
    tmp_path: Path, base: CoordinatorDirectory
) -> None:
    folder = base.path / "keys"
    short(folder, "ca", 200)
    home = tmp_path / "north"
    site = places.site(home, base.invite("north"))
    Certificates(folder, ["localhost"]).renew()
    new = (folder / "ca.crt").read_bytes()
    server, old = (
        ends.certificate_of(path.read_bytes()) for path in (folder / "server.crt", home / "bundle" / "ca.crt")
    )
    server.verify_directly_issued_by(old)  # until its end a site that was away trusts the server
    told = to_bytes({}, task=base.task.mark(), ca=new.decode())
    SiteService(site).handle("hello", base.signer("hello", told))
    assert (home / "bundle" / "ca.crt").read_bytes() == new
    keys.make_tls(tmp_path, ["localhost"])
    other = to_bytes({}, task=base.task.mark(), ca=(tmp_path / "ca.crt").read_text())
    SiteService(site).handle("hello", base.signer("hello", other))
    assert (home / "bundle" / "ca.crt").read_bytes() == new  # of another authority


def test_what_cannot_be_made_anew_is_warned_of_thirty_days_ahead(base: CoordinatorDirectory) -> None:
    folder = base.path / "keys"
    short(folder, "server", 31)
    (folder / "ca.key").unlink()
    found = Certificates(folder, ["localhost"])
    found.renew()
    assert found.warnings() == []
    warned = ends.warnings({"It": folder / "server.crt"}, dt.datetime.now(dt.UTC) + dt.timedelta(days=2))
    assert len(warned) == 1 and warned[0].startswith("It ends on ")
    late = ends.warnings({"It": folder / "server.crt"}, dt.datetime.now(dt.UTC) + dt.timedelta(days=40))
    assert late[0].startswith("It has ended on ")


# The commands


@pytest.fixture
def said() -> Callable[..., str]:
    def run(*words: str | Path, code: int = 0) -> str:
        found = CliRunner().invoke(app, [str(word) for word in words])
        assert found.exit_code == code, (found.output, found.exception)
        return found.output

    return run


def test_from_a_request_to_the_ledger(tmp_path: Path, base: CoordinatorDirectory, said: Callable[..., str]) -> None:
    home = tmp_path / "north"
    words = said("site", "request", "north", "--dir", home)
    told = said("federation", "invite", base.path, "--request", home / "north.request")
    shown = fingerprint(base.site_keys["north"])
    assert shown in words and shown in told and "without a private key" in told
    answer = b"an answer"
    key = SiteKey((home / KEY).read_bytes())
    statement = SignedAnswer.of("task", "north", "train", 1, answer)
    entry = LedgerEntry.of(statement, 0, answer, key.sign(statement.text), key.public.decode())
    (base.path / "run").mkdir()
    add_entry(base.path / "run" / "ledger.jsonl", entry)
    assert list(read_entries(base.path / "run" / "ledger.jsonl")) == [entry]
    assert "All 1 signatures hold." in said("federation", "ledger", base.path, "--site", "north")
    forged = replace(entry, sha256="0" * 64)
    add_entry(base.path / "run" / "ledger.jsonl", replace(forged, round=2))
    found = CliRunner().invoke(app, ["federation", "ledger", str(base.path)])
    assert found.exit_code != 0 and "1 of 2 signatures do not hold" in str(found.exception)


@pytest.mark.parametrize(
    ("names", "complaint"), [("north,no rth", "'no rth' is no name for a site"), ("north,North", "was invited already")]
)
def test_a_bad_name_is_refused_before_anything_is_made(
    tmp_path: Path, base: CoordinatorDirectory, names: str, complaint: str
) -> None:
    fresh, before = tmp_path / "fresh", base.guests
    for words in (
        ["init", str(fresh), "--classes", "a,b", "--sites", names],
        ["invite", str(base.path), *names.split(",")],
    ):
        found = CliRunner().invoke(app, ["federation", *words])
        assert found.exit_code != 0 and complaint in str(found.exception)
    assert not fresh.exists() and base.guests == before


def test_a_file_that_is_no_request_is_refused_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("text")
    with pytest.raises(ConfigError, match=r"not a request of a site's .*: the file: invalid JSON: expected"):
        read_request(tmp_path / "x")


def test_half_a_line_of_a_ledger_is_left_out_and_rubble_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b'{"time": "half')
    assert list(read_entries(path)) == []
    path.write_bytes(b"rubble\n")
    with pytest.raises(ConfigError, match="line 1 is no entry"):
        list(read_entries(path))


def test_rounds_are_written_in_short() -> None:
    assert [spans(each) for each in ([], [4], [1, 2, 3, 5])] == ["", "4", "1-3, 5"]


def test_a_request_cannot_pass_for_an_answer() -> None:
    assert not request_text("north", "key").startswith(b"protea answer")
