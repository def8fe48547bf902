"""The live page: what it reads, whom it answers, and how it looks in a real browser."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import waiting
import warm
from answered import answered_round, answered_run
from browsing import all_of, choose, chromium
from typer.testing import CliRunner

import protea
from protea import Data, Experiment
from protea.cli.app import app
from protea.config.families import Models
from protea.config.sections import Engine
from protea.core.addresses import is_loopback
from protea.core.errors import ConfigError
from protea.core.training import Training
from protea.data.sources.digits import Digits
from protea.federation.record import Record
from protea.methods.fedproto import FedProto
from protea.methods.local import Local
from protea.runs.directory import RunDirectory
from protea.runs.reader import RunReader
from protea.watch.collection import Collection
from protea.watch.live import LiveContent, gains_now, state_of, states
from protea.watch.places import federation_of, mark_of, run_paths, sweep_of
from protea.watch.rows import refusals, row
from protea.watch.server import LiveServer

ANSWERS = {0: "1101", 1: "10"}
SMALL = Experiment(
    rounds=4,
    clients=4,
    data=Data(source=Digits(), samples=240),
    models=Models(family="tiny5", dim=16),
    training=Training(batch=20, lr=0.05),
    engine=Engine("inline"),
)


def going(path: Path, rounds: int = 1, **settings: Any) -> RunDirectory:
    """A run that is in the round after these."""
    answered_run(path, FedProto(), *([ANSWERS] * rounds), **settings)
    (path / "summary.json").unlink()
    return RunDirectory(path)


@contextmanager
def served(folder: Path, host: str = "127.0.0.1") -> Iterator[LiveServer]:
    """The live page of a folder, looked at without pause."""
    collection = Collection([folder])
    collection.look()
    collection.start(lambda error: pytest.fail(repr(error)))
    with LiveServer(collection, host, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        collection.stop()
        server.shutdown()
        thread.join()


def asked(server: LiveServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    """The status, text and headers of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, {name.lower(): value for name, value in answer.getheaders()}


# What is read


def test_runs_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("fedproto-s10", "fedproto-s2", "fedproto-s1", "local-s1"):
        going(tmp_path / name)
    assert [path.name for path in run_paths([tmp_path])] == ["fedproto-s1", "fedproto-s2", "fedproto-s10", "local-s1"]


def test_runs_sweeps_and_federations_are_found_in_folders(tmp_path: Path) -> None:
    assert run_paths([tmp_path]) == []  # nothing yet, and no error
    going(tmp_path / "one")
    going(tmp_path / "sweep" / "a")
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps({"runs": [{}, {}]}))
    going(tmp_path / "home" / "run")
    sites = [{"name": "north", "key": None}, {"name": "south", "key": None, "removed": True}]
    (tmp_path / "home" / "federation.json").write_text(json.dumps({"sites": sites}))
    collection = Collection([tmp_path])
    collection.look()
    assert sorted(each["name"] for each in collection.rows.values()) == ["home/run", "one", "sweep/a"]
    places = {each["name"]: each for each in collection.places}
    assert places["sweep"]["planned"] == 2 and places["sweep"]["runs"] == [mark_of(tmp_path / "sweep" / "a")]
    assert [site["removed"] for site in places["home"]["sites"]] == [False, True]
    (tmp_path / "home" / "status.json").write_text(
        json.dumps({"doing": "training", "sites": [{"name": "north", "connected": True, "said": "answered"}]})
    )
    found = federation_of(tmp_path / "home")
    assert found is not None and found["doing"] == "training" and found["sites"][0]["connected"] is True
    (tmp_path / "sweep" / "sweep.json").write_text("[]")
    assert sweep_of(tmp_path / "sweep") is None


