"""A federation calls its sites by their names, shows no zeros for what it does not know, and says when it has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

from parties import make_site
from test_coordinator import federation, serve, spoiling

from protea.cli.federation import first_words
from protea.engines.flower import grid as network
from protea.network.coordinator.names import naming
from protea.network.site.service import SiteService
from protea.report import content as report
from protea.report.page import page
from protea.runs.directory import RunDirectory
from protea.watch.live import states


def test_records_and_reports_say_north_and_have_no_false_zeros(tmp_path: Path) -> None:
    base, _, wire = federation(tmp_path, quorum=2, rounds=3)
    wire.meddle = spoiling(2)
    news = list[str]()
    records = serve(base, wire, lambda status, said: news.extend([said] if said else []))
    why = records[0].failures[2]
    assert why.startswith("east, round 1: ") and "client 2" not in str(records)
    assert any(each.startswith("Left out, east: round 1: ") for each in news) and news[-1] == "All rounds are done."
    run = RunDirectory.open(base.path / "run")
    described = [line for line in run.metrics() if line["kind"] == "data"]
    first, last = described[0]["clients"], described[-1]["clients"]
    assert [each["site"] for each in first] == [each["site"] for each in last] == ["north", "south", "east"]
    assert [each["architecture"] for each in last] == ["site.py:Own", "tiny_cnn", "tiny_separable"]
    assert all(each["parameters"] is None and each["train"] == [] for each in last)
    read = report.read([base.path / "run"])
    assert report.majority(read[0]) is None
    told = page(report.content(read))
    assert "client 0" not in told.partition("<script")[0]
    shown = states(read[0], None)
    assert [each["name"] for each in shown] == ["north", "south", "east"]


def test_a_site_that_comes_later_has_its_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "LOOK", 0.0)  # seconds: sites are looked for in every round, however quick it is
    base, _, wire = federation(tmp_path, quorum=2, rounds=4)

    def show(status: object, said: str | None) -> None:
        if said and said.startswith("Round 1 "):
            west = make_site(tmp_path / "west", base.invite("west"), "west")
            wire.handles.append(SiteService(west).handle)

    records = serve(base, wire, show)  # type: ignore[arg-type]
    assert 3 in records[-1].participants
    lines = list(RunDirectory.open(base.path / "run").metrics())
    data = [line for line in lines if line["kind"] == "data"]
    assert [each["site"] for each in data[-1]["clients"]] == ["north", "south", "east", "west"]
    assert data[-1]["clients"][3]["architecture"] == "tiny_mlp"


def test_numbers_that_are_no_sites_stay_as_they_are() -> None:
    named = naming(lambda: ["north", "south"])
    assert named("client 1 and client 2, clients 0") == "south and client 2, clients 0"
    assert named("client " + "9" * 50) == "client " + "9" * 50


def test_the_first_words_say_what_is_waited_for(tmp_path: Path) -> None:
    base, _, _ = federation(tmp_path, quorum=2)
    base.remove("south")
    first, second = first_words(base.path)
    assert "2 rounds" in first and "waits for north, east; a round begins with 2 or more" in second
    for text in ("", "[]", "{}", "[" * 100_000):
        (base.path / "federation.json").write_text(text)
        assert first_words(base.path) == []


def test_a_coordinators_command_imports_nothing_heavy_before_its_first_words() -> None:
    import subprocess
    import sys

    code = (
        "import sys, protea.cli.federation; print([each for each in ('torch', 'numpy', 'flwr') if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
