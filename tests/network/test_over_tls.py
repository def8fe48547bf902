"""Three sites with three architectures, TLS and keys: who is let in, and that the end is the same as in one process."""

from __future__ import annotations

import shutil
import ssl
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest

pytest.importorskip("flwr", reason="the extra flower is not installed")

from parties import NAMES, alone, make_base, make_site, over_network, parties, until

from protea.engines.flower.node import Node
from protea.network.site.service import Audit
from protea.network.trust import keys

pytestmark = pytest.mark.xdist_group("deployment")


def test_three_sites_over_tls_end_as_in_one_process_and_others_are_refused(tmp_path: Path) -> None:
    directory, other = make_base(tmp_path / "directory"), make_base(tmp_path / "other")
    sites = [make_site(tmp_path / name, directory.path / "bundles" / f"{name}.protea", name) for name in NAMES]
    expected = alone(directory.task, sites, tmp_path / "alone")
    address = f"localhost:{directory.guests.port}"
    with parties(tmp_path) as all_of:
        server = all_of.serve(directory)
        first = [all_of.join(site) for site in sites[:2]]
        until(lambda: "south has come" in server.said() and "north has come" in server.said())

        # The third is missing, so nothing begins; meanwhile some come who were not invited.
        stranger = tmp_path / "stranger"
        shutil.copytree(sites[2].path, stranger)
        (stranger / "bundle" / "site.key").write_bytes(keys.make_site_key()[0])
        without_key = all_of.join(stranger)
        elsewhere = tmp_path / "elsewhere"
        shutil.copytree(sites[2].path, elsewhere)
        shutil.copy(other.path / "keys" / "ca.crt", elsewhere / "bundle" / "ca.crt")
        wrong_ca = all_of.join(elsewhere)
        unencrypted = Node(tmp_path / "unencrypted", address)

        until(lambda: "does not let this site in" in without_key.said())
        assert wrong_ca.wait() == 2 and "certificate is not one of this federation's" in wrong_ca.said()
        with pytest.raises(OSError) as refusal:
            urllib.request.urlopen(f"http://{address}/health", timeout=10)
        assert not isinstance(refusal.value, HTTPError)  # there is no answer in the clear, not even a no
        trusting = ssl.create_default_context(cafile=str(directory.path / "keys" / "ca.crt"))
        assert urllib.request.urlopen(f"https://{address}/health", context=trusting, timeout=10).status == 200
        until(lambda: "retrying" in unencrypted.program.said(1000))  # it has tried
        assert "SuperNode ID" not in unencrypted.program.said(1000)
        unencrypted.stop()
        assert "Round 1" not in server.said()

        first.append(all_of.join(sites[2]))
        assert server.wait() == 0
        assert [party.wait(30) for party in first] == [0, 0, 0]
        assert server.said().count("east has come") == 1
    assert over_network(directory, sites) == expected

    # Each site has noted just what it sent.
    for site in sites:
        told = [(line["task"], line["round"]) for line in Audit(site.path / "audit.jsonl").lines()]
        assert told == [("hello", 0), ("train", 1), ("evaluate", 1), ("train", 2), ("evaluate", 2), ("end", 2)]
