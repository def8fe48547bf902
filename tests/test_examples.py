"""The examples, run as their readers run them."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import warm
from night import by_night
from typed import Command
from wanted import extra

import protea
from protea.cli.trackers import make_trackers
from protea.config import registry
from protea.config.experiment import experiment_to_toml, load_experiment, method_label
from protea.core.split_model import SplitModel

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
FILES = sorted(EXAMPLES.glob("*.toml"))

PAGES = EXAMPLES.parent / "docs"
OWN = {  # what a script prints of its own part of a run
    "filter": r"accuracy \d+\.\d%\n",
    "server_filter": r"accuracy \d+\.\d%\n",
    "metric": r"among the first three: \d+\.\d%\n",
    "observer": r"20 rounds at most\naccuracy \d+\.\d%, 1?\d rounds\n",
    "optimizer": r"accuracy \d+\.\d%\n",
    "rule": r"by both \d+\.\d%\n",
    "sampler": r"1 \[0, 1\]\n2 \[2, 3\]\n3 \[0, 1\]\n4 \[2, 3\]\n",
    "tracker": r"\d+ numbers\n",
}

Script = Callable[[Path], str]
Example = Callable[[str, int], Path]


@pytest.fixture
def script(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], str]:
    """What a script prints; it must end well, say nothing else and leave nothing."""

    def printed(path: Path) -> str:
        done = warm.script(path, tmp_path, tmp_path_factory.mktemp("said"))
        assert (done.code, done.err) == (0, ""), done.err
        assert list(tmp_path.iterdir()) == []
        return done.out

    return printed


@pytest.fixture
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    """An example with so many rounds, in its code and in the file that it shows; as it is, it has five."""

    def made(name: str, rounds: int) -> Path:
        text, count = re.subn(r"\brounds( ?= ?)5\b", rf"rounds\g<1>{rounds}", (EXAMPLES / name).read_text("utf-8"))
        assert count in (1, 2)
        path = tmp_path_factory.mktemp("example") / name
        path.write_text(text, encoding="utf-8")
        return path

    return made


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"(\d+\.\d)%", text)]


def command(*words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What ``protea ... --json`` prints."""
    monkeypatch.setattr(sys, "argv", ["protea", *words, "--json"])
    (main,) = entry_points(group="console_scripts", name="protea")
    with pytest.raises(SystemExit) as end:
        main.load()()
    out, err = capsys.readouterr()
    assert (end.value.code or 0, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def described(path: Path) -> str:
    """The experiment file in a script's docstring: its last indented block."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return textwrap.dedent("    rounds = " + str(text).rpartition("    rounds = ")[2])


def test_every_example_is_tested_here():
    assert {path.stem.removeprefix("own_") for path in SCRIPTS} == {"data", "method", "model", *OWN}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_experiment_file_can_be_read(path: Path):
    assert load_experiment(path).rounds > 0


def test_the_demo_ends_with_what_each_client_gains_over_training_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Command
):
    """By the words of the Makefile, in small; called again it only shows the tables."""
    recipe = (EXAMPLES.parent / "Makefile").read_text(encoding="utf-8").split("\ndemo:")[1].split("\n\n")[0]
    run, compare = (line.split() for line in re.findall(r"\$\(BIN\)/protea (.*)", recipe))
    assert run[:2] == ["run", "examples/demo.toml"] and run.count("--beside") == 3
    monkeypatch.chdir(tmp_path)
    small = ["rounds=2", "clients=3", "data.samples=240", "models.family=tiny_mlp", "engine.name=inline"]
    words = ["run", EXAMPLES / "demo.toml", *small, *run[2:]]
    done = typed(*words)
    assert (done.code, done.err) == (0, "")
    assert "Gain over training alone, in points of accuracy" in done.out and "Report: " in done.out
    page = (tmp_path / "runs/demo/report.html").read_text(encoding="utf-8")
    assert '"gains":[{"label":"' in page.replace(" ", "")  # which the page draws
    gain = json.loads((tmp_path / "runs/demo/summary.json").read_text(encoding="utf-8"))["gain"]
    assert gain.keys() == {"local", "alone"}
    assert all({"mean", "low", "high", "better", "worse"} <= each.keys() for each in gain.values())
    done = typed(*compare)
    assert done.code == 0 and "Accuracy in % of each client, against local" in done.out
    rows = re.findall(r"^ (fedloo alone|fedloo|fedproto) +[012] .*(?:better|worse|neither)$", done.out, re.MULTILINE)
    assert sorted(rows) == ["fedloo"] * 3 + ["fedloo alone"] * 3 + ["fedproto"] * 3
    again = typed(*words)
    assert again.code == 0 and again.out.count("has ended: there is nothing to continue.") == 4


def test_the_digits_run_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    small = ("rounds=2", "clients=4", "data.samples=300", "training.epochs=1")
    lines = command("run", str(EXAMPLES / "digits.toml"), *small, capsys=capsys, monkeypatch=monkeypatch)
    assert [line["round"] for line in lines if line["kind"] == "round"] == [1, 2]
    assert lines[-1]["accuracy"] > lines[-1]["majority"]


def test_the_strongest_local_is_picked_by_validation_samples_among_all_variants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """By the words that the file and the page show, in small."""
    extra("search")
    path = EXAMPLES / "strongest_local.toml"
    (line,) = re.findall(r"protea sweep examples/strongest_local.toml (.*)", path.read_text(encoding="utf-8"))
    assert f"protea sweep examples/strongest_local.toml {line}\n" in (PAGES / "methods/local.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "protea",
            "sweep",
            str(path),
            "rounds=2",
            "clients=4",
            "training.batch=30",
            "data.samples=600",
            "models.family=tiny_mlp",
            *line.split(),
            "--out",
            "sweep",
            "-q",
        ],
    )
    (main,) = entry_points(group="console_scripts", name="protea")
    with pytest.raises(SystemExit) as end:
        main.load()()
    assert not end.value.code
    found = {run.name: protea.load(run).records for run in Path("sweep").iterdir() if run.is_dir()}
    assert found.keys() == {"local-s1", "local@momentum-s1", "local@cosine-s1", "local@smoothing-s1"}
    values = {name: max(r.validation["method"].weighted for r in records) for name, records in found.items()}
    best = load_experiment(Path("sweep/best.toml"))
    assert values[f"{method_label(best.method)}-s1"] == max(values.values())


def from_nothing(path: Path, folder: Path) -> str:
    """What a script prints that a reader starts, with all that has to be imported."""
    done = subprocess.run([sys.executable, path], cwd=folder, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr, list(folder.iterdir())) == (0, "", [])
    return done.stdout


@pytest.mark.parametrize(("start", "rounds"), [("warm", 2), *by_night(("warm", 5), ("from nothing", 5))])
def test_the_own_method_runs_and_has_at_most_40_lines(
    start: str, rounds: int, example: Example, script: Script, tmp_path: Path
):
    path = example("own_method.py", rounds)
    accuracy, majority = numbers(script(path) if start == "warm" else from_nothing(path, tmp_path))
    assert accuracy > 90 > majority
    assert len((EXAMPLES / "own_method.py").read_text(encoding="utf-8").splitlines()) <= 40


@pytest.mark.parametrize("rounds", [3, *by_night(5)])
def test_own_models_run_from_the_script_and_from_the_file_that_it_shows(
    rounds: int,
    example: Example,
    script: Script,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    path = example("own_model.py", rounds)
    printed = script(path)
    assert len(printed.splitlines()) == 1 + 6
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)  # as PYTHONPATH=examples does
    Path("exp.toml").write_text(described(path), encoding="utf-8")
    *_, summary = command("run", "exp.toml", capsys=capsys, monkeypatch=monkeypatch)
    assert numbers(printed) == [pytest.approx(100 * summary["accuracy"], abs=0.05)]
    assert summary["accuracy"] > 0.8 > summary["majority"]


def test_own_models_are_split_as_the_example_says(monkeypatch: pytest.MonkeyPatch):
    from own_models import build

    from protea.config.families import Member

    monkeypatch.syspath_prepend(EXAMPLES)
    own = import_module("own_model")
    made = {
        name: build(Member(f"own_model:{name}"), shape=(1, 8, 8), classes=10, dim=64) for name in ("Reader", "squeeze")
    }
    assert all(isinstance(model, SplitModel) for model in made.values())
    reader = made["Reader"].body
    assert isinstance(reader, own.Reader) and not list(reader.classify.parameters())  # its last layer was taken off
    assert [layer.in_features for layer in (made["Reader"].head, made["squeeze"].head)] == [64, 64]


def test_own_data_run_from_the_script_and_as_a_table(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from sklearn.datasets import load_breast_cancer

    accuracy, majority = numbers(script(EXAMPLES / "own_data.py"))
    assert accuracy > 90 > majority
    monkeypatch.chdir(tmp_path)
    Path("exp.toml").write_text(described(EXAMPLES / "own_data.py"), encoding="utf-8")
    tumours = load_breast_cancer()
    rows = [[*map(str, tumours.feature_names), "diagnosis"]]
    rows += [[*map(repr, map(float, x)), str(y)] for x, y in zip(tumours.data, tumours.target, strict=True)]
    Path("tumours.csv").write_text("\n".join(map(",".join, rows)), encoding="utf-8")
    *_, summary = command("run", "exp.toml", capsys=capsys, monkeypatch=monkeypatch)
    assert summary["accuracy"] > 0.9
    assert summary["majority"] == pytest.approx(majority / 100)  # the same split of the same samples


@pytest.mark.parametrize("which", OWN)
def test_what_is_of_your_own_runs_from_its_script(which: str, script: Script):
    assert re.fullmatch(OWN[which], script(EXAMPLES / f"own_{which}.py"))


@pytest.mark.parametrize("which", sorted(OWN.keys() - {"observer"}))  # observers are no part of an experiment
def test_what_is_of_your_own_runs_from_the_file_that_its_script_shows(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    Path("exp.toml").write_text(described(EXAMPLES / f"own_{which}.py"), encoding="utf-8")
    more = ["--log", "own_tracker:TextFile"] if which == "tracker" else []
    lines = command("run", "exp.toml", "--out", "run", *more, capsys=capsys, monkeypatch=monkeypatch)
    last = [line for line in lines if line["kind"] == "round"][-1]
    assert f"own_{which}:" in Path("run/config.toml").read_text() or which == "tracker"
    if which == "metric":
        assert 0 < last["metrics"]["amongfirst"]["weighted"] <= 1
    elif which == "rule":
        assert "both" in last["test"]
    elif which == "sampler":
        assert last["participants"] == [2, 3]
    elif which == "tracker":
        assert f"2 accuracy {last['accuracy']}" in Path("run/numbers.txt").read_text().splitlines()


@pytest.mark.parametrize("which", OWN)
def test_the_page_on_extending_has_the_examples_word_for_word(which: str):
    text = (EXAMPLES / f"own_{which}.py").read_text(encoding="utf-8")
    code = text[text.index("@dataclass" if "@dataclass" in text else "class ") : text.index("\n\n\nif __name__")]
    assert f"\n{code}\n```" in (PAGES / "extending.md").read_text(encoding="utf-8")
    assert len(code.splitlines()) <= 17


def test_every_group_is_found_by_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A package that is installed names its own parts; a TOML file then names them as it names built-in ones."""
    kinds = {
        "filters": ("jitter", "own_filter:Jitter"),
        "metrics": ("among-first", "own_metric:AmongFirst"),
        "methods": ("angle", "own_method:AngleProto"),
        "optimizers": ("rmsprop", "own_optimizer:RMSprop"),
        "rules": ("both", "own_rule:Both"),
        "samplers": ("in-turn", "own_sampler:InTurn"),
        "trackers": ("text-file", "own_tracker:TextFile"),
    }
    installed = tmp_path / "own_kinds-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: own-kinds\nVersion: 1.0\n")
    points = [f"[protea.{group}]\n{name} = {place}\n" for group, (name, place) in kinds.items()]
    (installed / "entry_points.txt").write_text("\n".join(points))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    registry.table.cache_clear()
    try:
        text = """
            method = "angle"
            sampler = "in-turn"
            filters = ["jitter", { name = "clip", norm = 3.0 }]
            training = { optimizer = { name = "rmsprop", smoothing = 0.5 } }
            evaluation = { rules = ["both"], metrics = [{ name = "among-first", count = 3 }] }
        """
        (tmp_path / "exp.toml").write_text(textwrap.dedent(text))
        found = load_experiment(tmp_path / "exp.toml")
        made = [found.method, found.sampler, found.filters[0], found.training.optimizer]
        made += [found.evaluation.rules[0], found.evaluation.metrics[0], *make_trackers(["text-file"])]
        expected = ["AngleProto", "InTurn", "Jitter", "RMSprop", "Both", "AmongFirst", "TextFile"]
        assert [type(each).__name__ for each in made] == expected
        assert (found.training.optimizer.smoothing, found.evaluation.metrics[0].count) == (0.5, 3)
        (tmp_path / "again.toml").write_text(experiment_to_toml(found))
        assert load_experiment(tmp_path / "again.toml") == found
        written = tomllib.loads(experiment_to_toml(found))
        assert (written["sampler"], written["filters"][0]["name"]) == ("in-turn", "jitter")
    finally:
        registry.table.cache_clear()


def test_every_block_of_the_page_on_runs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From top to bottom, as its reader types them."""
    extra("pandas")
    monkeypatch.chdir(tmp_path)
    page = (PAGES / "run.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 20
    known: dict[str, Any] = {"__name__": "page"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"run.md, block {number}", "exec"), known)
