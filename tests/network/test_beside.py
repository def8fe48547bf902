"""A site with ``beside = true``: what it would have alone, what it sees of that, and what of it leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

import places
import torch

from protea.clients.durable import newest_state
from protea.core.errors import PayloadError, PolicyError
from protea.core.message import Named
from protea.core.payload import unpack
from protea.engines.messages import reply_from_bytes
from protea.evaluation.examination import Examination
from protea.evaluation.server_side import Judged
from protea.federation.jobs import JobKind, Reply
from protea.network.coordinator.directory import CoordinatorDirectory
from protea.network.site import beside
from protea.network.site.directory import Site
from protea.network.site.gains import gains_of
from protea.network.site.service import SiteService
from protea.network.site.statement import evaluation_words
from protea.network.task import Task

BESIDE = 'beside = true\nseed = "task"\n'
GENEROUS = f"gain = true\n{places.ALL}"


class Parties:
    """A coordinator, and one site that it talks to."""

    def __init__(self, path: Path, settings: str = BESIDE, policy: str = GENEROUS, **task: Any) -> None:
        self.base: CoordinatorDirectory = places.base(path / "base", **task)
        self.site: Site = places.site(path / "north", self.base.invite("north"), settings=settings, policy=policy)
        self.service = SiteService(self.site)

    def ask(self, task: JobKind, round: int, down: Named | None = None) -> Reply:
        answer = self.service.handle("job", self.base.signer("job", places.job(task, round, 0, down)))
        return reply_from_bytes(places.only(answer))

    @property
    def gains(self) -> list[dict[str, Any]]:
        file = gains_of(self.site.path)
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def weights(self, folder: Path) -> bytes:
        """The state of the client in the folder of a durable store."""
        state = newest_state(folder, 0)
        assert state is not None
        return (state / "client-000.safetensors").read_bytes()


def test_the_second_model_is_that_of_a_site_that_trains_alone(tmp_path: Path) -> None:
    here = Parties(tmp_path / "a")
    alone = Parties(tmp_path / "b", settings='seed = "task"\n', method="local")
    for round in (1, 2):
        here.ask("train", round)
        here.service.meanwhile()
        alone.ask("train", round)
    assert here.weights(here.site.state / "alone") == alone.weights(alone.site.state)
    here.ask("evaluate", 2)
    (line,) = here.gains
    (theirs,) = alone.ask("evaluate", 2).up["tallies.test.hits"][:1].sum(-1).tolist()
    assert line["alone"] * line["samples"] == pytest.approx(theirs) and line["round"] == 2
    assert line["low"] <= line["accuracy"] - line["alone"] <= line["high"]


def test_the_federation_is_not_changed_by_it(tmp_path: Path) -> None:
    with_it, without = Parties(tmp_path / "a"), Parties(tmp_path / "b", settings='seed = "task"\n')
    for each in (with_it, without):
        each.ask("train", 1)
        each.service.meanwhile()
        each.ask("evaluate", 1)
    ours, theirs = with_it.ask("train", 2), without.ask("train", 2)
    assert ours.metrics == theirs.metrics and all(torch.equal(ours.up[name], theirs.up[name]) for name in theirs.up)


def test_only_the_difference_leaves_and_only_if_the_policy_says_so(tmp_path: Path) -> None:
    told, silent = Parties(tmp_path / "a"), Parties(tmp_path / "b", policy=places.ALL)
    for each in (told, silent):
        each.ask("train", 1)
    up = told.ask("evaluate", 1).up
    (line,) = told.gains
    assert float(up.pop("gain")) == round(line["accuracy"] - line["alone"], 3)
    assert up.keys() == silent.ask("evaluate", 1).up.keys() and len(silent.gains) == 1
    assert "much better the site is" in evaluation_words(told.site)
    assert "much better the site is" not in evaluation_words(silent.site)
    sent = [line for line in told.service.audit.lines() if line["task"] == "evaluate"]
    assert "gain" in sent[-1]["tensors"]


@pytest.mark.parametrize("report", ["accuracy", "none"])
def test_a_site_that_tells_less_still_sees_its_gain(report: str, tmp_path: Path) -> None:
    policy = f'report = "{report}"\ngain = true\n'
    here = Parties(tmp_path, policy=policy)
    here.ask("train", 1)
    assert ("gain" in here.ask("evaluate", 1).up) == (report == "accuracy")
    assert len(here.gains) == 1


def test_after_a_restart_it_catches_up(tmp_path: Path) -> None:
    here = Parties(tmp_path)
    here.ask("train", 1)
    here.service.meanwhile()
    here.ask("train", 3)  # it had no part in the second round
    here.service = SiteService(Site(here.site.path))
    assert here.service.beside is not None and here.service.beside.behind() == [3]
    here.ask("evaluate", 3)
    assert here.service.beside.behind() == [] and here.gains[-1]["round"] == 3


def test_switched_on_late_it_trains_all_rounds_before_anything_is_said(tmp_path: Path) -> None:
    here = Parties(tmp_path, settings='seed = "task"\n', rounds=6)
    for round in range(1, 5):
        here.ask("train", round)  # of which the states of three are kept
    (here.site.path / "site.toml").write_text(f'device = "cpu"\n{BESIDE}')
    here.service = SiteService(Site(here.site.path))
    assert here.service.beside is not None and here.service.beside.behind() == [1, 2, 3, 4]
    here.ask("evaluate", 4)
    assert here.gains == []
    while here.service.beside.behind():
        here.service.meanwhile()
    here.ask("evaluate", 4)
    assert [line["round"] for line in here.gains] == [4]


def test_a_protected_site_compares_with_the_model_that_it_has_anyway(tmp_path: Path) -> None:
    here = Parties(tmp_path, protect=True)
    here.ask("train", 1)
    here.service.meanwhile()
    here.ask("evaluate", 1)
    assert len(here.gains) == 1 and newest_state(here.site.state / "alone", 0) is None


def test_what_goes_wrong_there_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*anything: object) -> None:
        raise MemoryError("no room for a second model")

    here = Parties(tmp_path)
    here.ask("train", 1)
    monkeypatch.setattr(beside, "right", broken)
    assert here.ask("evaluate", 1).error is None and here.gains == []
    assert here.service.beside is None and "the federation goes on without it" in capfd.readouterr().err
    assert here.ask("train", 2).error is None


def test_nothing_leaves_that_was_not_agreed_on(tmp_path: Path) -> None:
    here = Parties(tmp_path, policy=places.ALL)
    here.ask("train", 1)
    answer = here.ask("evaluate", 1)
    smuggled = Reply(0, 1, {**answer.up, "gain": torch.tensor(0.1, dtype=torch.float64)})
    with pytest.raises(PolicyError, match="gain = false"):
        here.site.release.verify(places.asked("evaluate", 1), smuggled, here.service._passage(places.asked("train", 1)))


@pytest.mark.parametrize("gain", [torch.tensor(1.5, dtype=torch.float64), torch.tensor([0.1])])
def test_a_coordinator_takes_no_other_number_for_a_gain(gain: torch.Tensor, tmp_path: Path) -> None:
    here = Parties(tmp_path)
    here.ask("train", 1)
    up, task = here.ask("evaluate", 1).up, Task(tuple(places.CLASSES))
    judged = Judged(len(task.classes), 16)
    judged.take(0, judged.read(up))
    assert judged.clients()[0].gain == float(up["gain"])
    with pytest.raises(PayloadError, match="no difference of two accuracies"):
        judged.read({**up, "gain": gain})
    assert unpack(Examination, up) is not None
