"""Run the notebooks of this folder again, and keep their small outputs.  Needs the packages nbclient and ipykernel.

    python examples/notebooks/refresh.py [NAME.ipynb ...]

Each runs in an empty folder.  What moves while it runs (progress bars) and what differs every time is not kept.
"""

import json
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Run a notebook in a folder; an error in a cell is raised."""
    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    return book


def tidied(book: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Leave out progress bars, and what depends on the machine."""
    for cell in book.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.output_type in ("stream", "execute_result")]
    book.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return book


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            book = tidied(executed(path, Path(folder)))
        text = json.dumps(book, indent=1, ensure_ascii=False, sort_keys=True)
        path.write_text(f"{text}\n", encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