def test_a_row_says_how_far_a_run_is(tmp_path: Path) -> None:
    run = RunReader.read(going(tmp_path / "run", 2).path)
    slow = [replace(record, cost=replace(record.cost, seconds={"train": 3.0})) for record in run.rounds]
    run = replace(run, config={**run.config, "rounds": 10}, rounds=slow)
    told = row(run, touched=100.0, failed=None, now=110.0)
    assert (told["state"], told["round"], told["planned"], told["left"]) == ("running", 2, 10, 24.0)
    assert told["accuracy"] == pytest.approx(4 / 6, rel=1e-4) and told["seconds"] == 6.0
    assert row(run, touched=100.0, failed=None, now=200.0)["state"] == "stopped"
    assert row(run, touched=100.0, failed="ValueError: no", now=110.0)["state"] == "failed"
    over = row(replace(run, summary={"method": "fedproto", "accuracy": 0.5, "warnings": {"low": "Low."}}), 100.0, None)
    assert (over["state"], over["accuracy"], over["warnings"], over["left"]) == ("ended", 0.5, ["Low."], None)


def troubled(number: int) -> Record:
    record = answered_round(number, ANSWERS)
    return replace(record, failures={1: "not finite\nmore"}, refused=[1], absent={0: "late"}, participants=[0, 1])


def test_refusals_are_told_the_latest_first_with_their_reason(tmp_path: Path) -> None:
    run = going(tmp_path / "run")
    run.append([line for number in (2, 3) for line in troubled(number).lines()])
    found = refusals(RunReader.read(run.path))
    assert found[0] == {"round": 3, "client": "client 1", "kind": "refused", "why": "not finite"}
    assert [(each["round"], each["kind"]) for each in found[1:]] == [(3, "absent"), (2, "refused"), (2, "absent")]
    last = RunReader.read(run.path).rounds[-1]
    assert [state_of(client, last) for client in (0, 1, 2)] == ["late", "refused", "not asked"]
    assert state_of(0, None) == "waiting"


def test_a_client_has_its_gain_over_training_alone_in_the_latest_common_round(tmp_path: Path) -> None:
    ours = RunReader.read(answered_run(tmp_path / "p", FedProto(), {0: "1111", 1: "00"}, {0: "1110", 1: "11"}))
    alone = RunReader.read(answered_run(tmp_path / "l", Local(), {0: "1100", 1: "00"}, {0: "1100", 1: "01"}))
    assert gains_now(ours, alone) == {0: 0.25, 1: 0.5} and gains_now(ours, None) == {}
    assert gains_now(ours, replace(alone, rounds=alone.rounds[:1])) == {0: 0.5, 1: 0.0}
    assert states(ours, alone) == []  # this run has no line on its clients
    collection = Collection([tmp_path])
    collection.look()
    live = LiveContent(collection)
    reference = live._reference(ours)
    assert reference is not None and reference.path == alone.path and live._reference(alone) is None


def test_news_are_rows_that_changed(tmp_path: Path) -> None:
    first, second = going(tmp_path / "a"), going(tmp_path / "b")
    collection = Collection([tmp_path])
    collection.look()
    told = collection.news_since(-1)
    assert set(told["rows"]) == {mark_of(first.path), mark_of(second.path)} and told["version"] == 1
    collection.look()
    assert collection.version == 1 and collection.news_since(1)["rows"] == {}
    second.append(answered_round(2, ANSWERS).lines())
    collection.look()
    assert set(collection.news_since(1)["rows"]) == {mark_of(second.path)}
    (second.path / "metrics.jsonl").write_text("broken\n")
    collection.look()
    broken = collection.rows[mark_of(second.path)]
    assert broken["state"] == "unreadable" and "cannot be read" in broken["error"]
    shutil.rmtree(first.path)
    collection.look()
    assert collection.news_since(0)["order"] == [mark_of(second.path)]


def test_two_hundred_runs_are_sent_lightly(tmp_path: Path) -> None:
    answered_run(tmp_path / "0", FedProto(), *([ANSWERS] * 30))
    config = (tmp_path / "0" / "config.toml").read_text()
    assert tomllib.loads(config)["seed"] == 1
    for seed in range(2, 201):
        shutil.copytree(tmp_path / "0", tmp_path / str(seed))
        (tmp_path / str(seed) / "config.toml").write_text(config.replace("seed = 1\n", f"seed = {seed}\n", 1))
    collection = Collection([tmp_path])
    collection.look()
    live = LiveContent(collection)
    told = live.of(list(collection.rows), None)
    assert len(told["runs"]) == 200 and len(told["groups"]) == 1 and "More than 40" in told["comparison"]["why"]
    assert len(json.dumps(told)) < 1_000_000
    assert told["runs"][0]["details"] and "details" not in told["runs"][1]
    assert told["runs"][1]["scores"]["test"]["method"]["weighted"] == [pytest.approx(4 / 6, rel=1e-4)] * 30


