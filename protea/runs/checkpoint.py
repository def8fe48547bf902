"""Checkpoints: the state of server and clients after a round, complete once ``state.json`` is in place.

No state of random generators is needed: every draw is a function of seed and name.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from protea.errors import CheckpointError
from protea.federation import Federation
from protea.runs.store import write_json
from protea.state import load_server, save_server, verify


def save(folder: Path, loop: Federation, keep: int = 1) -> Path:
    """Write ``folder/000040`` and drop all but the newest ``keep``."""
    server = loop.server
    path = folder / f"{server.round:06d}"
    shutil.rmtree(path, ignore_errors=True)  # a save that was interrupted
    path.mkdir(parents=True)
    save_server(server, path)
    loop.engine.save(path)
    write_json(path / "state.json", {"format": 1, "round": server.round})
    for old in complete(folder)[:-keep]:
        shutil.rmtree(old)
    return path


def load(folder: Path, loop: Federation) -> None:
    """Go on from the newest complete checkpoint; from the start where there is none."""
    found = complete(folder)
    if not found:
        return
    try:
        state = json.loads((found[-1] / "state.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{found[-1] / 'state.json'} cannot be read: {error}") from error
    if state.get("format") != 1:
        raise CheckpointError(f"{found[-1]} has format {state.get('format')}; this version of Protea reads format 1.")
    verify(found[-1])
    loop.start()  # makes the modules whose weights are loaded
    load_server(loop.server, found[-1])
    loop.server.round = state["round"]
    loop.engine.load(found[-1])


def complete(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob("[0-9]*") if (path / "state.json").is_file())
