"""What a coordinator tells Prometheus: the numbers of its records, in the text format, to those who may ask."""

from __future__ import annotations

import http.client
import re
import stat
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

import grid
from parties import NAMES, make_base, make_site
from typed import Command

import protea
from protea.core.errors import ConfigError
from protea.federation.record import Record
from protea.network.coordinator.metrics import MetricsServer, exposition, parse_address
from protea.network.coordinator.service import Coordinator
from protea.network.coordinator.status import Guest, Status
from protea.network.site.service import SiteService
from protea.network.task import new_task
from protea.runs.directory import RunDirectory

LINE = re.compile(r'([a-z_]+)((?:\{(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*\})?) (-?[0-9.e+-]+|NaN|[+-]Inf)')


def parsed(text: str) -> dict[str, float]:
    """The samples of a page; every line must be as the format says, and each family be described before its samples."""
    found, described = dict[str, float](), set[str]()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# "):
            described.add(line.split()[2])
            continue
        match = LINE.fullmatch(line)
        assert match is not None and match[1] in described, line
        assert match[1] + match[2] not in found
        found[match[1] + match[2]] = float(match[3])
    return found


def asked(server: MetricsServer, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.getheader("Content-Type") or ""


def test_numbers_are_those_of_the_records_round_by_round(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", tls=False, patience=0.1)
    sites = [make_site(tmp_path / name, base.path / "bundles" / f"{name}.protea", name) for name in NAMES]
    pages = dict[int, dict[str, float]]()
    with MetricsServer("0", base.path) as server:

        def show(status: Status, news: str | None) -> None:
            server.show(status, news)
            if news and news.startswith("Round "):
                code, text, kind = asked(server)
                assert code == 200 and kind == "text/plain; version=0.0.4; charset=utf-8"
                pages[status.round] = parsed(text)

        Coordinator(base, show, carrier=grid.Wire([SiteService(site).handle for site in sites])).serve()
    records = Record.read(RunDirectory.open(base.path / "run").metrics())
    assert sorted(pages) == [record.round for record in records] == [1, 2]
    for record in records:
        page = pages[record.round]
        assert page["protea_round"] == record.round and page["protea_rounds_planned"] == 2
        assert page["protea_accuracy"] == record.accuracy and page["protea_loss"] == record.loss
        assert page['protea_bytes_total{direction="up"}'] == record.total_up > 0
        assert page['protea_bytes_total{direction="down"}'] == record.total_down
        assert page["protea_sites"] == page["protea_sites_connected"] == 3
        for each, name in zip(record.clients, NAMES, strict=True):
            assert page[f'protea_site_accuracy{{site="{name}"}}'] == each.accuracy
            assert page[f'protea_site_connected{{site="{name}"}}'] == 1
    assert f'protea_info{{version="{protea.__version__}",method="fedproto"}}' in pages[1]
    assert not (base.path / "metrics.token").exists()


def status() -> Status:
    return Status(new_task({"classes": ["a", "b"]}, []))


def test_names_of_sites_cannot_break_out_of_their_quotes() -> None:
    told = status()
    told.sites = [Guest('a"} 1\nprotea_round 7'), Guest("back\\slash"), Guest("gone", removed=True)]
    told.loss = float("nan")
    page = parsed(exposition(told))
    assert page["protea_round"] == 0 and page['protea_site_connected{site="a\\"} 1\\nprotea_round 7"}'] == 0
    assert page['protea_site_connected{site="back\\\\slash"}'] == 0 and page["protea_sites"] == 2
    assert page["protea_loss"] != page["protea_loss"] and "gone" not in exposition(told)
    assert "protea_accuracy" not in page  # which is not known yet


def test_it_answers_this_machine_alone_and_nothing_but_metrics(tmp_path: Path) -> None:
    with MetricsServer("0", tmp_path) as server:
        server.show(status(), None)
        assert server.url == f"http://127.0.0.1:{server.server_address[1]}/metrics" and server.token is None
        assert asked(server)[0] == 200 and asked(server, Host="localhost:1")[0] == 200
        assert asked(server, Host="evil.example")[0] == 403
        assert [asked(server, path)[0] for path in ("/", "/../task.toml", "/metrics/x")] == [404] * 3
        assert [asked(server, "/metrics", method)[0] for method in ("POST", "PUT", "DELETE")] == [501] * 3
        with pytest.raises(ConfigError, match="Choose another port"):
            MetricsServer(str(server.server_address[1]), tmp_path)


def test_beyond_this_machine_a_token_is_needed_which_stays(tmp_path: Path) -> None:
    with MetricsServer("0.0.0.0:0", tmp_path) as server:
        server.show(status(), None)
        token = server.token
        assert token is not None and len(token) >= 32 and server.url.endswith(f"/metrics?token={token}")
        for path in ("/metrics", "/metrics?token=", "/metrics?token=x", "/"):
            code, text, _ = asked(server, path)
            assert code == 403 and token not in text and "protea_" not in text
        assert asked(server, f"/metrics?token={token}", Host="lab.example")[0] == 200
    assert stat.S_IMODE((tmp_path / "metrics.token").stat().st_mode) == 0o600
    with MetricsServer("0.0.0.0:0", tmp_path) as server:
        assert server.token == token


@pytest.mark.parametrize("address", ["", "x", "1.2.3.4", "70000", "1:2:3", "-1", "lab:²"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="expected is a port, such as 9464"):
        parse_address(address)


def test_the_command_refuses_before_any_work(tmp_path: Path, typed: Command) -> None:
    base = make_base(tmp_path / "base", tls=False)
    done = typed("federation", "serve", base.path, "--metrics", "lab")
    assert done.code == 2 and "expected is a port" in done.err and not (base.path / "run").exists()
