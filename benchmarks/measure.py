"""Measuring in turns, tables of what was found, and a line of JSON for each run in ``results``.

Seconds depend on the machine and its load; the ratio of two things measured in turns much less.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch

from protea.runs.environment import commit

RESULTS = Path(__file__).parent / "results"
Work = Callable[[], object]


def seconds(work: Work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turns(works: Mapping[str, Work], turns: int) -> dict[str, list[float]]:
    """Seconds of each work in each turn.  Every second turn goes backwards, so that none always comes first."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(turns):
        for name in list(works)[:: -1 if turn % 2 else 1]:
            found[name].append(seconds(works[name]))
    return found


def ratio(first: Sequence[float], second: Sequence[float], skip: int = 1) -> float:
    """How many of the second fit into one of the first: the median over turns, without the first ones."""
    return median(a / b for a, b in list(zip(first, second, strict=True))[skip:])


def of_totals(first: Sequence[float], second: Sequence[float], skip: int = 1) -> float:
    """The same for all these turns together."""
    return sum(first[skip:]) / sum(second[skip:])


class Table:
    """Rows that are printed as they come, and kept for the JSON line."""

    def __init__(self, **widths: int) -> None:
        """Columns and their widths; ``_`` in a name is a space."""
        self.widths, self.rows = widths, list[dict[str, Any]]()
        print("".join(f"{name.replace('_', ' '):>{width}}" for name, width in widths.items()), flush=True)

    def add(self, *values: object) -> None:
        self.rows.append(dict(zip(self.widths, values, strict=True)))
        shown = (f"{text(value):>{width}}" for value, width in zip(values, self.widths.values(), strict=True))
        print("".join(shown), flush=True)

    def keep(self, name: str, settings: Mapping[str, Any], folder: Path = RESULTS) -> None:
        """Append all rows, and what they are of, to ``results/NAME.jsonl``."""
        line = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "torch": torch.__version__,
            "cores": os.cpu_count(),
            "command": " ".join(short(word) for word in sys.argv),
            "settings": {name: short(value) if isinstance(value, Path) else value for name, value in settings.items()},
            "numbers": self.rows,
        }
        folder.mkdir(exist_ok=True)
        with (folder / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, default=str) + "\n")


def short(word: str | Path) -> str:
    """Without the folders of this machine."""
    return Path(word).name if Path(word).is_absolute() or word is sys.argv[0] else str(word)


def text(value: object) -> str:
    """Numbers to three digits; nothing for what was not measured."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
