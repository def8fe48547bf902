"""A coordinator and its sites in one process: their own code on both sides, without Flower's programs between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from sklearn.datasets import load_digits

pytest.importorskip("flwr", reason="lacking: extra flower")

import grid
from flwr.app import Message
from parties import NAMES, alone, make_base, make_site, over_network

from protea.core.errors import ConfigError
from protea.engines.flower import grid as network
from protea.engines.flower import punctuality
from protea.engines.flower.codec import unwrap, wrap
from protea.engines.flower.grid import Network
from protea.engines.messages import joined, parted, reply_from_bytes, reply_to_bytes
from protea.federation.record import Record
from protea.network.coordinator.directory import CoordinatorDirectory
from protea.network.coordinator.service import Coordinator
from protea.network.coordinator.status import Status
from protea.network.site.directory import Site
from protea.network.site.service import SiteService
from protea.report import content as report
from protea.report.page import page
from protea.runs.directory import RunDirectory


def federation(tmp_path: Path, **settings: Any) -> tuple[CoordinatorDirectory, list[Site], grid.Wire]:
    base = make_base(tmp_path / "base", tls=False, patience=0.1, **settings)
    sites = [make_site(tmp_path / name, base.path / "bundles" / f"{name}.protea", name) for name in NAMES]
    return base, sites, grid.Wire([SiteService(site).handle for site in sites])


def serve(
    base: CoordinatorDirectory, wire: grid.Wire, show: Callable[[Status, str | None], None] | None = None
) -> list[Record]:
    Coordinator(base, show or (lambda status, news: None), carrier=wire).serve()
    return Record.read(RunDirectory.open(base.path / "run").metrics())


def spoiling(client: int) -> Callable[[Message, Message], Message]:
    """All uploads of one site come without their last class."""

    def meddle(asked: Message, answer: Message) -> Message:
        if grid.names([asked]) != ["job"] or asked.metadata.dst_node_id != grid.FIRST + client:
            return answer
        replies = [reply_from_bytes(part) for part in parted(unwrap(answer.content, 2**31))]
        spoilt = [replace(r, up={**r.up, "counts": torch.zeros(3)}) if r.samples else r for r in replies]
        return Message(wrap(joined([reply_to_bytes(reply) for reply in spoilt])), reply_to=asked)

    return meddle


def test_it_ends_as_without_a_network(tmp_path: Path) -> None:
    base, sites, wire = federation(tmp_path)
    serve(base, wire)
    assert over_network(base, sites) == alone(base.task, sites, tmp_path / "alone")
    assert all(site.ended.exists() for site in sites)


def test_sites_with_the_safe_policy_federate_and_are_reported_on(tmp_path: Path) -> None:
    base, sites, wire = federation(tmp_path)
    for site in sites:
        (site.path / "policy.toml").unlink()
    wire.handles = [SiteService(Site(site.path)).handle for site in sites]
    last = serve(base, wire)[-1]
    assert last.accuracy is not None and last.accuracy > 0.2 and last.failures == {}
    assert last.test["method"].balanced is None and last.classes == {}
    assert all(each.parts["test"].samples % 10 == 0 and each.parts["test"].classes == {} for each in last.clients)
    told = report.content(report.read([base.path / "run"]))
    assert "balanced" in page(told)


def test_methods_with_public_data_and_a_model_on_the_server_work_too(tmp_path: Path) -> None:
    images = torch.from_numpy((load_digits().images[-40:] * 15).astype("uint8")).unsqueeze(1)
    method = {"name": "fedprotokd", "actp_epochs": 5, "server_epochs": 2}
    models = {"dim": 16, "server": "tiny_mlp"}
    public = save({"x": images})
    base, sites, wire = federation(tmp_path, public=public, method=method, models=models, shape=[1, 8, 8])
    found = serve(base, wire)
    assert over_network(base, sites) == alone(base.task, sites, tmp_path / "alone")
    assert found[-1].values["server_loss"] is not None


def test_it_waits_until_somebody_is_there(tmp_path: Path) -> None:
    base, _, wire = federation(tmp_path, quorum=1)
    wire.online = set()
    doing = []

    def show(status: Status, news: str | None) -> None:
        doing.append(status.doing)
        if len(doing) > 4:
            wire.online = {1}

    found = serve(base, wire, show)
    assert doing[4].startswith("waiting for north, south, east (0 of 1 there)")
    assert [record.participants for record in found] == [[1], [1]]


def test_a_site_that_is_refused_again_and_again_is_asked_no_more(tmp_path: Path) -> None:
    base, _, wire = federation(tmp_path, quorum=2, rounds=4, limits={"quarantine": 2})
    wire.meddle = spoiling(2)
    found = serve(base, wire)
    assert [record.refused for record in found] == [[2], [2], [], []]
    assert [record.participants for record in found] == [[0, 1, 2], [0, 1, 2], [0, 1], [0, 1]]
    asked = [m for m in wire.pushed if m.metadata.dst_node_id == grid.FIRST + 2 and grid.names([m]) == ["job"]]
    assert {message.metadata.group_id for message in asked} == {"1", "2"}  # nor to evaluate


def test_a_site_that_is_stuck_costs_one_round_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From round 3 on nothing comes of it, until round 5; what it answers then is what was asked of it last."""
    monkeypatch.setattr(network, "LOOK", 0.0)  # seconds: sites are looked for in every round, however quick it is
    base, _, wire = federation(tmp_path, quorum=2, rounds=8)
    stuck, kept, news = [False], dict[str, Message](), list[str]()

    def meddle(asked: Message, answer: Message) -> Message | None:
        if not stuck[0] or asked.metadata.dst_node_id != grid.FIRST + 2:
            return answer
        kept[asked.metadata.message_id] = answer
        return None

    def show(status: Status, said: str | None) -> None:
        news.extend([said] if said else [])
        if said and said.startswith("Round 2 "):
            stuck[0] = True
            monkeypatch.setattr(punctuality, "LEAST", 1.0)  # seconds
        if said and said.startswith("Round 5 "):
            stuck[0] = False
            monkeypatch.setattr(punctuality, "LEAST", 60.0)  # nobody else is late, however busy the machine
            wire.replies |= kept

    wire.meddle = meddle
    found = serve(base, wire, show)
    took_part = [2 in record.participants and 2 not in record.failures for record in found]
    assert took_part[:2] == [True, True] and took_part[-1] and not any(took_part[3:5])
    out = [record for record in found if 2 in record.failures]
    assert [record.round for record in out] == [3, 4]  # one message: to evaluate round 3, and to train for round 4
    assert all("no answer within" in record.failures[2] and not record.refused for record in out)
    assert [each for each in news if "east" in each and "Left out" not in each] == [
        "east has come.",
        "east is late; rounds go on without it until it answers.",
        "east has come.",
    ]


