"""Sites with different architectures, TLS and keys: who is let in, and that the end is the same as in one process."""

from __future__ import annotations

import json
import shutil
import ssl
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest
from night import by_night

pytest.importorskip("flwr", reason="lacking: extra flower")

from parties import NAMES, alone, make_base, make_site, over_network, parties
from waiting import until

from protea.engines.flower.node import Node
from protea.network.site.service import Audit
from protea.network.trust import keys

pytestmark = pytest.mark.xdist_group("deployment")


@pytest.mark.parametrize(
    ("names", "cold"),
    [(NAMES[:1], False), *by_night((NAMES[:2], True), (NAMES, True))],
    ids=["one", "two", "three"],
)
def test_sites_over_tls_end_as_in_one_process(names: tuple[str, ...], cold: bool, tmp_path: Path) -> None:
    directory = make_base(tmp_path / "directory", names)
    sites = [make_site(tmp_path / name, directory.path / "bundles" / f"{name}.protea", name) for name in names]
    expected = alone(directory.task, sites, tmp_path / "alone")
    with parties(tmp_path, cold) as all_of:
        server = all_of.serve(directory)
        joined = [all_of.join(site) for site in sites]
        assert server.wait() == 0
        assert [party.wait(30) for party in joined] == [0] * len(sites)
        assert server.said().count(f"{names[-1]} has come") == 1
    assert over_network(directory, sites) == expected

    # Each site has noted just what it sent.
    for site in sites:
        told = [(line["task"], line["round"]) for line in Audit(site.path / "audit.jsonl").lines()]
        assert told == [("hello", 0), ("train", 1), ("evaluate", 1), ("train", 2), ("evaluate", 2), ("end", 2)]


def test_who_was_not_invited_is_refused_and_nothing_begins(tmp_path: Path) -> None:
    """One without a key of this federation, one that trusts another federation, and one that does not encrypt."""
    directory, other = make_base(tmp_path / "directory", ["north"]), make_base(tmp_path / "other", ["north"])
    site = make_site(tmp_path / "north", directory.path / "bundles" / "north.protea", "north")
    address = f"localhost:{directory.guests.port}"
    stranger, elsewhere = tmp_path / "stranger", tmp_path / "elsewhere"
    shutil.copytree(site.path, stranger)
    (stranger / "bundle" / "site.key").write_bytes(keys.make_site_key()[0])
    shutil.copytree(site.path, elsewhere)
    shutil.copy(other.path / "keys" / "ca.crt", elsewhere / "bundle" / "ca.crt")
    with parties(tmp_path) as all_of:
        server = all_of.serve(directory)
        trusting = ssl.create_default_context(cafile=str(directory.path / "keys" / "ca.crt"))
        until(lambda: healthy(f"https://{address}/health", trusting))
        without_key, wrong_ca = all_of.join(stranger), all_of.join(elsewhere)
        unencrypted = Node(tmp_path / "unencrypted", address)
        tries = iter(range(3))
        unencrypted.attend(lambda kind, message: pytest.fail(f"{kind} came"), lambda: next(tries, None) is None)
        found = json.loads((unencrypted.folder / "connection.json").read_bytes())
        assert found["state"] == "away" and not (unencrypted.folder / "node.json").exists()
        until(lambda: "does not let this site in" in without_key.said())
        assert wrong_ca.wait() == 2 and "certificate is not one of this federation's" in wrong_ca.said()
        with pytest.raises(OSError) as refusal:
            urllib.request.urlopen(f"http://{address}/health", timeout=10)
        assert not isinstance(refusal.value, HTTPError)  # there is no answer in the clear, not even a no
        assert "has come" not in server.said() and "Round 1" not in server.said()


def healthy(url: str, context: ssl.SSLContext) -> bool:
    try:
        return urllib.request.urlopen(url, context=context, timeout=10).status == 200
    except OSError:
        return False
