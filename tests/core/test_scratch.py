"""Scratch folders: there while their process lives, and cleared by the next one if it was killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from protea.core.scratch import ScratchFolder, clear_leftovers

MAKE = """
import os, signal, tempfile
from protea.core.scratch import ScratchFolder
folder = ScratchFolder()
(folder.path / "data").write_text("of nobody")
print(folder.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_a_killed_process_has_left_is_cleared_and_nothing_else(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, foreign = ScratchFolder(), place / "protea-of-somebody"
    foreign.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    done = subprocess.run([sys.executable, "-c", MAKE], capture_output=True, text=True, check=False)
    left = Path(done.stdout.strip())
    assert done.returncode < 0 and (left / "data").exists() and left.parent == place
    another = ScratchFolder()
    assert not left.exists() and mine.path.is_dir() and foreign.is_dir()
    for each in (mine, another):
        each.cleanup()
    assert list(place.iterdir()) == [foreign]


def test_a_folder_goes_with_its_object(place: Path) -> None:
    folder = ScratchFolder()
    path = folder.path
    assert path.stat().st_mode & 0o777 == 0o700 and folder.name == str(path)
    del folder
    assert not path.exists()


def test_links_are_not_followed(place: Path) -> None:
    precious = place / "precious"
    precious.mkdir()
    (precious / ".held").touch()
    (place / "protea-link").symlink_to(precious)
    assert clear_leftovers() == [] and precious.is_dir()