def test_what_is_kept_of_runs_is_made_anew_when_they_go_on_or_end(tmp_path: Path) -> None:
    going(tmp_path / "a"), going(tmp_path / "b", seed=2)
    collection = Collection([tmp_path])
    live = LiveContent(collection)

    def told() -> dict[str, Any]:
        collection.look()
        return live.of(list(collection.rows), None)

    first = told()
    assert first == told() and [each["runs"] for each in first["groups"]] == [[0, 1]]
    RunDirectory(tmp_path / "b").append(answered_round(2, ANSWERS).lines())
    assert [each["rounds"] for each in told()["runs"]] == [[1], [1, 2]]
    assert all(each["summary"] is None for each in told()["runs"])
    answered_run(tmp_path / "ended", FedProto(), ANSWERS)
    shutil.copy(tmp_path / "ended" / "summary.json", tmp_path / "a")
    assert next(each for each in told()["runs"] if each["name"] == "a")["summary"] is not None
    shutil.rmtree(tmp_path / "a")
    assert [each["name"] for each in told()["runs"]] == ["b", "ended"]


# Whom it answers


def test_only_reading_is_answered_and_only_under_a_name_of_this_machine(tmp_path: Path) -> None:
    going(tmp_path / "run")
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    with served(tmp_path) as server:
        status, text, headers = asked(server, "/")
        assert status == 200 and text.startswith("<!doctype html>") and server.token is None
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and headers["cache-control"] == "no-store"
        assert asked(server, "/", Host="evil.example:80")[0] == 403
        assert asked(server, "/", Host="localhost:1")[0] == 200
        for method in ("POST", "PUT", "DELETE"):
            assert asked(server, "/", method)[0] == 501
        for path in ("/config.toml", "/../run/config.toml", f"/{tmp_path}/run/config.toml", "//etc/passwd"):
            assert asked(server, path)[0] == 404
        mark = mark_of(tmp_path / "run")
        assert json.loads(asked(server, f"/content?run={mark}&run=unknown")[1])["marks"] == [mark]
        assert json.loads(asked(server, "/content?run=../../etc")[1])["runs"] == []
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_beyond_this_machine_every_address_needs_the_token(tmp_path: Path) -> None:
    going(tmp_path / "run")
    with served(tmp_path, "0.0.0.0") as server:
        assert server.token is not None and len(server.token) >= 32 and server.url.endswith(f"?token={server.token}")
        for path in ("/", "/events", "/content", "/?token=", "/?token=x"):
            status, text, _ = asked(server, path)
            assert status == 403 and "token" in text and server.token not in text
        assert asked(server, f"/?token={server.token}", Host="lab.example:1")[0] == 200
    assert [is_loopback(host) for host in ("localhost", "127.0.0.9", "::1", "0.0.0.0", "lab")] == [True] * 3 + [
        False
    ] * 2


def test_events_come_when_a_round_ends(tmp_path: Path) -> None:
    run = going(tmp_path / "run")
    with served(tmp_path) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
        connection.request("GET", "/events")
        answer = connection.getresponse()
        assert answer.getheader("Content-Type") == "text/event-stream; charset=utf-8"

        def event() -> dict[str, Any]:
            while not (line := answer.readline()).startswith(b"data: "):
                pass
            told: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            return told

        mark = mark_of(run.path)
        assert event()["rows"][mark]["round"] == 1
        run.append(answered_round(2, ANSWERS).lines())
        assert event()["rows"][mark]["round"] == 2
        connection.close()


# The command


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["watch", str(tmp_path / "no"), "--no-browser"])
    assert isinstance(found.exception, ConfigError) and "is not a folder" in str(found.exception)
    with served(tmp_path) as server:
        port = str(server.server_address[1])
        found = CliRunner().invoke(app, ["watch", str(tmp_path), "--port", port, "--no-browser"])
        assert isinstance(found.exception, ConfigError) and "Choose another --port" in str(found.exception)


