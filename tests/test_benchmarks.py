"""The benchmarks measure what they say: turns, ratios, and the same work on both sides."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from every import light
from night import by_night
from wanted import extra

from protea.config.sections import Engine
from protea.runs.prepare import prepare
from protea.runs.simulation import federation, open_engine

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    import measure

    return measure


@pytest.mark.parametrize("folder", ["benchmarks", "docs", "examples", "fuzz"])
def test_scripts_import_what_there_is(folder: str) -> None:
    """Also in pieces of code that they start as processes of their own."""
    found = {
        (node.module, name.name)
        for path in (FOLDER.parent / folder).rglob("*.py")
        for tree in [ast.parse(path.read_text("utf-8"))]
        for node in [*ast.walk(tree), *chain.from_iterable(map(ast.walk, pieces(tree)))]
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "protea"
        for name in node.names
    }
    assert found
    lacking = ["protea.engines.flower", *(["protea.network"] if find_spec("flwr") is None else [])]  # need an extra
    for module, name in sorted(found):
        if not module.startswith(tuple(lacking)):
            assert hasattr(import_module(module), name) or import_module(f"{module}.{name}"), f"{module} has no {name}"


def pieces(tree: ast.AST) -> Iterator[ast.AST]:
    """Texts of a script that are Python themselves."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "from protea" in node.value:
            with suppress(SyntaxError):
                yield ast.parse(node.value)


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


@pytest.mark.parametrize("method", ["fedproto", "fedtgp", *by_night("protonorm", "fedsa", "fedpagr")])
def test_the_plain_loop_does_the_same_work(method: str, measure: Any) -> None:
    import plain
    import target

    experiment = target.setting(
        method, rounds=2, samples=240, clients=3, family="tiny5", data="digits", lr=0.02, alpha=1.0
    )
    experiment = replace(experiment, method=light(experiment.method))
    factory = prepare(experiment)
    theirs = list(plain.rounds(experiment, factory, 1))
    with closing(open_engine(replace(experiment, engine=Engine("inline")), factory)) as engine:
        ours = list(federation(experiment, factory, engine).run())
    for one, other in zip(theirs, ours, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-3)
        rules = {rule: score.weighted for rule, score in other.test.items() if rule != "blend"}  # which it does not do
        assert one.accuracy == pytest.approx(rules, abs=0.02)


def test_growth_is_against_the_smallest_value(measure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import growth

    monkeypatch.setattr(growth, "AXES", {"classes": (10, 40)})
    monkeypatch.setattr(growth, "SAMPLES", 400)
    table = measure.Table(setting=9, value=7, round_s=9, over_first=12, server=8, kB_down=9)
    growth.grown("classes", "fedproto", 0, 3, table)
    first, second = table.rows
    assert (first["value"], first["over_first"]) == (10, 1.0) and second["value"] == 40
    assert second["kB_down"] == pytest.approx(4 * first["kB_down"])
    assert 0 < first["server"] < 1


def test_the_newest_numbers_are_drawn(measure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra("plots")
    import plots

    monkeypatch.setattr(plots, "RESULTS", tmp_path)
    tables = {
        "growth": [{"setting": name, "value": v, "over_first": v / 10} for name in plots.NAMES for v in (10, 20)],
        "scale": [{"clients": n, "engine_memory": None, "over_20_clients": 1.0} for n in (100, 500)],
        "geometry": [{"step": "fedpagr", "classes": c, "form": "ours", "ms": 1.0} for c in (10, 100)],
        "target": [{"method": "fedproto", "plain_over_protea": 1.5}],
    }
    for name, rows in tables.items():
        usual = {"family": "htcnn8", "batch": 10, "samples": 2000}
        lines = (
            {"settings": usual, "numbers": []},
            {"settings": usual, "numbers": rows},
            {"settings": {} if name == "target" else usual, "numbers": [] if name == "target" else rows},
        )
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    plots.main(str(tmp_path / "found.png"))
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
