"""Sites that know each other's keys: a coordinator that lies about who is in a secure sum is found out before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="lacking: extra flower")

import places

from protea.clients.worker import Worker
from protea.core.errors import ConfigError
from protea.core.message import Named
from protea.federation.jobs import Job, Reply
from protea.filters.secure.client_side import MEMORY
from protea.filters.secure.server_side import Attempt, TooFewSitesError, expect_keys
from protea.filters.secure.state import SumState
from protea.filters.secure.vouching import SIGNED, VOUCH, VOUCHED, expect_vouch, vouched_by, vouched_rows
from protea.filters.secure_sum import SecureSum
from protea.network.coordinator.directory import CoordinatorDirectory
from protea.network.site.check import trial
from protea.network.site.directory import Site
from protea.network.site.peers import SiteVoucher
from protea.network.site.service import SiteService
from protea.network.site.statement import make_statement
from protea.network.trust.keys import make_site_key
from protea.network.trust.requests import read_request, write_request
from protea.network.trust.signatures import SiteKey, compressed, fingerprint, fingerprint_of

NAMES = ("north", "south", "east")
STRANGER = "0000 1111 2222 3333 4444 5555 6666 7777"


@pytest.fixture
def base(tmp_path: Path) -> CoordinatorDirectory:
    return places.base(tmp_path / "base", quorum=3, filters=[{"name": "secure_sum"}])


@pytest.fixture
def sites(tmp_path: Path, base: CoordinatorDirectory) -> list[Site]:
    """Three sites that made their own keys, and have the same list of all three in their policies."""
    requests = [read_request(write_request(tmp_path / name, name)) for name in NAMES]
    found = [places.site(tmp_path / each.site, base.answer(each)) for each in requests]
    for each in found:
        say_peers(each, [fingerprint(request.key.encode()) for request in requests])
    return found


def say_peers(site: Site, peers: Sequence[str]) -> None:
    (site.path / "policy.toml").write_text(f"counts = 'exact'\npeers = {list(peers)}\n")
    site.follow_policy()


class Coordinator:
    """A coordinator that plays the steps of one sum with sites, and may meddle with what it carries."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self.workers = {site.id: Worker(site.plan()) for site in sites}
        secure, keys = SecureSum(), {id: expect_keys(self.ask(id, "train", {}).up) for id in self.workers}
        self.secure, self.attempt = secure, secure.attempt(1, keys)

    def ask(self, client: int, step: str, down: Named) -> Reply:
        return self.workers[client].run(Job(step, 1, client, down))  # type: ignore[arg-type]

    def share(self, without: Sequence[int] = ()) -> None:
        for id in self.workers:
            if id not in without:
                self.attempt.take_shares(id, self.ask(id, "shares", self.attempt.roster()).up)

    def masked(self) -> dict[int, str | None]:
        """What each site says to masking its upload; None if it has sent it."""
        said = {}
        for id, parcel in self.attempt.parcels().items():
            reply = self.ask(id, "masked", parcel)
            said[id] = reply.error
            assert (reply.error is None) == bool(reply.up)
            if reply.error is None:
                self.attempt.take_masked(id, reply.up)
        return said

    def total(self) -> Named:
        for id in self.workers:
            self.attempt.take_unmasked(id, self.ask(id, "unmask", self.attempt.summed()).up)
        return self.attempt.total()

    def added(self) -> Named:
        """The sum of what the sites have, which the coordinator should learn."""
        states = [worker.client(id).memory[MEMORY] for id, worker in self.workers.items()]
        uploads = [state.upload for state in states if isinstance(state, SumState)]
        return {name: torch.stack([each[name] for each in uploads]).sum(0) for name in uploads[0]}


def test_sites_that_know_each_other_make_the_sum(sites: list[Site]) -> None:
    played = Coordinator(sites)
    played.share()
    assert set(played.masked().values()) == {None}
    total, added = played.total(), played.added()
    assert total.keys() == added.keys()
    for name, tensor in total.items():
        torch.testing.assert_close(tensor, added[name], atol=1e-6, rtol=0)


def test_without_peers_nothing_is_signed_and_nothing_is_checked(sites: list[Site]) -> None:
    for site in sites:
        say_peers(site, [])
    played = Coordinator(sites)
    assert VOUCHED not in played.ask(0, "shares", played.attempt.roster()).up
    played = Coordinator(sites)
    played.share()
    assert set(played.masked().values()) == {None}