def test_the_command_prints_its_url_serves_and_ends_when_told(tmp_path: Path) -> None:
    going(tmp_path / "run")
    log = tmp_path / "log"
    process = warm.command("watch", tmp_path, "--port", "0", "--no-browser", log=log)
    waiting.until(lambda: log.is_file() and log.read_text().count("\n"))
    first = log.read_text().splitlines()[0]
    assert first.startswith("Live page: http://127.0.0.1:")
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(first.split()[-1]).port or 0, timeout=10)
    connection.request("GET", "/")
    assert connection.getresponse().status == 200
    connection.close()
    os.kill(process.pid or 0, signal.SIGTERM)
    process.join(20)
    assert process.exitcode == 143 and "Ended." in log.read_text()
    script = "import protea.watch.server, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# In a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with snapshots and one of training alone on the same split."""
    folder = tmp_path_factory.mktemp("trained")
    protea.run(SMALL, folder / "first")
    protea.run(replace(SMALL, method=Local()), folder / "local")
    return folder


def until(browser: Any, script: str) -> None:
    """Wait until something holds on the page."""
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, 20, poll_frequency=0.05).until(lambda page: page.execute_script(f"return {script}"))


def said(browser: Any, css: str) -> str:
    """What an element says, read in one step: the page may be drawn anew between two."""
    found: str = browser.execute_script("return document.querySelector(arguments[0]).innerText", css)
    return found


def scrolled_to(browser: Any, figure: str) -> None:
    """Bring a figure to the screen: what nobody sees is not drawn anew."""
    browser.execute_script(f"document.getElementById('{figure}').scrollIntoView()")


def hosts_asked(browser: Any) -> set[str]:
    """The hosts that the browser was asked to send requests to."""
    found = set()
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            found.add(urlsplit(message["params"]["request"]["url"]).netloc)
    return found


@contextmanager
def replayed(trained: Path, folder: Path, name: str = "first") -> Iterator[tuple[Path, list[bytes]]]:
    """The directory of a run after its first two rounds, and the lines of metrics of each later round."""
    target = folder / name
    shutil.copytree(trained / name, target)
    (target / "summary.json").unlink()
    lines = (target / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if line.startswith(b'{"kind": "round"')]
    later = [b"".join(lines[a:b]) for a, b in zip(starts[2:], [*starts[3:], len(lines)], strict=True)]
    (target / "metrics.jsonl").write_bytes(b"".join(lines[: starts[2]]))
    for number in (3, 4):
        (target / "prototypes" / f"{number:06d}.safetensors").unlink()
    yield target, later


