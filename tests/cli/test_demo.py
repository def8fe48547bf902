"""The demo and the examples, from any folder; and a command that is told to end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typed import Command
from waiting import until
from wanted import extra
from warm import command

import protea
from protea.cli import demo
from protea.core.errors import ConfigError

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_examples_are_copied_into_a_new_folder_and_into_no_other(tmp_path: Path, typed: Command) -> None:
    done = typed("examples", tmp_path / "mine")
    assert done.code == 0 and f"protea run {tmp_path / 'mine' / 'digits.toml'}" in done.out
    ours = {path.relative_to(EXAMPLES) for path in EXAMPLES.rglob("*.toml")}
    assert {path.relative_to(tmp_path / "mine") for path in (tmp_path / "mine").rglob("*.toml")} == ours
    with pytest.raises(ConfigError, match="not an empty folder"):
        demo.examples(tmp_path / "mine")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        demo.examples(tmp_path / "file" / "inside")


def test_a_wheel_has_its_examples_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "files", lambda name: tmp_path / name)
    with pytest.raises(ConfigError, match="install Protea again"):
        demo.examples_folder()
    (tmp_path / "protea" / "examples").mkdir(parents=True)
    (tmp_path / "protea" / "examples" / "demo.toml").touch()
    assert demo.examples_folder() == tmp_path / "protea" / "examples"


def test_the_demo_plays_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Command) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["rounds=1", "clients=3", "data.samples=240", "models.family=tiny_mlp", "engine.name=inline"]
    done = typed("demo", *small)
    assert done.code == 0 and "Accuracy in % of each client, against local" in done.out
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "demo",
        "demo-fedproto",
        "demo-local",
        "demo-alone",
    }
    assert (tmp_path / "runs" / "demo" / "report.html").is_file() and "protea watch runs" in done.err


def test_sigterm_ends_a_run_like_an_interrupt_and_says_how_to_go_on(tmp_path: Path) -> None:
    words = ["run", EXAMPLES / "demo.toml", "rounds=5000", "--out", tmp_path / "r", "engine.name=inline"]
    process = command(*words, "models.family=tiny_mlp", "data.samples=240", log=tmp_path / "log")
    until(lambda: (tmp_path / "r" / "metrics.jsonl").is_file() and process.is_alive())
    os.kill(process.pid or 0, signal.SIGTERM)
    process.join(30)
    said = (tmp_path / "log").read_text()
    assert process.exitcode == 143
    assert f"protea resume {tmp_path / 'r'}" in said and "Traceback" not in said


def test_the_version_is_that_of_the_changelog() -> None:
    changes = (EXAMPLES.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {protea.__version__}" in changes


@pytest.mark.nightly
def test_an_installed_wheel_plays_the_demo_lists_methods_and_copies_examples(tmp_path: Path) -> None:
    """As a user has it who installs Protea and is in some folder; what it needs is taken from this environment."""
    extra("package")
    clone, place, home = tmp_path / "clone", tmp_path / "installed", tmp_path / "home"
    clone.mkdir()
    for name in ("protea", "examples", "README.md", "LICENSE", "pyproject.toml", ".gitignore"):
        source = EXAMPLES.parent / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, clone / name)
    python = [sys.executable, "-m"]
    subprocess.run(
        [*python, "build", "--no-isolation", "--wheel", "-o", tmp_path, clone], check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("protea-*.whl")
    install = [*python, "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", place, wheel]
    subprocess.run(install, check=True, capture_output=True)
    home.mkdir()

    def said(*words: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(place)}
        done = subprocess.run([*python, *words], cwd=home, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    subprocess.run([sys.executable, "-c", f"import protea; assert protea.__file__.startswith({str(place)!r})"],
                   cwd=home, env={**os.environ, "PYTHONPATH": str(place)}, check=True)  # fmt: skip
    assert "fedproto" in said("protea", "list", "methods")
    said("protea", "demo", "rounds=2", "data.samples=300", "engine.workers=2")
    page = (home / "runs" / "demo" / "report.html").read_text(encoding="utf-8")
    assert len(page) > 100_000 and "Plot" in page
    said("protea", "examples", "mine")
    assert (home / "mine" / "hospital" / "README.md").is_file()
    assert len(list((home / "mine" / "notebooks").glob("*.ipynb"))) == 5
