"""The runs, sweeps and federations in some folders, as files tell of them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

LEVELS = ("", "*/", "*/*/")  # where runs are looked for, below each folder
Plain = dict[str, Any]


def run_paths(folders: Iterable[Path]) -> list[Path]:
    """The run directories in some folders and up to two levels below, each once; a folder may hold none yet."""
    found: dict[Path, None] = {}
    for folder in folders:
        for level in LEVELS:
            within = sorted((config.parent for config in folder.glob(f"{level}config.toml")), key=as_people_count)
            found |= dict.fromkeys(within)
    return [path for path in found if not (path / "sweep.json").is_file()]


def as_people_count(path: Path) -> list[tuple[int, int, str]]:
    """A key by which ``fedproto-s2`` comes before ``fedproto-s10``."""
    parts = re.split(r"([0-9]{1,18})", str(path))
    return [(1, int(part), part) if place % 2 else (0, 0, part) for place, part in enumerate(parts)]


def name_of(path: Path, folders: Sequence[Path]) -> str:
    """What readers call a run: its path below the folder that it was found in, whose name comes first if several."""
    for folder in folders:
        if path == folder:
            return path.resolve().name
        if path.is_relative_to(folder):
            inner = path.relative_to(folder)
            return str(inner if len(folders) == 1 else Path(folder.resolve().name) / inner)
    return str(path)


def mark_of(path: Path) -> str:
    """A short name of a run for addresses; a page can ask for no other paths than those it was told of."""
    return hashlib.blake2b(str(path.resolve()).encode(), digest_size=6).hexdigest()


def sweep_of(path: Path) -> Plain | None:
    """Of the folder of a sweep, how many runs it plans; None of another folder."""
    table = read_table(path / "sweep.json")
    if table is None:
        return None
    runs = table.get("runs")
    return {"kind": "sweep", "planned": len(runs) if isinstance(runs, list | dict) else None}


def federation_of(path: Path) -> Plain | None:
    """Of a coordinator's folder, its sites and what it does now; None of another folder."""
    table = read_table(path / "federation.json")
    if table is None:
        return None
    told = read_table(path / "status.json") or {}
    now = {str(site.get("name")): site for site in listed(told.get("sites"))}
    sites = [
        {"name": str(site.get("name")), "removed": bool(site.get("removed")), **known(now.get(str(site.get("name"))))}
        for site in listed(table.get("sites"))
    ]
    return {"kind": "federation", "doing": told.get("doing"), "sites": sites}


def known(site: Plain | None) -> Plain:
    """What the coordinator last said of a site."""
    return {name: (site or {}).get(name) for name in ("connected", "said", "refused")}


def listed(value: object) -> list[Plain]:
    """The tables in a list; none of anything else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def read_table(path: Path) -> Plain | None:
    """The object in a JSON file; None where there is no such file, or it holds something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