def test_the_page_appears_follows_rounds_and_asks_nobody_else(browser: Any, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "local", tmp_path / "local")
    with replayed(trained, tmp_path) as (run, later), served(tmp_path) as server:
        browser.get_log("performance")
        browser.get(server.url)
        until(browser, "document.querySelectorAll('#accuracy .series').length === 2")
        assert said(browser, "#connection").endswith("Live")
        first, local = said(browser, "tr[data-run=first]"), said(browser, "tr[data-run=local]")
        assert "running" in first and "2 of 4" in first and "ended" in local
        assert said(browser, "#states tbody").count("trained") == 4
        until(browser, "document.querySelector('#section-prototypes input[type=range]').max === '1'")
        assert said(browser, "#section-prototypes output") == "round 2"

        # A third round: its prototypes, then its lines.
        shutil.copy(trained / "first" / "prototypes" / "000003.safetensors", run / "prototypes")
        with (run / "metrics.jsonl").open("ab") as file:
            file.write(later[0])
        until(browser, "document.querySelector('#section-prototypes output').textContent === 'round 3'")
        until(browser, "document.querySelector('#section-prototypes input[type=range]').max === '2'")
        scrolled_to(browser, "accuracy")
        until(browser, "document.querySelector('#accuracy .series').dataset.points === '3'")
        scrolled_to(browser, "loss")
        until(browser, "[...document.querySelectorAll('#loss .series')].some((each) => each.dataset.points === '3')")
        assert "3 of 4" in said(browser, "tr[data-run=first]")

        # Moved back, the slider stays where the reader put it, while rounds come.
        scrolled_to(browser, "section-prototypes")
        move = "const at = document.querySelector('#section-prototypes input[type=range]'); at.value = 1; "
        browser.execute_script(move + "at.dispatchEvent(new Event('input'))")
        assert "after round 2" in said(browser, "#map .note")
        shutil.copy(trained / "first" / "prototypes" / "000004.safetensors", run / "prototypes")
        with (run / "metrics.jsonl").open("ab") as file:
            file.write(later[1])
        shutil.copy(trained / "first" / "summary.json", run)
        until(browser, "document.querySelector('tr[data-run=first] .state').textContent === 'ended'")
        until(browser, "document.querySelector('#section-prototypes input[type=range]').max === '3'")
        assert said(browser, "#section-prototypes output") == "round 2"
        until(browser, "document.querySelector('#gain-clients')")  # both have ended, and compare

        # A run that begins appears; another can be shown in detail, or be left out.
        protea_run = going(tmp_path / "new")
        until(browser, "document.querySelector('tr[data-run=new]')")
        assert protea_run.begun
        until(browser, "document.querySelector('#clients-of-run option[value=\"1\"]')")
        choose(browser, "clients-of-run", "1")
        until(browser, "document.querySelector('#clients-of-run').value === '1'")

        # What is chosen while an answer is on its way is not lost to that answer.
        until(browser, "!asking")
        slow = "const ask = window.fetch; window.slow = 0; window.fetch = async (...all) => { window.slow++; "
        wait = "const told = await ask(...all); await new Promise((go) => setTimeout(go, 300)); "
        both = "window.slow--; return told; }; live.ask(); const menu = document.getElementById('clients-of-run'); "
        chosen = "menu.value = '0'; menu.dispatchEvent(new Event('change', { bubbles: true }));"
        browser.execute_script(slow + wait + both + chosen)
        shown = "window.slow === 0 && content.shown === 0 && document.querySelector('#clients-of-run').value === '0'"
        until(browser, shown)
        browser.execute_script("document.getElementById('choose-none').click()")
        until(browser, "document.querySelector('main .missing')")
        browser.execute_script(f"document.getElementById('run-{mark_of(run)}').click()")
        until(browser, "document.querySelectorAll('#accuracy .series').length === 5")  # of one run, its clients
        assert browser.get_log("browser") == []
        assert hosts_asked(browser) <= {urlsplit(server.url).netloc, ""}
        browser.get("about:blank")


def test_the_page_is_there_in_the_dark_on_a_phone_and_with_many_runs(
    browser: Any, trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained / "first", tmp_path / "first")
    config = (trained / "first" / "config.toml").read_text()
    for seed in range(2, 40):
        shutil.copytree(
            trained / "first", tmp_path / f"seed-{seed}", ignore=shutil.ignore_patterns("c*s", "prototypes")
        )
        (tmp_path / f"seed-{seed}" / "config.toml").write_text(config.replace("seed = 1\n", f"seed = {seed}\n", 1))
    (tmp_path / "seed-2" / "error.txt").write_text("Traceback\nValueError: " + 40 * "a long reason ")
    (tmp_path / "seed-2" / "summary.json").unlink()
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    with served(tmp_path) as server:
        browser.get(server.url)
        until(browser, "document.querySelector('#accuracy .series')")
        assert len(all_of(browser, "#runs tbody tr")) == 39
        browser.find_element("id", "filter").send_keys("failed")
        assert [each.get_attribute("data-run") for each in all_of(browser, "#runs tbody tr:not([hidden])")] == [
            "seed-2"
        ]
        browser.find_element("id", "filter").clear()
        browser.execute_script("document.getElementById('filter').dispatchEvent(new Event('input'))")
        browser.execute_script("document.getElementById('choose-found').click()")
        scrolled_to(browser, "accuracy")
        until(browser, "document.querySelector('#accuracy .series').dataset.name === 'fedproto (39 seeds)'")
        assert browser.execute_script("return document.documentElement.scrollWidth") == 390
        assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"
        assert len(all_of(browser, "#accuracy .band")) == 1
        assert browser.get_log("browser") == []
        browser.get("about:blank")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
