"""The notebooks: they run from top to bottom, and what they keep of it is small and of no machine."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import warm
from night import by_night
from wanted import extra

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
BOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def book(name: str) -> Any:
    nbformat = pytest.importorskip("nbformat", reason="of the extra dev")
    return nbformat.read(FOLDER / name, as_version=4)


def refresh() -> ModuleType:
    """The script that runs them and keeps their outputs."""
    spec = importlib.util.spec_from_file_location("refresh", FOLDER / "refresh.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_five_and_each_is_named_where_people_look():
    assert len(BOOKS) == 5
    page = (FOLDER.parents[1] / "docs" / "notebook.md").read_text(encoding="utf-8")
    assert all(f"../examples/notebooks/{name}" in page for name in BOOKS)


@pytest.mark.parametrize("name", BOOKS)
def test_what_is_kept_is_small_and_whole(name: str):
    assert (FOLDER / name).stat().st_size < 40_000
    cells = [cell for cell in book(name).cells if cell.cell_type == "code"]
    kept = [each for cell in cells for each in cell.outputs]
    assert len(kept) >= 2 and all(each.output_type in ("stream", "execute_result") for each in kept)
    assert all(cell.execution_count == place for place, cell in enumerate(cells, start=1))  # in one go
    assert not re.search(r"/(tmp|home|root|work|Users)/", (FOLDER / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", BOOKS)
def test_links_lead_somewhere(name: str):
    text = "\n".join(cell.source for cell in book(name).cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (FOLDER / target).exists(), target


@pytest.mark.parametrize("name", [BOOKS[0], *by_night(*BOOKS[1:])])
def test_the_cells_run_one_after_another(name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory):
    """As a script, which costs a tenth of a kernel; what a cell defines is then in the main module too."""
    extra("pandas")
    cells = [cell.source for cell in book(name).cells if cell.cell_type == "code"]
    path = tmp_path / "cells.py"
    path.write_text("\n\n".join(cells), encoding="utf-8")
    done = warm.script(path, tmp_path, tmp_path_factory.mktemp("said"))
    assert done.code == 0, done.err


@pytest.mark.nightly
@pytest.mark.parametrize("name", BOOKS)
def test_they_run_as_notebooks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    extra("pandas")
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    module = refresh()
    found = module.tidied(module.executed(FOLDER / name, tmp_path))
    assert any(cell.get("outputs") for cell in found.cells)
