"""Certificates and keys of a federation.

A CA of its own vouches for the coordinator's server, and for nothing else.  Each site has a key
by which the server knows it (EC P-384, as Flower wants it), and the coordinator has one by which
sites know that a job is the coordinator's (Ed25519).
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protea.core.errors import ConfigError, PayloadError
from protea.core.files import write_bytes, write_private

YEARS = 10  # that the CA is valid; the server's certificate has two, and is made anew at every start
SIGNATURE = 64  # bytes
UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    NotImplementedError,
    x509.InvalidVersion,
)  # keys, certificates
HERE = ("localhost", "127.0.0.1", "::1")  # names of this machine, for itself


def make_tls(folder: Path, hosts: list[str]) -> None:
    """Make a CA and a server certificate for these hosts: ``ca.crt``, ``ca.key``, ``server.crt``, ``server.key``."""
    names = [_host(host) for host in hosts]  # what is no host is refused before anything is written
    private = _pem(ec.generate_private_key(ec.SECP384R1()))
    write_private(folder / "ca.key", private)
    write_bytes(folder / "ca.crt", renewed_authority(private))
    _make_server(folder, hosts[0], names)


def renewed_authority(private: bytes) -> bytes:
    """Return a certificate of the CA with this private key (both PEM), which begins today."""
    key = _authority(private)
    ca = (
        _certificate(_CA, _CA, key.public_key(), YEARS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    return ca.public_bytes(Encoding.PEM)


def _authority(private: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(private, None)
    except UNREADABLE as error:
        raise ConfigError(f"The key of the federation's CA cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError("The key of the federation's CA is not an EC key.")
    return key


def renew_server(folder: Path, hosts: list[str]) -> None:
    """Make a new server certificate by the CA that is there; sites notice no difference."""
    _make_server(folder, hosts[0], [_host(host) for host in hosts])


def _make_server(folder: Path, name: str, names: list[x509.GeneralName]) -> None:
    """Write ``server.crt`` and ``server.key``, signed by the CA in the folder."""
    ca = _authority((folder / "ca.key").read_bytes())
    key = ec.generate_private_key(ec.SECP384R1())
    server = (
        _certificate(_name(name), _CA, key.public_key(), 2)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(dict.fromkeys(names))), critical=False)
        .sign(ca, hashes.SHA384())
    )
    write_private(folder / "server.key", _pem(key))
    write_bytes(folder / "server.crt", server.public_bytes(Encoding.PEM))


def make_site_key() -> tuple[bytes, bytes]:
    """Make a key for a site: the private one, as Flower reads it, and the public one, as it is registered."""
    key = ec.generate_private_key(ec.SECP384R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), public_of(key)


def public_of_site(private: bytes) -> bytes:
    """Return the public key to a site's private one; raise :class:`ConfigError` for what is no such key."""
    try:
        key = load_ssh_private_key(private, None)
    except UNREADABLE as error:
        raise ConfigError(f"The site's key cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError("The site's key is not an EC key.")
    return public_of(key)


def public_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the public key, PEM."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def canonical(public: bytes) -> bytes:
    """Return a site's public key as it is compared: the one PEM text of all that stand for the same key."""
    try:
        key = load_pem_public_key(public)
    except UNREADABLE as error:
        raise ConfigError(f"The site's public key cannot be read: {error}") from error
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


class Signer:
    """The coordinator's signing key; called, it signs a message."""

    def __init__(self, private: bytes) -> None:
        key = load_pem_private_key(private, None)
        assert isinstance(key, ed25519.Ed25519PrivateKey)
        self.key = key

    @staticmethod
    def make() -> bytes:
        """Make a new private key, PEM."""
        return ed25519.Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def public(self) -> bytes:
        """Return the public key, PEM."""
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def __call__(self, kind: str, message: bytes) -> bytes:
        """Return the signature followed by the message."""
        return self.signature(kind, message) + message

    def signature(self, kind: str, message: bytes) -> bytes:
        """Return the signature of a message of this kind."""
        return self.key.sign(_signed(kind, message))


def _signed(kind: str, message: bytes) -> bytes:
    """Return what is signed: the kind of the message with it, so that neither can be exchanged for another."""
    return kind.encode() + b"\0" + message


def verified(kind: str, message: bytes, public: bytes) -> bytes:
    """Return the message if the coordinator has signed it as that kind; raise :class:`PayloadError` if not."""
    try:
        coordinator_key(public).verify(message[:SIGNATURE], _signed(kind, message[SIGNATURE:]))
    except InvalidSignature:
        raise PayloadError("a message came that this federation's coordinator has not signed.") from None
    return message[SIGNATURE:]


def coordinator_key(public: bytes) -> ed25519.Ed25519PublicKey:
    """Read the coordinator's public key; raise :class:`ConfigError` for what is none."""
    try:
        key = load_pem_public_key(public)
    except UNREADABLE as error:
        raise ConfigError(f"The coordinator's key cannot be read: {error}") from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise ConfigError("The coordinator's key is not an Ed25519 key.")
    return key


def refuse_no_certificate(content: bytes) -> None:
    """Raise :class:`ConfigError` unless this is a certificate."""
    try:
        x509.load_pem_x509_certificate(content)
    except UNREADABLE as error:
        raise ConfigError(f"The certificate cannot be read: {error}") from error


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


_CA = _name("Protea federation CA")


def refuse_no_host(host: str) -> None:
    """Raise :class:`ConfigError` for a host that no certificate can be made for."""
    _host(host)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", host) or len(host) > 253:
            raise ConfigError(
                f"{host!r} is no name of a host, and no address.  Write it as sites reach it, without https:// and "
                f"without a port, such as server.example.org or 192.0.2.7."
            ) from None
        return x509.DNSName(host)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, years: int
) -> x509.CertificateBuilder:
    start = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=5)  # clocks differ
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=365 * years))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