def test_keys_of_the_coordinators_own_making_are_refused(sites: list[Site]) -> None:
    """It shows north a list in which south and east have keys of the coordinator's, and passes on what it can sign."""
    true, false = Coordinator(sites), Coordinator(sites)
    keys = {0: expect_keys(true.ask(0, "train", {}).up)}
    keys |= {id: expect_keys(false.ask(id, "train", {}).up) for id in (1, 2)}  # stand for its own
    attempt = true.secure.attempt(1, keys)
    shown = attempt.everyone
    attempt.take_shares(0, true.ask(0, "shares", attempt.roster()).up)
    true.share(without=[0])  # south and east sign the true list, in which north's keys are older ones
    own = SiteKey(make_site_key()[0])
    for signed, complaint in (
        (b"", "client 1 has not signed"),
        (true.attempt.vouched[1], "client 1 has signed other keys"),
        (own.sign(voucher(sites[0]).text(1, shown)) + compressed(own.public), "none of this site's peers"),
    ):
        parcel = {"clients": torch.arange(3), "shares": torch.zeros(3, 82, dtype=torch.uint8)}
        rows = {0: bytes(VOUCH), 2: true.attempt.vouched[2]} | ({1: signed} if signed else {})
        reply = true.ask(0, "masked", {**parcel, **vouched_rows(rows, [0, 1, 2])})
        assert reply.error is not None and complaint in reply.error and not reply.up


def voucher(site: Site) -> SiteVoucher:
    found = site.plan().voucher
    assert isinstance(found, SiteVoucher)
    return found


def test_a_key_stands_for_one_site_only(sites: list[Site]) -> None:
    """South, who works together with the coordinator, signs in the name of a third site too."""
    played = Coordinator(sites)
    played.share()
    south = voucher(sites[1])
    played.attempt.vouched[2] = south.sign(2, played.attempt.everyone)
    assert "client 2 has signed by a key that another client has" in str(played.masked()[0])


def test_a_site_that_is_no_peer_is_refused_by_the_policys_line(sites: list[Site], base: CoordinatorDirectory) -> None:
    say_peers(sites[0], [fingerprint(voucher(site).key.public) for site in sites[:2]])
    played = Coordinator(sites)
    service = SiteService(sites[0])
    played.workers[0] = service.worker.worker
    assert played.workers[0].run(Job("train", 1, 0)).error is None
    played.attempt = played.secure.attempt(1, {id: keys_again(played, id) for id in played.workers})
    played.share()
    refused = played.masked()
    east = fingerprint(voucher(sites[2]).key.public)
    assert east in str(refused[0]) and "none of this site's peers" in str(refused[0])
    assert refused[1] is None and refused[2] is None  # they know all three
    service._note_refusals(Job("masked", 1, 0))
    (line,) = [line for line in service.audit.lines() if line["task"] == "refused"]
    assert "policy.toml, line 2: peers = " in line["policy"] and east in line["words"]


def keys_again(played: Coordinator, client: int) -> torch.Tensor:
    return expect_keys(played.ask(client, "keys", {}).up)


def test_a_site_without_peers_of_its_own_is_told_to_have_some(sites: list[Site]) -> None:
    say_peers(sites[2], [])
    played = Coordinator(sites)
    played.share()
    said = played.masked()
    assert "client 2 has not signed" in str(said[0]) and "needs peers in its policy, too" in str(said[1])


def test_all_that_sign_must_be_there_or_the_attempt_is_begun_anew(sites: list[Site]) -> None:
    """Who shared no secrets has signed nothing, and could be made up: four of which one is lost are not enough."""
    played = Coordinator(sites)
    everyone = played.attempt.everyone
    keys = {id: torch.tensor([list(key) for key in everyone.public[id]], dtype=torch.uint8) for id in range(3)}
    more = {**keys, 3: torch.arange(64, dtype=torch.uint8).reshape(2, 32)}
    played.attempt = Attempt(1, more, played.secure._point(), lambda count: 3)
    played.share()
    with pytest.raises(TooFewSitesError, match=r"3 of 4 clients signed the list; .* all must"):
        played.attempt.parcels()


