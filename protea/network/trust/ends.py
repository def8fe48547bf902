"""When certificates end, and that they are made anew before that."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from protea.core.errors import ConfigError
from protea.core.files import write_bytes
from protea.network.trust.keys import UNREADABLE, renewed_authority

SOON = dt.timedelta(days=30)  # before an end, it is told on both screens
EARLY = dt.timedelta(days=365)  # before the authority's end its certificate is made anew, so that all sites hear of it


def certificate_of(content: bytes) -> x509.Certificate:
    """Read a certificate, PEM; raise :class:`ConfigError` for what is none."""
    try:
        return x509.load_pem_x509_certificate(content)
    except UNREADABLE as error:
        raise ConfigError(f"The certificate cannot be read: {error}") from error


def end_of(path: Path) -> dt.datetime:
    """Return when the certificate in a file ends."""
    return certificate_of(path.read_bytes()).not_valid_after_utc


def ends_within(path: Path, time: dt.timedelta, now: dt.datetime | None = None) -> bool:
    """Return whether the certificate in a file ends within this time."""
    return end_of(path) - (now or dt.datetime.now(dt.UTC)) < time


def renew_authority(folder: Path) -> bool:
    """Make the authority's certificate anew, for its same key, if it ends within a year; return whether it was made.

    What sites have of it stays good until its own end; connected sites are given the new one.
    """
    if not (folder / "ca.key").exists() or not ends_within(folder / "ca.crt", EARLY):
        return False
    write_bytes(folder / "ca.crt", renewed_authority((folder / "ca.key").read_bytes()))
    return True


def take_authority(path: Path, content: bytes) -> bool:
    """Put a newer certificate of the same authority in the place of the one in a file; return whether it was put.

    Another authority's is refused, as is one that ends no later.
    """
    old, new = certificate_of(path.read_bytes()), certificate_of(content)
    keys = [each.public_key() for each in (old, new)]
    if not isinstance(keys[0], ec.EllipticCurvePublicKey) or keys[0] != keys[1] or old.subject != new.subject:
        raise ConfigError("A certificate came that is not of this federation's authority.")
    if new.not_valid_after_utc <= old.not_valid_after_utc:
        return False
    try:
        new.verify_directly_issued_by(new)
    except Exception as error:  # of several libraries' kinds
        raise ConfigError(f"A certificate came that this federation's authority has not signed: {error}") from error
    write_bytes(path, content)
    return True


def warnings(paths: dict[str, Path], now: dt.datetime | None = None) -> list[str]:
    """Return a warning for each certificate that ends within 30 days, or has ended; ``paths`` are by what they are."""
    now, found = now or dt.datetime.now(dt.UTC), []
    for what, path in paths.items():
        end = end_of(path)
        if end - now < SOON:
            how = "has ended on" if end < now else "ends on"
            found.append(f"{what} {how} {end:%Y-%m-%d}.")
    return found
