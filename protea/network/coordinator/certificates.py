"""The coordinator's certificates: made anew before they end, and warned of where they cannot be."""

from __future__ import annotations

import time
from pathlib import Path

from protea.network.trust import ends, keys

EVERY = 3600.0  # seconds between looks at the dates


class Certificates:
    """The certificates in a coordinator's folder of keys, for the hosts that sites reach it by.

    Whoever keeps ``ca.key`` elsewhere gets warnings instead of new certificates.
    """

    def __init__(self, folder: Path, hosts: list[str]) -> None:
        self.folder, self.hosts = folder, hosts
        self.looked = time.monotonic()

    @property
    def authority(self) -> str:
        """The authority's certificate as sites are given it, PEM."""
        return (self.folder / "ca.crt").read_text("ascii")

    @property
    def renewable(self) -> bool:
        """Whether the key is there by which certificates are made."""
        return (self.folder / "ca.key").exists()

    def renew(self) -> None:
        """Make the server's certificate anew, and the authority's if it ends within a year."""
        if self.renewable:
            ends.renew_authority(self.folder)
            keys.renew_server(self.folder, self.hosts)

    def renewed(self) -> bool:
        """Make certificates anew that end within 30 days; return whether there are new ones.  Looks once an hour."""
        if time.monotonic() < self.looked + EVERY:
            return False
        self.looked = time.monotonic()
        if not self.renewable or not ends.ends_within(self.folder / "server.crt", ends.SOON):
            return False
        self.renew()
        return True

    def warnings(self) -> list[str]:
        """Return a warning for each certificate that ends within 30 days."""
        found = ends.warnings({
            "The certificate of this federation's authority": self.folder / "ca.crt",
            "The server's certificate": self.folder / "server.crt",
        })  # fmt: skip
        if found and not self.renewable:
            found.append(f"Put ca.key back into {self.folder}, and start this command anew: it makes new ones.")
        return found
