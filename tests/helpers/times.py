"""How long tests take: by group, so that the longest begin first, and by folder, for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "times.json"


def known() -> dict[str, float]:
    """The seconds of each group, when they were last measured."""
    found: dict[str, float] = json.loads(FILE.read_text())
    return found


def measure(reports: Iterable[object]) -> list[str]:
    """Write down the seconds of each group of a run with ``-n``; give a table of folders."""
    groups, folders, tests = Counter[str](), Counter[str](), Counter[str]()
    for report in reports:
        if isinstance(report, pytest.TestReport):
            group = report.nodeid.rpartition("@")[2]
            _, *folder, _ = Path(report.nodeid.partition("::")[0]).parts
            groups[group] += report.duration  # type: ignore[assignment]
            folders["/".join(folder)] += report.duration  # type: ignore[assignment]
            tests["/".join(folder)] += report.when == "call"
    seconds = {group: round(total, 1) for group, total in groups.most_common() if total >= 0.05}
    FILE.write_text(json.dumps(seconds, indent=1) + "\n")
    rows = [f"| `tests/{folder}` | {tests[folder]} | {total:.0f} |" for folder, total in folders.most_common()]
    return ["| folder | tests | seconds |", "|---|---|---|", *rows]
