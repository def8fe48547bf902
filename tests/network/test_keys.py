"""Certificates and keys: Python's own TLS and Flower's own reader accept them, and what is not theirs they refuse."""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from flwr.supernode.cli.flower_supernode import _try_setup_client_authentication

from protea.core.errors import ConfigError, PayloadError
from protea.core.files import write_private
from protea.network.trust import keys
from protea.network.trust.keys import (
    SIGNATURE,
    Signer,
    coordinator_key,
    make_site_key,
    make_tls,
    public_of_site,
    verified,
)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ours")
    make_tls(folder, ["server.example.org", "127.0.0.1", "::1"])
    return folder


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("others")
    make_tls(folder, ["server.example.org", "127.0.0.1"])
    return folder


def shaken(server: Path, trusted: Path, host: str) -> str:
    """The words that come through a TLS connection on this machine to a server that is expected to be ``host``."""
    inside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    inside.load_cert_chain(server / "server.crt", server / "server.key")
    outside = ssl.create_default_context(cafile=str(trusted))
    with socket.create_server(("127.0.0.1", 0)) as door:

        def greet() -> None:
            connection, _ = door.accept()
            try:
                with inside.wrap_socket(connection, server_side=True) as safe:
                    safe.sendall(b"welcome")
            except (ssl.SSLError, OSError):
                connection.close()  # the other side has refused us

        thread = threading.Thread(target=greet)
        thread.start()
        try:
            with (
                socket.create_connection(door.getsockname(), timeout=20) as connection,
                outside.wrap_socket(connection, server_hostname=host) as safe,
            ):
                return safe.recv(7).decode()
        finally:
            thread.join()


@pytest.mark.parametrize("host", ["server.example.org", "127.0.0.1", "::1"])
def test_a_client_that_trusts_the_ca_accepts_the_server(ours: Path, host: str) -> None:
    assert shaken(ours, ours / "ca.crt", host) == "welcome"


def test_a_client_that_trusts_another_ca_refuses_the_server(ours: Path, others: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        shaken(ours, others / "ca.crt", "server.example.org")


@pytest.mark.parametrize("host", ["example.org", "other.example.org", "localhost", "127.0.0.2"])
def test_a_client_that_expects_another_host_refuses_the_server(ours: Path, host: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for|mismatch"):
        shaken(ours, ours / "ca.crt", host)


def test_the_ca_vouches_for_servers_and_the_server_for_nobody(ours: Path) -> None:
    ca, server = (x509.load_pem_x509_certificate((ours / name).read_bytes()) for name in ("ca.crt", "server.crt"))
    server.verify_directly_issued_by(ca)
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert (ca.not_valid_after_utc - ca.not_valid_before_utc).days == 365 * keys.YEARS


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_private_keys_are_for_their_owner_only(ours: Path, tmp_path: Path) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in ours.iterdir()}
    assert modes["ca.key"] == modes["server.key"] == 0o600
    there = tmp_path / "site.key"
    there.write_text("old")
    there.chmod(0o644)
    before = os.umask(0)
    try:
        write_private(there, b"new")
        assert os.umask(0) == 0  # as it was
    finally:
        os.umask(before)
    assert there.read_bytes() == b"new" and there.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [there]


@pytest.mark.parametrize("host", ["https://server.example.org", "server:8443", "ü.example.org", "a b", "", "-a", "*"])
def test_what_is_no_host_gets_no_certificate(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="no name of a host"):
        make_tls(tmp_path, [host])
    assert not list(tmp_path.iterdir())


def test_a_site_key_is_one_that_flower_reads(tmp_path: Path) -> None:
    private, public = make_site_key()
    (tmp_path / "site.key").write_bytes(private)
    found = _try_setup_client_authentication(
        argparse.Namespace(auth_supernode_private_key=str(tmp_path / "site.key"), auth_supernode_public_key=None)
    )
    assert found is not None
    registered = load_pem_public_key(public)
    assert isinstance(registered, ec.EllipticCurvePublicKey)
    assert found[1].public_numbers() == registered.public_numbers()
    assert public_of_site(private) == public and make_site_key()[0] != private


def test_what_is_no_key_is_refused(ours: Path) -> None:
    private, public = make_site_key()
    for wrong in (b"", b"rubble", public, private[:100], Signer.make(), (ours / "server.key").read_bytes()):
        with pytest.raises(ConfigError, match="The site's key"):
            public_of_site(wrong)
    for wrong in (b"", b"rubble", private, public):  # the last is a public key, but of another kind
        with pytest.raises(ConfigError, match="The coordinator's key"):
            coordinator_key(wrong)


def test_what_the_coordinator_has_signed_is_opened() -> None:
    signer = Signer(Signer.make())
    for message in (b"train", b"", bytes(1 << 20)):
        assert verified("job", signer("job", message), signer.public()) == message
    assert len(signer("job", b"train")) == SIGNATURE + 5


def test_what_the_coordinator_has_not_signed_is_refused() -> None:
    signer, other = Signer(Signer.make()), Signer(Signer.make())
    good = signer("job", b"train round 3")
    places = (0, SIGNATURE - 1, SIGNATURE, len(good) - 1)
    changed = [bytes([*good[:at], good[at] ^ 1, *good[at + 1 :]]) for at in places]
    cut = [good[:at] for at in (0, 1, SIGNATURE - 1, SIGNATURE, len(good) - 1)]
    for message in (
        *changed,
        *cut,
        good + b"0",
        good[1:],
        b"train round 3",
        other("job", b"train round 3"),
        signer("end", b"train round 3"),
    ):
        with pytest.raises(PayloadError, match="coordinator has not signed"):
            verified("job", message, signer.public())


def test_a_signer_is_the_same_after_its_key_was_read_again() -> None:
    private = Signer.make()
    assert (
        Signer(private)("job", b"x") == Signer(private)("job", b"x")
        and Signer(private).public() == Signer(private).public()
    )
