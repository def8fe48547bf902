"""The examples, run as their readers run them."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import textwrap
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from protea.config.experiment import load_experiment
from protea.core.split_model import SplitModel

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
FILES = sorted(EXAMPLES.glob("*.toml"))

pytestmark = pytest.mark.xdist_group("engines")


def script(path: Path, folder: Path) -> str:
    """What ``python path`` prints; it must end well, say nothing else and leave nothing."""
    done = subprocess.run([sys.executable, str(path)], cwd=folder, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert list(folder.iterdir()) == []
    return done.stdout


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
    assert [path.name for path in SCRIPTS] == ["own_data.py", "own_method.py", "own_model.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_experiment_file_can_be_read(path: Path):
    assert load_experiment(path).rounds > 0


def test_the_demo_runs_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    lines = command("run", str(EXAMPLES / "digits.toml"), "rounds=2", capsys=capsys, monkeypatch=monkeypatch)
    assert [line["round"] for line in lines if line["kind"] == "round"] == [1, 2]
    assert lines[-1]["accuracy"] > lines[-1]["majority"]


def test_the_own_method_runs_and_has_at_most_40_lines(tmp_path: Path):
    accuracy, majority = numbers(script(EXAMPLES / "own_method.py", tmp_path))
    assert accuracy > 90 > majority
    assert len((EXAMPLES / "own_method.py").read_text(encoding="utf-8").splitlines()) <= 40


def test_own_models_run_from_the_script_and_from_the_file_that_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    printed = script(EXAMPLES / "own_model.py", tmp_path)
    assert len(printed.splitlines()) == 1 + 6
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)  # as PYTHONPATH=examples does
    Path("exp.toml").write_text(described(EXAMPLES / "own_model.py"), encoding="utf-8")
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from sklearn.datasets import load_breast_cancer

    accuracy, majority = numbers(script(EXAMPLES / "own_data.py", tmp_path))
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
