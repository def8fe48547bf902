"""Processes that are killed while a round is on: a federation goes on, and ends where it would have ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

from parties import NAMES, Parties, Party, alone, amid_round_two, make_base, make_site, over_network, parties, records
from waiting import until

from protea.network.coordinator.directory import CoordinatorDirectory
from protea.network.coordinator.ledger import read_entries
from protea.network.site.directory import Site

pytestmark = [
    pytest.mark.network,
    pytest.mark.xdist_group("deployment"),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are found in /proc"),
]


def federation(tmp_path: Path, **settings: Any) -> tuple[CoordinatorDirectory, list[Site]]:
    base = make_base(tmp_path / "base", **{"rounds": 3, "patience": 100.0, **settings})
    return base, [make_site(tmp_path / name, base.path / "bundles" / f"{name}.protea", name) for name in NAMES]


def process(*words: str | Path) -> int:
    """The id of the one process whose command line has all these words."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if all(str(word) in line for word in words) and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    assert len(found) == 1, found
    return found[0]


def start(all_of: Parties, base: CoordinatorDirectory, sites: list[Site]) -> tuple[Any, list[Any]]:
    return all_of.serve(base), [all_of.join(site) for site in sites]


def kill_site(all_of: Parties, base: CoordinatorDirectory, site: Site, server: Party, joined: Party) -> Party:
    joined.kill()
    all_of.join(site)
    return server


def kill_client_process(all_of: Parties, base: CoordinatorDirectory, site: Site, server: Party, joined: Party) -> Party:
    os.kill(process("protea.network.site.process import serve", site.path), signal.SIGKILL)
    until(lambda: "it is started anew" in joined.said())
    return server


def kill_coordinator(all_of: Parties, base: CoordinatorDirectory, site: Site, server: Party, joined: Party) -> Party:
    server.kill()
    return all_of.serve(base)


def kill_superlink(all_of: Parties, base: CoordinatorDirectory, site: Site, server: Party, joined: Party) -> Party:
    os.kill(process("flower-superlink", base.path), signal.SIGKILL)
    return server


@pytest.mark.parametrize("kill", [kill_site, kill_client_process, kill_coordinator, kill_superlink])
def test_what_is_killed_amid_a_round_leaves_no_trace_in_the_end(kill: Any, tmp_path: Path) -> None:
    """Killed is the process of a site, its client process, the coordinator's, or the SuperLink."""
    base, sites = federation(tmp_path)
    expected = alone(base.task, sites, tmp_path / "alone")
    with parties(tmp_path, cold=True) as all_of:
        server, joined = start(all_of, base, sites)
        amid_round_two(sites[0])
        server = kill(all_of, base, sites[0], server, joined[0])
        (sites[0].path / "slow").unlink()
        assert server.wait(400) == 0
    assert over_network(base, sites) == expected


def test_a_site_that_is_gone_is_waited_for_until_the_deadline_and_goes_on_where_it_was(tmp_path: Path) -> None:
    """The round goes on without it: here the end cannot be what it would have been."""
    base, sites = federation(tmp_path, quorum=2, deadline=60.0, late=0.0)  # a cold start may take half of it
    with parties(tmp_path, cold=True) as all_of:
        server, joined = start(all_of, base, sites)
        amid_round_two(sites[0])
        joined[0].kill()
        # The server notices up to a minute later that it is gone; by then it may have been asked for round 3 as well.
        until(lambda: "north has gone" in server.said() or "Sent in round 3: train" in joined[1].said(), 300)
        (sites[0].path / "slow").unlink()
        all_of.join(sites[0])
        assert server.wait(400) == 0
    found = records(base)
    assert found[1].participants == [0, 1, 2] and list(found[1].failures) == [0]
    assert "no answer within 60 s" in found[1].failures[0] and not found[1].refused
    assert found[2].participants == [0, 1, 2] and not found[2].failures
    assert sorted(path.name for path in (sites[0].path / "state" / "client-000").glob("[0-9]*"))[-1] == "000003"


def test_a_site_joins_later_and_another_is_removed(tmp_path: Path) -> None:
    base, sites = federation(tmp_path, quorum=2)
    (sites[0].path / "slow").touch()
    with parties(tmp_path, cold=True) as all_of:
        server, joined = start(all_of, base, sites)
        amid_round_two(sites[0])
        base.remove("south")
        newcomer = make_site(tmp_path / "west", base.invite("west"), "west")
        all_of.join(newcomer)
        assert server.wait(400) == 0
        until(lambda: "does not let this site in" in joined[1].said())
    last = records(base)[-1]
    assert 1 not in last.participants and 3 in last.participants and not last.failures
    assert newcomer.id == 3 and (newcomer.path / "state" / "client-003" / "000003").exists()


def test_a_site_that_is_stopped_costs_one_round_and_comes_back_when_it_goes_on(tmp_path: Path) -> None:
    base, sites = federation(tmp_path, quorum=2, rounds=100)
    with parties(tmp_path, cold=True) as all_of:
        server, _ = start(all_of, base, sites)
        until(lambda: "Round 2 of" in server.said(), 200)
        stuck = process("protea.network.site.process import serve", sites[0].path)
        os.kill(stuck, signal.SIGSTOP)
        try:
            until(lambda: "north is late" in server.said(), 150)  # the deadline is 200 s
            seen = len(records(base))
            until(lambda: len(records(base)) > seen + 3, 150)
        finally:
            os.kill(stuck, signal.SIGCONT)
        until(lambda: server.said().count("north has come") == 2, 150)
        until(lambda: 0 in records(base)[-1].participants and not records(base)[-1].failures, 150)
    found = records(base)
    assert len([record for record in found if 0 in record.failures]) <= 2  # one message: evaluate, and train
    assert all(record.participants == [1, 2] for record in found[seen + 1 : seen + 3])
    assert {entry.site for entry in read_entries(base.path / "run" / "ledger.jsonl")} == set(NAMES)
