"""What a user is told to type."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from protea.core import shell


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Protea lies in a clone, in a folder with a blank in its name, and ``pip`` is the one of this Python."""
    root = tmp_path / "my clone"
    root.mkdir()
    (root / "pyproject.toml").touch()
    monkeypatch.setattr(shell, "ROOT", root)
    monkeypatch.setattr(shutil_of(shell), "which", lambda name: str(Path(sys.executable).with_name(name)))
    return root


def shutil_of(module: object) -> object:
    return module.shutil  # type: ignore[attr-defined]


def test_a_clone_is_installed_as_one(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shlex.split(shell.install_hint("ray")) == ["pip", "install", "-e", f"{clone}[ray]"]
    monkeypatch.chdir(clone)
    assert shell.install_hint("ray") == "pip install -e '.[ray]'"


def test_a_package_is_installed_by_its_name(clone: Path) -> None:
    (clone / "pyproject.toml").unlink()
    assert shell.install_hint("ray") == "pip install 'protea[ray]'"
    assert shell.install_command("flwr==1.41.0") == "pip install flwr==1.41.0"


def test_where_pip_is_that_of_another_python_ours_is_named(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil_of(shell), "which", lambda name: f"/elsewhere/{name}")
    monkeypatch.setattr(sys, "executable", "/my venv/bin/python")
    assert shlex.split(shell.install_command("flwr"))[:4] == ["/my venv/bin/python", "-m", "pip", "install"]
    monkeypatch.setattr(shell.util, "find_spec", lambda name: None)  # a venv that uv made
    assert shell.install_command("flwr") == "uv pip install --python '/my venv/bin/python' flwr"


@pytest.mark.parametrize(
    ("prefix", "words"),
    [("/home/me/pipx/venvs/protea", "pipx install --force"), ("/home/me/uv/tools/protea", "uv tool install")],
)
def test_tools_keep_their_programs_themselves(
    prefix: str, words: str, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone / "pyproject.toml").unlink()
    monkeypatch.setattr(sys, "prefix", prefix)
    assert shell.install_hint("ray") == f"{words} 'protea[ray]'"
