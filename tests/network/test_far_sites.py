"""Sites on machines of their own, with addresses of their own and bad lines: network namespaces of this machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from wanted import lacking

pytest.importorskip("flwr", reason="lacking: extra flower")

import namespaces
from parties import NAMES, alone, amid_round_two, make_base, make_site, over_network, parties, records

pytestmark = [pytest.mark.network, pytest.mark.xdist_group("deployment")]
DELAY, LOSS, CUT = 0.05, 0.01, 60.0  # seconds each way, share of packets, seconds of the partition


@pytest.mark.parametrize("cut", [0.0, CUT], ids=["delay and loss", "a site is cut off for a minute"])
def test_sites_far_away_end_as_in_one_process(cut: float, tmp_path: Path) -> None:
    """50 ms each way, every hundredth packet is lost; and in the middle of a round a line is cut for a minute."""
    if what := namespaces.missing():
        lacking(what)
    base = make_base(tmp_path / "base", rounds=4, patience=200.0, deadline=400.0, host=namespaces.HUB)
    sites = [make_site(tmp_path / name, base.path / "bundles" / f"{name}.protea", name) for name in NAMES]
    expected = alone(base.task, sites, tmp_path / "alone")
    with namespaces.machines(NAMES, DELAY, LOSS) as net, parties(tmp_path, cold=True) as all_of:
        server = all_of.serve(base, net.spaces["hub"])
        for site in sites:
            all_of.join(site, space=net.spaces[site.path.name])
        if cut:
            amid_round_two(sites[0])
            net.cut.add("north")
            time.sleep(cut)
            net.cut.clear()
            (sites[0].path / "slow").unlink()
        assert server.wait(600) == 0
    assert over_network(base, sites) == expected
    found = records(base)
    seconds = [round(sum(record.cost.seconds.values()), 1) for record in found]
    sys.stderr.write(f"rounds took {seconds} s; {net.lost} of {net.carried} packets were lost\n")
    assert net.lost > 0 and not any(record.failures for record in found)
