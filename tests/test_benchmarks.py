"""The benchmarks measure what they say: turns, ratios, and the same work on both sides."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from protea.engines import EngineSettings
from protea.experiment import federation, open_engine, prepare

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    import measure

    return measure


def test_every_second_turn_goes_backwards(measure: Any) -> None:
    order: list[str] = []
    seconds = measure.in_turns({name: lambda name=name: order.append(name) for name in "ab"}, 3)
    assert "".join(order) == "abbaab"
    assert {name: len(each) for name, each in seconds.items()} == {"a": 3, "b": 3}


def test_ratios_leave_out_the_first_turn(measure: Any) -> None:
    first, second = [100.0, 2.0, 9.0, 4.0], [1.0, 1.0, 3.0, 1.0]
    assert measure.ratio(first, second) == 3.0  # of 2, 3 and 4
    assert measure.of_totals(first, second) == 3.0  # 15 / 5


def test_each_run_is_a_line_of_json(measure: Any, tmp_path: Path) -> None:
    table = measure.Table(method=10, over_local=12)
    table.add("fedproto", 1.25)
    for _ in range(2):
        table.keep("methods", {"rounds": 3, "folder": tmp_path}, tmp_path / "results")
    one, two = ((tmp_path / "results" / "methods.jsonl").read_text().splitlines())[:2]
    line = json.loads(two)
    assert line["numbers"] == [{"method": "fedproto", "over_local": 1.25}]
    assert line["settings"] == {"rounds": 3, "folder": tmp_path.name}
    assert line.keys() == json.loads(one).keys() >= {"date", "commit", "torch", "cores", "command"}


@pytest.mark.parametrize("method", ["fedproto", "fedtgp", "protonorm", "fedsa", "fedpagr"])
def test_the_plain_loop_does_the_same_work(method: str, measure: Any) -> None:
    import plain
    import target

    experiment = target.setting(
        method, rounds=2, samples=240, clients=3, family="tiny5", data="digits", lr=0.02, alpha=1.0
    )
    recipe = prepare(experiment)
    theirs = list(plain.rounds(experiment, recipe, 1))
    with closing(open_engine(replace(experiment, engine=EngineSettings("inline")), recipe)) as engine:
        ours = list(federation(experiment, recipe, engine).run())
    for one, other in zip(theirs, ours, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-3)
        assert one.accuracy == pytest.approx({rule: score.weighted for rule, score in other.test.items()}, abs=0.02)
