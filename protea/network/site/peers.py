"""The other sites that a site makes secure sums with: ``peers`` in its policy, by the fingerprints of their keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from protea.core.errors import ConfigError, PolicyError
from protea.filters.secure.state import Participants
from protea.filters.secure.vouching import SIGNED, Voucher
from protea.filters.secure_sum import secure_sum_of
from protea.network.site.policy import PolicyFile
from protea.network.site.refusals import refusal
from protea.network.trust.signatures import SiteKey, compressed, fingerprint, fingerprint_of, from_compressed, holds

if TYPE_CHECKING:
    from protea.network.site.directory import Site


@dataclass(frozen=True)
class SiteVoucher(Voucher):
    """Signs by the site's long-term key, and knows the other sites by the fingerprints in its policy.

    Without ``peers`` it neither signs nor checks: who is in a sum is then what the coordinator says.
    """

    site: Site
    key: SiteKey

    @property
    def peers(self) -> set[str]:
        """The fingerprints in the policy, as it is now."""
        return {fingerprint_of(each) for each in self.site.policy.policy.peers}

    def sign(self, client: int, others: Participants) -> bytes:
        if not self.site.policy.policy.peers:
            return b""
        return self.key.sign(self.text(client, others)) + compressed(self.key.public)

    def check(self, client: int, others: Participants, signed: Mapping[int, bytes]) -> None:
        if not self.site.policy.policy.peers:
            return
        known, seen = self.peers, {self.key.public}
        for other in others.clients:
            if other == client:
                continue
            if other not in signed:
                self.refuse(
                    f"client {other} has not signed the keys of the secure sum.  It needs peers in its policy, too."
                )
            public = from_compressed(signed[other][SIGNED:])
            if not holds(self.text(other, others), signed[other][:SIGNED], public):
                self.refuse(f"client {other} has signed other keys than those that came for the secure sum.")
            if public in seen:
                self.refuse(f"client {other} has signed by a key that another client has, too.")
            if (found := fingerprint(public)) not in known:
                self.refuse(f"client {other} has signed by the key {found}, which is none of this site's peers.")
            seen.add(public)

    def refuse(self, why: str) -> NoReturn:
        """Raise :class:`PolicyError`; the policy's line is kept for the audit log."""
        self.site.release.refusals.append(refusal(self.site.policy, "peers", why))
        raise PolicyError(why)

    def text(self, client: int, others: Participants) -> bytes:
        """Return what a client signs: nothing else that a site signs begins like this."""
        words = ["protea sum", self.site.task.mark(), str(others.round), str(client), others.session.hex()]
        return "\n".join(words).encode()


def peer_warnings(site: Site) -> Iterator[str]:
    """Yield what is to be known about who takes part in a secure sum."""
    peers, secure = site.policy.policy.peers, secure_sum_of(site.task.filters) is not None
    if peers and not secure:
        yield "The policy names peers, and the task makes no secure sum: what leaves can be read by itself."
    elif peers and (key := site.bundle.key) is not None and key.parent == site.bundle.folder:
        yield (
            "The coordinator made this site's key, and can sign in its name: peers cannot know it by that.  Change it: "
            "protea site request NAME --rotate"
        )
    elif secure and not peers and site.bundle.invitation.tls:
        yield (
            "Nobody checks whose keys come for the secure sum: a coordinator that lies about them reads what this site "
            "sends.  Name the other sites' keys as peers in policy.toml."
        )


def voucher_of(site: Site) -> Voucher:
    """Return what vouches for the keys of a site's secure sums; :class:`ConfigError` for peers that cannot be known."""
    refuse_unknowable(site.policy, site.bundle.key)
    return Voucher() if site.bundle.key is None else SiteVoucher(site, SiteKey(site.bundle.key.read_bytes()))


def refuse_unknowable(policy: PolicyFile, key: Path | None) -> None:
    """Raise :class:`ConfigError` for peers in the policy of a site that has no key, where nobody could check them."""
    if policy.policy.peers and key is None:
        raise ConfigError(f"{policy.cite('peers')}: without TLS sites have no keys, and cannot be known by them.")
