"""The report: what it reads from runs, and the page in a real browser."""

from __future__ import annotations

import ast
import csv
import hashlib
import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from answered import answered_run
from browsing import all_of, choose, chromium
from pictures import Picture, pictures
from typer.testing import CliRunner
from wanted import extra

import protea
from protea import Data, Experiment, Result
from protea.cli import report as report_command
from protea.cli.app import app
from protea.config.families import Models
from protea.config.sections import Engine, Evaluation
from protea.core.errors import ConfigError
from protea.core.shell import install_hint
from protea.core.training import Training
from protea.data.sources.digits import Digits
from protea.methods.fedproto import FedProto
from protea.methods.local import Local
from protea.report import compared, figures, groups, space, words
from protea.report import content as contents
from protea.report import page as pages
from protea.report.content import content, read
from protea.report.page import embedded, page
from protea.runs.compare import compare
from protea.runs.reader import RunReader

SMALL = Experiment(
    rounds=3,
    clients=4,
    data=Data(source=Digits(), samples=240),
    models=Models(family="tiny5", dim=16),
    training=Training(batch=20, lr=0.05),
    engine=Engine("inline"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def first(folder: Path) -> Result:
    return protea.run(SMALL, folder / "first")


@pytest.fixture(scope="module")
def second(folder: Path) -> Result:
    return protea.run(replace(SMALL, seed=2), folder / "second")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Result:
    """Another method, another protocol, no snapshots."""
    settings = Evaluation(snapshots=0, protocol="best")
    return protea.run(replace(SMALL, method=Local(), evaluation=settings), folder / "alone")


@pytest.fixture(scope="module")
def beside(folder: Path) -> Result:
    """Another method, and all else the same: it compares."""
    return protea.run(replace(SMALL, method=Local()), folder / "beside")


@pytest.fixture(scope="module")
def one(first: Result) -> dict[str, Any]:
    return content([RunReader.read(first.directory)])


@pytest.fixture(scope="module")
def three(first: Result, second: Result, alone: Result) -> dict[str, Any]:
    return content([RunReader.read(run.directory) for run in (first, second, alone)])


@pytest.fixture(scope="module")
def comparable(first: Result, second: Result, beside: Result) -> dict[str, Any]:
    return content([RunReader.read(run.directory) for run in (first, second, beside)])


@pytest.fixture(scope="module")
def going(first: Result, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a run that is in its third round."""
    return content(read([stopped(first.directory, tmp_path_factory.mktemp("runs") / "going", 1 + 2 * 5)]))


@pytest.fixture(scope="module")
def young(first: Result, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a run that has written nothing but its settings."""
    path = stopped(first.directory, tmp_path_factory.mktemp("runs") / "young", 0)
    for name in ("prototypes", "checkpoints"):
        shutil.rmtree(path / name)
    (path / "partition.json").unlink()
    return content(read([path]))


def stopped(source: Path, target: Path, lines: int) -> Path:
    """The run as it was when its metrics had so many lines."""
    shutil.copytree(source, target)
    (target / "summary.json").unlink()
    kept = (target / "metrics.jsonl").read_text().splitlines(keepends=True)[:lines]
    (target / "metrics.jsonl").write_text("".join(kept))
    return target


# What is read


def test_the_course_of_a_run_is_that_of_its_records(first: Result, one: dict[str, Any]) -> None:
    run = one["runs"][0]
    assert run["rounds"] == [1, 2, 3] and run["name"] == "first" and run["planned"] == 3
    for part in ("test", "validation"):
        for rule in first.records[0].test:
            expected = [getattr(record, part)[rule].weighted for record in first.records]
            assert run["scores"][part][rule]["weighted"] == pytest.approx(expected, rel=1e-4)
    assert run["bytes"] == [record.bytes_up + record.bytes_down for record in first.records]
    assert run["majority"] == first.summary["majority"]
    assert run["steps"] == first.summary["steps"] == first.steps
    client = first.records[1].clients[2]
    drawn = run["details"]["accuracies"]["test"]["head"][2][1]
    assert drawn == pytest.approx(client.accuracy_by("head"), rel=1e-4)


def test_accuracy_by_class_is_hits_of_samples_and_nothing_where_there_are_none() -> None:
    assert contents.by_class({"hits": [1, 0, 0], "samples": [4, 2, 0], "answers": [3, 3, 0]}) == [0.25, 0.0, None]
    assert contents.by_class({}) is None


def test_a_run_that_goes_on_is_read_and_knows_the_majority_class(first: Result, going: dict[str, Any]) -> None:
    assert going["runs"][0]["rounds"] == [1, 2] and going["runs"][0]["summary"] is None
    assert going["runs"][0]["majority"] == pytest.approx(first.summary["majority"])
    assert going["notices"][0].startswith("going has not ended: round 2 of 3.")
    assert going["groups"][0]["headline"] is None and going["comparison"] is None


def test_a_run_without_any_line_is_read(young: dict[str, Any]) -> None:
    assert young["runs"][0]["rounds"] == [] and young["runs"][0]["details"]["clients"] == []


def test_a_result_shows_itself_in_three_lines(first: Result) -> None:
    lines = repr(first).splitlines()
    assert len(lines) == 3 and lines[0].startswith(f"Result of fedproto: accuracy {100 * first.accuracy:.1f} % (round")
    assert lines[1].startswith("  3 rounds, commonest class ") and lines[2] == f"  records in {first.directory}"


def test_equal_runs_give_equal_reports(first: Result, one: dict[str, Any]) -> None:
    assert page(content([RunReader.read(first.directory)])) == page(one)


# Groups and differences


def test_seeds_of_one_experiment_are_one_group(first: Result, second: Result, alone: Result) -> None:
    found = groups.of([RunReader.read(run.directory) for run in (first, alone, second)])
    assert found == [{"label": "fedproto", "runs": [0, 2]}, {"label": "local", "runs": [1]}]


def a_run(name: str, seed: int = 1, summary: Any = None, **settings: Any) -> RunReader:
    config = {"seed": seed, "rounds": 3, "method": {"name": "fedproto", "pull": 1.0}, **settings}
    return RunReader(Path(name), config, summary=summary)


def labels(*runs: RunReader) -> list[str]:
    return [group["label"] for group in groups.of(runs)]


def ended(
    method: str = "fedproto", protocol: str = "validation", warnings: dict[str, str] | None = None
) -> dict[str, Any]:
    return {"method": method, "made": {"protocol": protocol}, "warnings": warnings or {}}


def test_a_label_names_what_sets_a_group_apart() -> None:
    strong = a_run("b", method={"name": "fedproto", "pull": 5.0})
    assert labels(a_run("a"), strong, a_run("c", seed=2)) == ["fedproto pull=1", "fedproto pull=5"]
    best = a_run("b", evaluation={"protocol": "best"})
    assert labels(a_run("a"), best) == ["fedproto protocol=validation", "fedproto protocol=best"]
    far = a_run("far", method={"name": "fedproto", "pull": 5.0}, data={"source": {"kind": "npz", "path": 60 * "x"}})
    assert labels(a_run("a"), a_run("b", seed=2), far) == ["fedproto pull=1", "fedproto pull=5 (1)"]
    long = a_run("long", method={"name": "fedproto", "pull": 5.0}, models={"family": 60 * "x"})
    assert labels(a_run("a"), a_run("b", seed=2), long)[1] == "fedproto (long)"


def test_a_run_that_goes_on_is_in_the_group_of_its_seeds_though_its_variant_is_not_known_yet() -> None:
    found = groups.of([a_run("a", seed=2), a_run("b", summary=ended("fedproto@htfllib"))])
    assert found == [{"label": "fedproto@htfllib", "runs": [0, 1]}]


def test_what_differs_that_should_not_is_listed_with_the_runs_that_have_it(first: Result, alone: Result) -> None:
    other = a_run("b", seed=2, method={"name": "local"}, engine={"name": "ray"}, training={"lr": 1.0})
    assert groups.differences([a_run("a"), other]) == []
    assert groups.differences([a_run("a"), a_run("b", rounds=9), a_run("c", seed=2)]) == [
        {"name": "rounds", "values": [{"value": "3", "runs": ["a", "c"]}, {"value": "9", "runs": ["b"]}]}
    ]
    assert groups.differences([a_run("a", summary=ended(protocol="final")), a_run("b")]) == []  # b has not ended
    (found,) = groups.differences([RunReader.read(run.directory) for run in (first, alone)])
    assert found["name"] == "evaluation.protocol, as used"
    assert found["values"] == [{"value": "validation", "runs": ["first"]}, {"value": "best", "runs": ["alone"]}]


def test_another_split_of_the_same_seed_is_said(first: Result, tmp_path: Path) -> None:
    shutil.copytree(first.directory, tmp_path / "moved")
    table = json.loads((tmp_path / "moved" / "partition.json").read_text())
    table["clients"][0], table["clients"][1] = table["clients"][1], table["clients"][0]
    (tmp_path / "moved" / "partition.json").write_text(json.dumps(table))
    (found,) = groups.differences([RunReader.read(first.directory), RunReader.read(tmp_path / "moved")])
    assert found["name"] == "who has which samples, with seed 1"
    assert [value["runs"] for value in found["values"]] == [["first"], ["moved"]]


def test_every_data_set_has_a_majority_of_its_own() -> None:
    digits, mnist = {"source": {"kind": "digits"}}, {"source": {"kind": "mnist"}}
    runs = [
        a_run("a", data=digits),
        a_run("b", data=digits, seed=2),
        a_run("c", data=mnist),
        a_run("d", data=mnist),
    ]
    assert compared.majorities(runs, [0.5, 0.75, 0.25, None]) == [
        {"label": "digits", "runs": [0, 1], "value": 0.625},
        {"label": "mnist", "runs": [2, 3], "value": 0.25},
    ]
    (pooled,) = compared.majorities([*runs[:2], a_run("e", data=digits, method="local")], [0.5, 0.75, 0.5])
    assert pooled == {"label": "", "runs": [0, 1, 2], "value": 0.625}  # of two splits
    some = [
        a_run("a", data=digits, clients=4),
        a_run("b", data=digits, clients=9),
        a_run("c", data=mnist, clients=4),
    ]
    assert [each["label"] for each in groups.data_sets(some)] == [
        "digits, clients 4",
        "digits, clients 9",
        "mnist, clients 4",
    ]


def test_runs_of_one_name_are_told_apart_by_the_folders_above() -> None:
    assert groups.names([a_run("x/a/run"), a_run("x/b/run")]) == ["a/run", "b/run"]
    assert groups.names([a_run("x/a"), a_run("x/a")]) == ["a", "a"]


# Words


def test_the_title_says_what_was_run(first: Result, comparable: dict[str, Any]) -> None:
    assert comparable["title"] == "fedproto, local on digits, 4 clients, Dirichlet 0.1"
    assert comparable["question"] == "3 rounds, 4 architectures (tiny5), seeds 1, 2."
    config = RunReader.read(first.directory).config
    other = {**config, "clients": 9, "data": {**config["data"], "partition": {"kind": "iid"}}}
    assert (
        words.title([a_run("a", **config), a_run("b", **other)])
        == "fedproto on digits, 4 / 9 clients, Dirichlet 0.1 / IID"
    )
    assert [words.span(seeds) for seeds in ([4], [2, 1], [3, 1, 2], [1, 5, 9])] == ["4", "1, 2", "1 to 3", "1, 5, 9"]


def test_a_warning_is_said_once_for_all_seeds_that_have_it() -> None:
    low = "Accuracy in round {} is 20.{}%; always answering a client's commonest class has 30%."
    runs = [
        a_run(
            "a",
            summary=ended(
                warnings={"low": low.format(3, 1), "collapsed": "Global prototypes lie at one point: none is more."}
            ),
        ),
        a_run("b", seed=2, summary=ended(warnings={"low": low.format(3, 7)})),
        a_run("c", seed=3, summary=ended()),
        a_run("d", method="local", summary=ended("local", warnings={"low": low.format(9, 9)})),
        a_run("e", method="local", seed=2),
    ]
    assert words.unfinished([*runs, a_run("f")]) == [
        "2 of 6 runs are not complete: e has not ended: round 0 of 3, f has not ended: round 0 of 3. "
        "Means are over those that are, if any."
    ]
    assert words.notices(runs, groups.of(runs)) == [
        "e has not ended: round 0 of 3. Its numbers are those of its latest evaluation.",
        f"fedproto, seeds 1, 2: {low.format(3, 1)} (Numbers of seed 1.)",
        "fedproto, seed 1: Global prototypes lie at one point: none is more.",
        f"local, seed 1: {low.format(9, 9)}",
    ]


# Methods compared


def test_methods_are_compared_as_the_command_does_it(
    first: Result, second: Result, beside: Result, comparable: dict[str, Any]
) -> None:
    found = comparable["comparison"]
    expected = compare([run.directory for run in (first, second, beside)])
    assert found["against"] == "local" and [row["label"] for row in found["rows"]] == [r.label for r in expected.rows]
    by_label = {row["label"]: row for row in found["rows"]}
    a, b = first.accuracy, second.accuracy
    score = by_label["fedproto"]["score"]
    assert score["mean"] == pytest.approx((a + b) / 2) and score["deviation"] == pytest.approx(abs(a - b) / 2**0.5)
    assert score["margin"] == pytest.approx(12.7062 * abs(a - b) / 2, rel=1e-4)  # Student's t of one degree of freedom
    assert by_label["fedproto"]["difference"] == {
        "count": 1, "mean": pytest.approx(a - beside.accuracy), "deviation": None, "margin": None, "p": None,
    }  # fmt: skip
    assert by_label["local"]["difference"] is None and by_label["local"]["score"]["margin"] is None
    assert comparable["differences"] == [] and comparable["groups"][0]["headline"] == score


def test_gains_are_those_of_the_command_with_the_clients_of_the_first_seed(
    first: Result, beside: Result, comparable: dict[str, Any], tmp_path: Path
) -> None:
    (found,) = comparable["comparison"]["gains"]
    expected = first.gain_over(beside)
    assert found["label"] == "fedproto" and found["over"]["mean"] == pytest.approx(expected.mean)
    assert (found["over"]["low"], found["over"]["high"]) == (expected.low, expected.high)
    assert "training" not in found and "others" not in found
    differences = [each["mean"] for each in found["clients"]]
    assert differences == sorted(differences, reverse=True) and len(differences) == len(expected.clients)
    assert {each["client"]: each["verdict"] for each in found["clients"]} == {
        each.client: each.verdict for each in expected.clients
    }
    extra("plots")
    (picture,) = pictures(comparable, figures.on_page("gain", 0))
    assert len(picture.marks("dumbbell")) == len(differences) and picture.words("key") == ["local", "fedproto"]


def test_methods_with_every_client_alone_are_a_group_of_their_own(tmp_path: Path) -> None:
    answered_run(tmp_path / "p", FedProto(), {0: "1" * 20, 1: "1100"})
    answered_run(tmp_path / "p-alone", FedProto(), {0: "1" * 10 + "0" * 10, 1: "1111"}, alone=True)
    answered_run(tmp_path / "l", Local(), {0: "0" * 20, 1: "1111"})
    runs = read([tmp_path / name for name in ("p", "p-alone", "l")])
    assert [group["label"] for group in groups.of(runs)] == ["fedproto", "fedproto alone", "local"]
    found = {each["label"]: each for each in compared.comparison(runs, [])["gains"]}  # type: ignore[index]
    parts = found["fedproto"]
    assert parts["over"]["mean"] == pytest.approx(18 / 24)
    assert parts["training"]["mean"] == pytest.approx(10 / 24) and parts["others"]["mean"] == pytest.approx(8 / 24)
    assert [each["client"] for each in parts["clients"]] == [0, 1]


def test_a_run_that_is_there_twice_counts_once(first: Result, second: Result, tmp_path: Path) -> None:
    shutil.copytree(first.directory, tmp_path / "copy")
    runs = [RunReader.read(path) for path in (first.directory, tmp_path / "copy", second.directory)]
    found = compared.scores(runs)["headline"]
    assert found["count"] == 2 and found["mean"] == pytest.approx((first.accuracy + second.accuracy) / 2)


def test_where_runs_do_not_compare_there_is_no_table_and_a_reason(three: dict[str, Any], going: dict[str, Any]) -> None:
    assert three["comparison"] == {
        "why": "There is no table of methods compared: these runs do not compare, since they differ in "
        "evaluation.protocol, as used."
    }
    many = [{"name": name} for name in "abcde"]
    assert compared.apart(many) == "these runs do not compare, since they differ in a, b, c and 2 more."


# Prototypes


def test_rows_of_vectors_are_those_of_present_classes() -> None:
    named = {"global.vectors": np.array([[3.0, 4.0], [0.0, 2.0]], np.float16), "global.counts": np.array([5.0, 0, 1])}
    owners, labels, vectors = space.some(named, "global", space.GLOBAL)
    assert owners == [-1, -1] and labels == [0, 2] and vectors.tolist() == [[3, 4], [0, 2]]
    assert space.cosines(named) == {"classes": [0, 2], "rows": [[1.0, 0.8], [0.8, 1.0]]}


def test_a_vector_beyond_half_precision_is_left_out() -> None:
    named = {"0.prototypes.vectors": np.array([[np.inf], [2]], np.float16), "0.prototypes.counts": np.ones(2)}
    assert space.prototypes(named)[:2] == ([0], [1])


def test_pca_of_points_on_a_line_is_that_line() -> None:
    maps, shares = space.project(np.array([[0, 0, 5], [3, 4, 5], [6, 8, 5]], np.float32))
    assert np.abs(maps["pca"]).round(4).tolist() == [[1, 0], [0, 0], [1, 0]] and shares == [1.0, 0.0]
    assert "tsne" not in maps


def test_prototypes_at_one_point_have_a_map_too() -> None:
    maps, _ = space.project(np.ones((20, 8), np.float32))
    assert maps["pca"].tolist() == [[0, 0]] * 20


def test_all_snapshots_lie_on_one_map(first: Result, one: dict[str, Any]) -> None:
    found = one["runs"][0]["details"]["space"]
    assert found["rounds"] == [1, 2, 3] and found["all"] == 3
    owned = sum(sum(count > 0 for count in client["train"]) for client in one["runs"][0]["details"]["clients"])
    for frame in found["prototypes"]["frames"]:
        assert sum(owner >= 0 for owner in frame["owner"]) == owned
        assert len(frame["pca"]) == len(frame["tsne"]) == 2 * len(frame["owner"])
    every = [value for frame in found["prototypes"]["frames"] for value in frame["pca"]]
    assert max(map(abs, every)) == 1.0
    assert list(found["features"]) == [0]
    assert {-2, -1, 0} == set(found["features"][0]["frames"][-1]["owner"])


def test_features_are_of_the_clients_that_most_snapshots_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(*clients: int) -> dict[str, Any]:
        parts = {"features": np.eye(2, dtype=np.float16), "labels": np.array([1, 0])}
        return {f"{client}.{name}": value for client in clients for name, value in parts.items()}

    monkeypatch.setattr(space, "CLIENTS", 2)
    assert space.holders([held(7), held(7, 3, 5), held(3)]) == [3, 7]
    assert space.features(held(7), 7)[:2] == ([-2, -2], [1, 0]) and space.features(held(7), 3)[0] == []


def test_too_many_points_leave_snapshots_out_but_never_the_last(first: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Path(first.directory, "prototypes").glob("*.safetensors")
    snapshots = {int(path.stem): path for path in paths}
    points = len(space.prototypes(space.load_file(snapshots[3]))[0])
    monkeypatch.setattr(space, "MOST", 2 * points + 1)
    assert list(space.thinned(snapshots)) == [2, 3]
    monkeypatch.setattr(space, "MOST", 1)
    assert list(space.thinned(snapshots)) == [3]


# The page


def test_no_name_can_end_the_element_it_is_embedded_in() -> None:
    name = "</script><script>x()</script><!-- & \u2028"
    text = embedded({"title": name})
    assert json.loads(text) == {"title": name}
    assert not set("<>&\u2028") & set(text)


def test_the_page_refers_to_nothing_outside(one: dict[str, Any]) -> None:
    text = page(one)
    assert "default-src 'none'" in text
    for name in pages.VENDORED:  # as they were published; the policy lets nothing be fetched, whatever they hold
        assert pages.text(name) in text
        text = text.replace(pages.text(name), "")
    assert [word for word in ("src=", "@import", "url(", "innerHTML", "eval(") if word in text] == []
    assert text.count("http://") == text.count("http://www.w3.org/2000/svg") == 1 and "https://" not in text


def test_the_drawing_library_is_as_it_was_published() -> None:
    folder = Path(pages.__file__).parent / "vendor"
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert {f"vendor/{name}" for name in sums} == set(pages.VENDORED)
    for name, expected in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == expected
    assert {path.name for path in folder.glob("LICENSE*")} == {"LICENSE-d3.txt", "LICENSE-plot.txt"}


def test_the_report_knows_run_directories_and_no_torch() -> None:
    for path in Path(contents.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.split(".")[0] != "torch", path
                assert not name.startswith("protea.") or name.startswith(
                    (
                        "protea.report",
                        "protea.runs",
                        "protea.core.errors",
                        "protea.core.files",
                        "protea.core.shell",
                        "protea.config.words",
                        "protea.federation.record",
                        "protea.federation.privacy",
                    )
                ), (path, name)


def test_runs_are_read_compared_and_drawn_without_torch() -> None:
    modules = ["federation.record", "runs.reader", "runs.compare", "runs.export"]
    modules += [f"report.{path.stem}" for path in Path(contents.__file__).parent.glob("*.py")]
    names = ", ".join(f"protea.{name}" for name in sorted(modules) if not name.endswith("__init__"))
    script = f"import {names}, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# The command


def test_the_command_writes_the_page_into_the_run(first: Result, tmp_path: Path) -> None:
    shutil.copytree(first.directory, tmp_path / "run")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "run" / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_command_says_in_one_line_that_runs_do_not_compare(first: Result, alone: Result, tmp_path: Path) -> None:
    paths = [str(first.directory), str(alone.directory)]
    result = CliRunner().invoke(app, ["report", *paths, "--out", str(tmp_path / "r.html")])
    (line,) = [line for line in result.output.splitlines() if "do not compare" in line]
    assert line == (
        "Beware: these runs do not compare, since they differ in evaluation.protocol, as used. "
        "The page says which run has which."
    )


def test_the_command_says_what_is_wrong(first: Result, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert isinstance(found.exception, ConfigError) and "holds no run" in str(found.exception)
    found = CliRunner().invoke(app, ["report", str(first.directory), "--out", str(tmp_path / "no" / "r.html")])
    assert isinstance(found.exception, ConfigError) and "Make it first" in str(found.exception)
    found = CliRunner().invoke(app, ["report", str(first.directory), "--out", str(tmp_path)])
    assert isinstance(found.exception, ConfigError) and f"--out {tmp_path / 'report.html'}" in str(found.exception)
    (tmp_path / "taken").touch()
    said = r"taken/x cannot be written: .*  Choose another --figures\."
    with pytest.raises(ConfigError, match=said), report_command.writable("--figures"):
        (tmp_path / "taken" / "x").mkdir()


@pytest.mark.parametrize("lacking", ["py_mini_racer", "vl_convert"])
def test_figures_without_what_draws_them_say_what_to_type(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "find_spec", lambda name: None if name == lacking else object())
    with pytest.raises(ConfigError, match=re.escape(install_hint("plots"))):
        figures.require()


def test_every_figure_is_written_for_papers(one: dict[str, Any], first: Result, tmp_path: Path) -> None:
    """Each has as many marks as there are numbers: four clients, ten classes, three rounds."""
    extra("plots")
    found = figures.draw(one, tmp_path, "svg")
    assert {path.stem.removeprefix("first-") for path in found} == {*figures.ACROSS, *figures.SINGLE} - {"gain"}
    assert sorted(tmp_path.iterdir()) == sorted(found)
    drawn = {path.stem.removeprefix("first-"): Picture(path.read_text()) for path in found}
    assert not any("var(" in path.read_text() for path in found)
    details = one["runs"][0]["details"]
    counts = [count for client in details["clients"] for count in client["train"]]
    frame = details["space"]["prototypes"]["frames"][-1]["owner"]
    cosines = details["space"]["cosines"][-1]["classes"]
    rules = [s for s in one["runs"][0]["scores"]["test"].values() if any(v is not None for v in s["calibration"])]
    expected = {
        ("accuracy", "series"): 1, ("accuracy", "dots"): 3, ("communication", "dots"): 3,
        ("clients", "series"): 4 + 1, ("clients", "dots"): (4 + 1) * 3, ("data", "bubbles"): np.count_nonzero(counts),
        ("classes", "cells"): sum(v is not None for row in details["by_class"] if row for v in row),
        ("calibration", "series"): len(rules), ("cosines", "cells"): len(cosines) ** 2,
        ("margins", "rings"): sum(each > 0 for each in details["geometry"][-1]["widest"]),
        ("margins", "dots"): sum(each > 0 for each in details["geometry"][-1]["margins"]),
        ("map-pca", "points"): len(frame), ("map-tsne", "points"): len(frame),
        ("time", "bars"): len(one["runs"][0]["cost"]) * 3,
    }  # fmt: skip
    assert {key: len(drawn[key[0]].marks(key[1])) for key in expected} == expected
    assert all(picture.root.get("width") == "252pt" for picture in drawn.values())  # 3.5 inches


@pytest.mark.parametrize(("form", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_figures_are_written_in_every_format(
    one: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, start: bytes
) -> None:
    extra("plots")
    monkeypatch.setattr(figures, "ACROSS", ["accuracy"])  # making all thirteen into pixels is slow
    monkeypatch.setattr(figures, "SINGLE", ["map-pca"])
    found = figures.draw(one, tmp_path, form)
    assert [path.name for path in found] == [f"accuracy.{form}", f"first-map-pca.{form}"]
    drawn = [path.read_bytes() for path in found]
    assert all(each.startswith(start) for each in drawn)
    assert [path.read_bytes() for path in figures.draw(one, tmp_path / "again", form)] == drawn
    if form == "png":
        assert struct.unpack(">I", drawn[0][16:20]) == (1050,)  # 300 to the inch
    if form == "pdf":
        assert b"/MediaBox [0 0 252 " in drawn[0] and b"LiberationSans" in drawn[0]  # which comes with the converter


def test_a_figure_of_a_map_names_its_axes_and_explains_its_marks(one: dict[str, Any]) -> None:
    extra("plots")
    (picture,) = pictures(one, figures.on_page("features-pca", 0))
    assert picture.axis("x").startswith("PCA axis 1 (") and picture.axis("y").endswith("% of variance)")
    kinds = ["test sample", "client's prototype", "global prototype"]
    assert picture.words("key") == kinds + [str(digit) for digit in range(10)]


def test_the_margins_of_a_figure_are_told_apart_without_colours(one: dict[str, Any]) -> None:
    """Rings are hollow, dots are not; the lines of a paper's radar have dashes, and those of methods over rounds."""
    extra("plots")
    values = {"names": ["a", "b", "c"], "lines": [[1, 0.5, 0.2], [0.3, 0.3, 0.3]], "title": "one"}
    asked = {"chart": "radar", "label": "margins", "panels": [values], "legend": ["global prototypes", "widest client"]}
    page_figure, radar, clients = pictures(one, figures.on_page("margins", 0), asked, figures.on_page("clients", 0))
    ((rings,), (dots,)) = page_figure.groups("rings"), page_figure.groups("dots")
    assert rings.get("fill") == "#fff" and dots.get("fill") != "#fff" and len(rings) == len(dots) == 10
    assert page_figure.words("key") == ["widest client", "global prototypes"] == radar.words("key")[::-1]
    assert [line.get("stroke-dasharray") for line in radar.groups("series")] == [None, "6 3"]
    assert len({line.get("stroke-dasharray") for line in clients.groups("series")}) == 4


def test_a_run_that_has_only_begun_has_no_figures(young: dict[str, Any], tmp_path: Path) -> None:
    extra("plots")
    assert figures.draw(young, tmp_path, "svg") == []


def test_figures_draw_mean_and_deviation_over_seeds(first: Result, second: Result, three: dict[str, Any]) -> None:
    """As a reader reads them off: the line, and the upper and lower edge of the band."""
    extra("plots")
    (picture,) = pictures(three, figures.on_page("accuracy", 0))
    line, band = picture.marks("series")[0].get("d"), picture.marks("band")[0].get("d")
    assert line is not None and band is not None and len(picture.marks("band")) == 1
    middle, edges = picture.heights(line), picture.heights(band)
    assert len(middle) == 3 and len(edges) == 6
    for index, round in enumerate((1, 2, 3)):
        a, b = (100 * run.records[round - 1].accuracy for run in (first, second))
        assert middle[index] == pytest.approx((a + b) / 2, rel=1e-3)
        spread = abs(edges[index] - edges[5 - index]) / 2
        assert spread == pytest.approx(abs(a - b) / 2**0.5, abs=0.05)  # of two values


def test_the_command_writes_figures_of_a_run_without_snapshots(
    alone: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra("plots")
    some = ("margins", "cosines", "map-pca", "features-tsne")
    monkeypatch.setattr(figures, "SINGLE", some)
    options = ["--out", str(tmp_path / "r.html"), "--figures", str(tmp_path / "figures"), "--format", "pdf"]
    result = CliRunner().invoke(app, ["report", str(alone.directory), *options])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "r.html").stat().st_size < 1_000_000
    found = {path.stem for path in (tmp_path / "figures").glob("*.pdf")}
    assert "alone-margins" in found and not {f"alone-{name}" for name in some[1:]} & found


def test_names_of_users_are_text_in_a_file_too(one: dict[str, Any]) -> None:
    """No name ends an element, and none holds a sign that XML forbids: parsing finds it as it is."""
    extra("plots")
    found = json.loads(json.dumps(one))
    found["groups"][0]["label"] = "</text><script>&\"'\x00\ud800 ${x} var(--k0)"
    (svg,) = figures.drawings(found, [figures.on_page("accuracy", 0)])
    assert svg is not None and "<script" not in svg
    assert Picture(svg).words("key")[0] == "</text><script>&\"'\ufffd\ufffd ${x} var(--k0)"


# In a browser

Open = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Open:
    """Opens the page of some content, and expects that nothing is complained of and nothing asked for."""

    def open(found: dict[str, Any]) -> Any:
        path = tmp_path / "report.html"
        path.write_text(page(found), encoding="utf-8")
        browser.get(path.as_uri())
        assert browser.get_log("browser") == []
        assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
        return browser

    return open


def numbers(browser: Any, figure: str) -> list[list[str]]:
    """The table of a figure's numbers."""
    script = """
        const data = document.querySelector(`#${arguments[0]} details.data`);
        data.open = true;
        fill(FIGURES.find((figure) => figure.id === arguments[0]));
        return [...data.querySelectorAll("tr")].map((row) => [...row.children].map((cell) => cell.textContent));
    """
    table: list[list[str]] = browser.execute_script(script, figure)
    return table


def test_every_figure_is_drawn_and_says_what_it_shows(opened: Open, one: dict[str, Any]) -> None:
    page = opened(one)
    drawn = {
        "accuracy", "by-class", "calibration", "distribution", "map", "features", "cosines", "margins", "distances",
        "communication", "time",
    }  # fmt: skip
    for figure in drawn:
        (picture,) = all_of(page, f"#{figure} svg[role=img]")
        assert len(picture.get_attribute("aria-label")) > 30 and picture.size["height"] > 150
    for figure in ("protocols", "shared", "models"):
        assert len(all_of(page, f"#{figure} tbody tr")) >= 3
    for figure in ("settings", "environment"):
        assert len(all_of(page, f"#{figure} .pairs dt")) >= 5 and not all_of(page, f"#{figure} table")
    assert not all_of(page, "#comparison") and not all_of(page, "#compared") and not all_of(page, ".missing")
    twice = "const ids = [...document.querySelectorAll('[id]')].map((e) => e.id); return ids.length - new Set(ids).size"
    assert page.execute_script(twice) == 0


def test_gains_are_drawn_client_by_client(opened: Open, comparable: dict[str, Any]) -> None:
    page = opened(comparable)
    (found,) = comparable["comparison"]["gains"]
    assert len(all_of(page, "#gain-clients .dumbbell path")) == len(found["clients"])
    (heading,) = all_of(page, "#gain h3")
    assert heading.text == "Gain over training alone"
    (row,) = all_of(page, "#gain tbody tr")
    assert row.text.startswith(f"fedproto {100 * found['over']['mean']:+.2f} (".replace("+0.00", "0.00"))
    table = numbers(page, "gain-clients")
    assert [line[0] for line in table[1:]] == [str(each["client"]) for each in found["clients"]]
    assert [line[-1] for line in table[1:]] == [each["verdict"] for each in found["clients"]]


def test_curves_have_a_point_for_each_round_and_the_numbers_of_the_records(
    opened: Open, first: Result, one: dict[str, Any]
) -> None:
    page = opened(one)
    assert [s.get_attribute("data-name") for s in all_of(page, "#accuracy .series")] == [
        "client 0", "client 1", "client 2", "client 3", "all clients",
    ]  # fmt: skip
    assert len(all_of(page, "#accuracy .dots circle")) == 5 * 3
    assert len(all_of(page, "#accuracy .guide")) == 2  # in the plot and in its legend
    accuracies = [f"{100 * record.accuracy:.1f}" for record in first.records]
    assert [row[-1] for row in numbers(page, "accuracy")[1:]] == accuracies
    choose(page, "accuracy-view", "rules")
    choose(page, "accuracy-part", "validation")
    head = [f"{100 * record.validation['head'].weighted:.1f}" for record in first.records]
    table = numbers(page, "accuracy")
    assert [row[table[0].index("classifier")] for row in table[1:]] == head
    assert len(all_of(page, "#accuracy .dots circle")) == 3 * len(first.records[0].validation)


def test_files_are_drawn_by_the_code_of_the_page(opened: Open, three: dict[str, Any]) -> None:
    """At one width the page's lines, bubbles and maps are those of the file, to the last digit."""
    extra("plots")
    assert [name for name in figures.SCRIPTS if name not in ("dom.js", "paper.js")] == list(pages.SCRIPTS[:-2])
    page = opened(three)
    script = """
        state.view = 'methods';
        const { picture } = { accuracy, distribution, map: map('prototypes') }[arguments[0]](378);
        const marks = [...picture.querySelectorAll(`.${arguments[1]} > *`)];
        return marks.map((each) => [each.getAttribute('d'), each.getAttribute('transform')]);
    """
    shown = {"accuracy": ("accuracy", "series"), "data": ("distribution", "bubbles"), "map-pca": ("map", "points")}
    drawn = pictures(three, *(figures.on_page(name, 0) for name in shown))
    for picture, (figure, marks) in zip(drawn, shown.values(), strict=True):
        found = [[mark.get("d"), mark.get("transform")] for mark in picture.marks(marks)]
        assert found and page.execute_script(script, figure, marks) == found


def test_the_slider_moves_the_map_by_keyboard_and_takes_the_others_along(opened: Open, one: dict[str, Any]) -> None:
    page = opened(one)
    choose(page, "prototypes-zoom", "all")
    frames = one["runs"][0]["details"]["space"]["prototypes"]["frames"]

    def places() -> list[str]:
        return [point.get_attribute("transform") for point in all_of(page, "#map .points path")]

    last = places()
    assert len(last) == len(frames[2]["owner"])
    (slider,) = all_of(page, "#section-prototypes input[type=range]")
    slider.send_keys("\ue012")  # arrow left
    assert places() != last and len(places()) == len(frames[1]["owner"])
    assert page.find_element("css selector", "#section-prototypes output").text == "round 2"
    for figure in ("map", "features", "cosines", "margins"):
        assert "after round 2" in page.find_element("css selector", f"#{figure} .note").text
    assert page.find_element("css selector", "#features h3").text == "Features of client 0 and its prototypes"
    before = places()
    choose(page, "prototypes-map", "tsne")
    assert places() != before
    label = page.find_element("css selector", "#map svg[role=img]").get_attribute("aria-label")
    assert label.startswith("t-SNE map after round 2: ")


def test_the_page_may_fetch_nothing(opened: Open, one: dict[str, Any]) -> None:
    page = opened(one)
    ask = "return fetch('data:,x').then(() => 'fetched', () => 'refused')"
    assert page.execute_script(ask) == "refused"
    page.get_log("browser")  # the browser says so there


def test_names_of_users_are_shown_as_they_are(opened: Open, one: dict[str, Any]) -> None:
    name = "</script><img src=x onerror=document.title='bad'>"
    classes = [name, *one["runs"][0]["details"]["classes"][1:]]
    run = {**one["runs"][0], "details": {**one["runs"][0]["details"], "classes": classes}}
    page = opened({**one, "title": name, "runs": [run]})
    assert page.find_element("id", "title").text == name
    assert page.title == f"Protea report: {name}" and not all_of(page, "main img")


def test_several_runs_are_compared_with_mean_and_interval(
    opened: Open, first: Result, second: Result, comparable: dict[str, Any]
) -> None:
    page = opened(comparable)
    assert not all_of(page, "#differences")
    mean, margin = 50 * (first.accuracy + second.accuracy), 100 * 12.7062 * abs(first.accuracy - second.accuracy) / 2
    cards = [card.text.replace("\u00a0", " ") for card in all_of(page, ".tiles li")]
    assert f"{mean:.1f} ± {margin:.1f} %\naccuracy of fedproto, 2 seeds" in cards and len(cards) == 3
    assert "± is the 95 % interval" in page.find_element("id", "section-headline").text
    rows = [[cell.text for cell in row.find_elements("css selector", "th, td")] for row in all_of(page, "#compared tr")]
    assert rows[0] == ["method", "seeds", "mean", "sd", "± 95 %", "to local", "majority", "steps", "sent"]  # one pair
    assert {row[0]: row[1:3] for row in rows[1:]}["fedproto"] == ["2", f"{mean:.2f}"]
    means = [float(row[2]) for row in rows[1:]]
    assert means == sorted(means, reverse=True)
    assert len(all_of(page, "#comparison .dots circle")) == 3
    assert [s.get_attribute("data-name") for s in all_of(page, "#accuracy .series")] == ["fedproto (2 seeds)", "local"]
    assert len(all_of(page, "#accuracy .band")) == 1
    shown = float(numbers(page, "accuracy")[2][1])
    assert shown == pytest.approx(50 * (first.records[1].accuracy + second.records[1].accuracy), abs=0.06)
    settings = page.find_element("css selector", "#settings table").text
    assert "seed = 1, 2" in settings.replace("\u00a0", " ") and "training.lr" not in settings
    pairs = {row.text for row in all_of(page, "#settings .pairs div")}
    assert "training.lr\n0.05" in pairs


def test_one_menu_of_runs_steers_all_figures_of_prototypes(opened: Open, three: dict[str, Any]) -> None:
    page = opened(three)
    assert len(all_of(page, "#section-prototypes select[id$=-run]")) == 1
    choose(page, "prototypes-run", "2")
    assert "kept no snapshots" in page.find_element("css selector", "#map .missing").text
    assert all_of(page, "#margins svg[role=img]") and "no global" in page.find_element("css selector", "#margins").text
    assert page.find_element("id", "accuracy-of-run").get_attribute("value") == "2"


def test_the_client_of_the_features_can_be_chosen_where_there_are_several(opened: Open, one: dict[str, Any]) -> None:
    found = one["runs"][0]["details"]["space"]
    several = {**found, "features": {**found["features"], 3: found["features"][0]}}
    run = {**one["runs"][0], "details": {**one["runs"][0]["details"], "space": several}}
    page = opened({**one, "runs": [run]})
    assert page.find_element("css selector", "#features h3").text == "Features of client 0 and its prototypes"
    choose(page, "features-of", "3")
    assert page.find_element("css selector", "#features h3").text == "Features of client 3 and its prototypes"


def test_models_are_listed_with_their_parameters(opened: Open, one: dict[str, Any]) -> None:
    page = opened(one)
    rows = [[cell.text for cell in row.find_elements("css selector", "th, td")] for row in all_of(page, "#models tr")]
    assert rows[0] == ["architecture", "parameters", "clients", "training samples"]
    # 65 * 96 and 97 * 96 of two hidden layers, no more for pooling to 16, and 17 * 10 of the head.
    assert rows[1][:3] == ["tiny_mlp", "15,722", "0"]
    old = [{k: v for k, v in client.items() if k != "parameters"} for client in one["runs"][0]["details"]["clients"]]
    page = opened({**one, "runs": [{**one["runs"][0], "details": {**one["runs"][0]["details"], "clients": old}}]})
    assert [cell.text for cell in all_of(page, "#models thead th")] == ["architecture", "clients", "training samples"]


def test_runs_that_do_not_compare_say_so_in_one_closed_table(opened: Open, three: dict[str, Any]) -> None:
    page = opened(three)
    (box,) = all_of(page, "details.notice")
    assert box.get_attribute("open") is None
    assert (
        box.text == "These runs do not compare: they differ in evaluation.protocol, as used. Show which run has which."
    )
    box.find_element("css selector", "summary").click()
    rows = [
        [cell.text for cell in row.find_elements("css selector", "th, td")] for row in all_of(page, "#differences tr")
    ]
    assert rows == [
        ["setting", "value", "runs"],
        ["evaluation.protocol, as used", "validation", "first, second"],
        ["", "best", "alone"],
    ]
    assert page.find_element("css selector", "#compared .missing").text.startswith("There is no table of methods")
    assert not all_of(page, "#compared table")


def test_no_table_reaches_over_the_edge_of_a_printed_page(
    opened: Open, browser: Any, comparable: dict[str, Any]
) -> None:
    page = opened(comparable)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    paper = {"width": 718, "height": 1040, "deviceScaleFactor": 1, "mobile": False}  # of A4 with narrow margins
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", paper)
    page.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    script = """
        const box = (css) => [...document.querySelectorAll(css)].map((each) => each.getBoundingClientRect());
        const wide = box("table, dl, svg[role=img]").filter((each) => each.right > 719).length;
        const [settings, environment] = box("#settings, #environment");
        return [wide, environment.top >= settings.bottom];
    """
    assert page.execute_script(script) == [0, True]
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_a_run_that_goes_on_says_so_on_top(
    opened: Open, first: Result, going: dict[str, Any], young: dict[str, Any]
) -> None:
    page = opened(going)
    assert page.find_element("css selector", ".notice").text.startswith("going has not ended: round 2 of 3.")
    assert len(all_of(page, "#accuracy .dots circle")) == 5 * 2
    assert f"{100 * first.records[1].accuracy:.1f} %" in page.find_element("css selector", ".tiles").text
    page = opened(young)
    assert len(all_of(page, ".missing")) > 5


def test_colours_follow_the_system_and_the_switch(opened: Open, one: dict[str, Any]) -> None:
    page = opened(one)
    paper = "return getComputedStyle(document.body).backgroundColor"
    white, dark = "rgb(255, 255, 255)", "rgb(20, 24, 29)"
    for system, expected in (("light", white), ("dark", dark)):
        wish = {"features": [{"name": "prefers-color-scheme", "value": system}]}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", wish)
        assert page.execute_script(paper) == expected
    choose(page, "theme", "light")
    assert page.execute_script(paper) == white
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_page_fits_a_phone(opened: Open, browser: Any, three: dict[str, Any]) -> None:
    long = [{**group, "label": f"{group['label']} {9 * 'method.setting=value '}"} for group in three["groups"]]
    phone = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    page = opened({**three, "groups": long})
    assert page.execute_script("return document.documentElement.scrollWidth") == 360
    assert page.find_element("css selector", "#accuracy svg[role=img]").size["width"] <= 340
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_every_figure_can_be_saved_as_it_is_drawn_and_as_numbers(
    opened: Open, browser: Any, first: Result, one: dict[str, Any], tmp_path: Path
) -> None:
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page = opened(one)
    for figure in ("accuracy", "loss", "by-class", "answers", "distribution", "map", "cosines", "margins", "time"):
        assert [button.text for button in all_of(page, f"#{figure} .files button")][:2] == ["SVG", "PNG"]
    for button in all_of(page, "#accuracy .files button"):
        page.execute_script("arguments[0].click()", button)
    from selenium.webdriver.support.wait import WebDriverWait

    files = [tmp_path / f"protea-accuracy.{kind}" for kind in ("svg", "png", "csv")]
    WebDriverWait(page, 20).until(lambda _: all(path.is_file() and path.stat().st_size for path in files))
    drawn, picture, table = files
    assert drawn.read_text(encoding="utf-8").startswith("<svg") and "var(--" not in drawn.read_text(encoding="utf-8")
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 5000
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["all clients"] for row in rows] == [f"{100 * record.accuracy:.1f}" for record in first.records]
    assert page.get_log("browser") == []


def test_the_loss_is_drawn_and_is_that_of_the_records(opened: Open, first: Result, comparable: dict[str, Any]) -> None:
    page = opened(comparable)
    found = [float(row[1]) for row in numbers(page, "loss")[1:]]
    run = comparable["runs"][0]
    assert run["loss"] == pytest.approx([record.loss for record in first.records], rel=1e-4)
    assert len(found) == 3 and len(all_of(page, "#loss .band")) == 1
    choose(page, "loss-view", "clients")
    assert [s.get_attribute("data-name") for s in all_of(page, "#loss .series")][-1] == "all clients"
    losses = [each.loss for each in first.records[2].clients]
    assert [float(cell) for cell in numbers(page, "loss")[3][1:5]] == pytest.approx(losses, rel=0.01)


def test_what_is_answered_for_what_has_recall_and_precision(opened: Open, first: Result, one: dict[str, Any]) -> None:
    table = numbers(opened(one), "answers")
    assert table[0] == ["class", "samples", "answered", "right", "recall in %", "precision in %"]
    counted = first.records[-1].classes
    assert [int(row[1]) for row in table[1:]] == counted["samples"]
    assert [int(row[3]) for row in table[1:]] == counted["hits"]


def test_the_confusion_matrix_is_that_of_all_clients(opened: Open, first: Result, one: dict[str, Any]) -> None:
    """Counted anew: each client's own matrix by its model after the last round."""
    run = protea.load(first.directory)
    expected = torch.stack([run.client(number).confusion() for number in range(len(first.records[-1].clients))]).sum(0)
    page = opened(one)
    assert [[int(cell) for cell in row[2:]] for row in numbers(page, "confusion")[1:]] == expected.tolist()
    wrong = expected - torch.diag(expected.diagonal())
    assert f", {int(wrong.max())} time" in page.find_element("css selector", "#confusion .note").text
    assert len(all_of(page, "#confusion .cells rect")) == 100


def test_the_teacher_and_the_server_are_drawn_over_rounds(opened: Open, one: dict[str, Any]) -> None:
    run = {**one["runs"][0]}
    page = opened({**one, "runs": [run]})
    assert not all_of(page, "#together")  # there is neither
    found = {
        "teacher": [0.2, 0.3, 0.4],
        "server": [0.1, None, 0.35],
        "ensemble": [None, None, 0.5],
        "client": [None] * 3,
    }
    table = numbers(opened({**one, "runs": [{**run, "together": found}]}), "together")
    assert table[0] == [
        "round",
        "server's model, shared test set",
        "teacher, public samples",
        "ensemble, shared test set",
    ]
    assert [row[2] for row in table[1:]] == ["20.0", "30.0", "40.0"]


def test_one_seed_has_no_columns_of_dashes_and_says_what_to_run(
    opened: Open, first: Result, beside: Result, one: dict[str, Any]
) -> None:
    page = opened(content([RunReader.read(run.directory) for run in (first, beside)]))
    assert [cell.text for cell in all_of(page, "#compared th[scope=col]")] == [
        "method", "seeds", "mean", "to local", "majority", "steps", "sent",
    ]  # fmt: skip
    assert "protea sweep CONFIG.toml seed=1..5" in page.find_element("css selector", "#compared .note").text
    made = page.find_element("id", "made").text
    assert one["made"]["version"] == protea.__version__ and f"Protea {protea.__version__} on 20" in made


def test_surprising_numbers_are_explained() -> None:
    by_rule = {"method": {"weighted": 0.5}, "head": {"weighted": 0.8}}
    summary = {**ended(), "accuracy": 0.5, "test": by_rule}
    assert list(words.surprises(a_run("a", summary=summary))) == [
        "by another rule (classifier) the same models reach 80.0%, where the method's own has 50.0%. What a model "
        "knows and how it answers are two things: see the table of rules below."
    ]
    runs, found = [a_run("a", summary=summary)], [{"label": "fedproto", "runs": [0]}]
    worse = {"against": "local", "gains": [{"label": "fedproto", "over": {"mean": -0.1, "high": -0.02}}]}
    told = words.remarks(runs, found, worse)
    assert len(told) == 2 and told[1].startswith("fedproto is worse than local by 10.0 points, and not by chance")
    assert words.remarks([a_run("b", summary={**ended(), "accuracy": 0.9, "test": {}})], found, None) == []