def test_late_sites_are_waited_for_where_the_round_would_not_count_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(punctuality, "LEAST", 0.1)
    base, _, wire = federation(tmp_path, rounds=3)
    kept = dict[str, Message]()

    def meddle(asked: Message, answer: Message) -> Message | None:
        if grid.names([asked]) == ["job"] and asked.metadata.dst_node_id == grid.FIRST + 2 and not kept:
            kept[asked.metadata.message_id] = answer
            threading.Timer(1.0, lambda: wire.replies.update(kept)).start()
            return None
        return answer

    wire.meddle = meddle
    assert [record.participants for record in serve(base, wire) if not record.failures] == [[0, 1, 2]] * 3


def test_refusals_count_in_rounds_that_come_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two good answers are not enough for a quorum of three; the third site is counted out all the same."""
    base, _, wire = federation(tmp_path, quorum=3, limits={"quarantine": 2})
    wire.meddle = spoiling(2)
    monkeypatch.setattr("protea.network.coordinator.service.PAUSE", 0.0)
    news = list[str]()

    class EnoughError(Exception):
        pass

    def show(status: Status, said: str | None) -> None:
        news.extend([said] if said else [])
        if status.doing.startswith("waiting"):
            raise EnoughError

    with pytest.raises(EnoughError):
        serve(base, wire, show)
    anew = [line for line in news if "begun anew" in line]
    assert len(anew) == 2 and "2 usable replies came, 3 are needed (quorum)" in anew[0]


def test_sites_are_told_of_the_end_after_a_crash_in_the_last_step(tmp_path: Path) -> None:
    base, sites, wire = federation(tmp_path, rounds=1)
    serve(base, wire)
    (base.path / "run" / "summary.json").unlink()
    for site in sites:
        site.ended.unlink()
    again = grid.Wire(wire.handles)
    assert len(serve(base, again)) == 1
    assert all(site.ended.exists() for site in sites) and "job" not in grid.names(again.pushed)


def test_a_node_with_another_key_is_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Network.dismiss, "__defaults__", (0.5,))  # seconds: it stays, and is not told of the end
    base = make_base(tmp_path / "base", quorum=2, patience=0.1)
    sites = [make_site(tmp_path / name, base.path / "bundles" / f"{name}.protea", name) for name in NAMES]
    wire = grid.Wire([SiteService(site).handle for site in sites])
    wire.keys = {
        0: base.site_keys["north"],
        1: base.site_keys["south"],
        2: base.site_keys["north"],
    }  # east is not
    news = list[str]()
    found = serve(base, wire, lambda status, said: news.extend([said] if said else []))
    assert [record.participants for record in found] == [[0, 1], [0, 1]]
    assert "A node was turned away: a node says that it is 'east', and has another key than that site." in news


def test_a_task_that_was_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    base, _, wire = federation(tmp_path, rounds=1)
    serve(base, wire)
    (base.path / "run" / "summary.json").unlink()
    task = (base.path / "task.toml").read_text()
    (base.path / "task.toml").write_text(task.replace("lr = 0.05", "lr = 0.06"))
    with pytest.raises(ConfigError, match=r"task\.toml is not as it was when .* was begun"):
        serve(base, wire)


def test_without_tls_no_other_machine_is_let_in(tmp_path: Path) -> None:
    base, _, _ = federation(tmp_path)
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0 is refused"):
        Coordinator(base, lambda status, news: None, "0.0.0.0")