def test_what_is_no_signature_is_refused() -> None:
    assert expect_vouch({}) == b"" and vouched_by({}, [1]) == {}
    with pytest.raises(Exception, match=f"{VOUCH} bytes were expected"):
        expect_vouch({VOUCHED: torch.zeros(SIGNED, dtype=torch.uint8)})
    with pytest.raises(Exception, match="was expected"):
        vouched_by({VOUCHED: torch.zeros(1, VOUCH)}, [1])


def test_a_signature_of_one_list_fits_no_other(sites: list[Site]) -> None:
    north = voucher(sites[0])
    everyone = Coordinator(sites).attempt.everyone
    others = [replace(everyone, round=2), Coordinator(sites).attempt.everyone]
    texts = {north.text(0, each) for each in (everyone, *others)} | {north.text(1, everyone)}
    assert len(texts) == 4


def test_fingerprints_may_be_typed_in_any_way_and_others_are_refused(tmp_path: Path, sites: list[Site]) -> None:
    assert fingerprint_of(STRANGER.upper().replace(" ", ":")) == STRANGER
    for wrong in ("1234", STRANGER + " 8888", STRANGER.replace("7", "g"), ""):
        (sites[0].path / "policy.toml").write_text(f'counts = "exact"\npeers = ["{wrong}"]\n')
        with pytest.raises(ConfigError, match=r"policy.toml, line 2: peers = .*no fingerprint of a site's key"):
            sites[0].follow_policy()


def test_without_tls_there_is_nothing_to_know_a_site_by(tmp_path: Path) -> None:
    base = places.base(tmp_path / "base", tls=False, quorum=3, filters=[{"name": "secure_sum"}])
    site = places.site(tmp_path / "north", base.invite("north"), policy=f'peers = ["{STRANGER}"]\n')
    complaint = r"peers = .*without TLS sites have no keys"
    with pytest.raises(ConfigError, match=complaint):
        trial(site)
    later = places.site(tmp_path / "south", base.invite("south"))
    later.plan()
    with pytest.raises(ConfigError, match=complaint):  # else it would go on and check nobody
        say_peers(later, [STRANGER])


def test_the_check_says_whether_anybody_looks_at_keys(
    tmp_path: Path, sites: list[Site], base: CoordinatorDirectory
) -> None:
    def warned(site: Site) -> str:
        return " ".join(make_statement(site, trial(site)).warnings)

    assert "keys" not in warned(sites[0]) and "peers" not in warned(sites[0])
    say_peers(sites[0], [])
    assert "a coordinator that lies about them reads what this site sends" in warned(sites[0])
    given = places.site(tmp_path / "west", base.invite("west"), policy=f'peers = ["{STRANGER}"]\n')
    assert "The coordinator made this site's key" in warned(given)
    plain = places.base(tmp_path / "plain")
    alone = places.site(tmp_path / "island", plain.invite("island"), policy=f'peers = ["{STRANGER}"]\n')
    assert "names peers, and the task makes no secure sum" in warned(alone)


def test_a_whole_federation_of_sites_that_know_each_other(tmp_path: Path) -> None:
    """They learn what they would without signatures."""
    pytest.importorskip("flwr", reason="lacking: extra flower")
    import grid
    from parties import make_base, make_site
    from test_coordinator import serve

    def records(folder: Path, *peers: int) -> list[tuple[float | None, float | None, list[int]]]:
        folder.mkdir()
        base = make_base(folder / "base", NAMES, patience=0.1, filters=[{"name": "secure_sum"}])
        made = [make_site(folder / name, base.path / "bundles" / f"{name}.protea", name) for name in NAMES]
        for site in made if peers else ():
            prints = [fingerprint(voucher(made[number]).key.public) for number in peers]
            with (site.path / "policy.toml").open("r+") as file:
                text = file.read()
                file.seek(0)
                file.write(f"peers = {prints}\n{text}")
        keys = {number: base.site_keys[name] for number, name in enumerate(NAMES)}
        found = serve(base, grid.Wire([SiteService(Site(site.path)).handle for site in made], keys=keys))
        sent = {line["task"] for line in SiteService(made[0]).audit.lines() if VOUCHED in line["tensors"]}
        assert sent == ({"shares"} if peers else set())
        return [(record.loss, record.accuracy, record.participants) for record in found]

    known = records(tmp_path / "known", 0, 1, 2)
    assert known == records(tmp_path / "unknown") and [who for _, _, who in known] == [[0, 1, 2]] * 2
