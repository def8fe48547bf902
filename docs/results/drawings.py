"""Curves of long.md as SVG files, from the table of results, drawn as the figures of a report are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from protea.config import registry
from protea.core.files import write_text
from protea.report.figures import drawings
from protea.report.paper_plots import line, lines
from protea.studies.leaderboard import Board, Entry

Figure = dict[str, Any]
NOTHING: Figure = {
    "runs": [],
    "groups": [],
    "shown": 0,
    "words": {name: {} for name in ("rules", "scores", "protocols", "parts")},
}
ASIDE = ("fedpcl", "fedhp", "fedproc", "feddistill", "fedgh", "fedl2g", "fedorgp", "fedplvm", "fedsaf")  # stage others
ORDER = ("local", "fedloo", "fedproto", "fedtgp", "protonorm", "fedsa", "fedpagr")  # so that each keeps its colour
NUMBERS = {  # what is drawn over rounds, by the name of a row's number
    "own": "accuracy on own test samples, %",
    "server": "accuracy of the server's model, %",
    "teacher": "accuracy of the teacher on public samples, %",
}
FIELDS = {"protonorm": "scale", "fedtgp": "threshold"}  # of the curves


def figures(long: Sequence[Board], curves: Sequence[Board]) -> dict[str, Figure]:
    """Return every figure for which there are runs, by the name of its file."""
    found = {}
    for board in long:
        for number, words in NUMBERS.items():
            if (drawn := over_rounds(board, number, words)) is not None:
                found[f"{slug(board)}-{number}"] = drawn
    for method, field in FIELDS.items():
        if (drawn := by_field(curves, method, field)) is not None:
            found[f"{method}-{field}"] = drawn
    return found


def over_rounds(board: Board, number: str, words: str) -> Figure | None:
    """A line for each method: the mean over seeds at each evaluated round, and one standard deviation around it."""
    shown = [
        each
        for each in board.entries
        if not each.method.endswith(" alone") and re.split("[@ ]", each.method)[0] not in ASIDE
    ]
    shown.sort(key=lambda each: (place(each.method), each.method))
    series = [line(each.method, by_round(each, number)) for each in shown]
    series = [each for each in series if len(each["points"]) > 1]
    return lines(f"{words} over rounds, {name_of(board)}", "round", words, series)


def place(method: str) -> int:
    """Return a method's place in every figure; variants and others come last."""
    name = method.split()[0]
    name = "local" if name.startswith("local@") else name
    return ORDER.index(name) if name in ORDER else len(ORDER)


def by_round(found: Entry, number: str) -> Mapping[int, list[float]]:
    """Return the values of all seeds at each round that every seed has."""
    courses = found.courses(number)
    values: dict[int, list[float]] = {}
    for course in courses.values():
        for round, value in course:
            values.setdefault(round, []).append(value)
    return {round: some for round, some in values.items() if len(some) == len(courses)}


def by_field(found: Iterable[Board], method: str, field: str) -> Figure | None:
    """A line for each setting: own accuracy in the last round by the value of one field."""
    series, values = [], set()
    for board in found:
        points = {value: [row.own for row in each.rows if row.own is not None]
                  for each in board.entries if (value := value_of(each.method, method, field)) is not None}  # fmt: skip
        points = {value: some for value, some in points.items() if some}
        if len(points) > 1:
            series.append(line(name_of(board).rpartition(",")[0], points))
            values |= set(points)
    words = f"accuracy on own test samples, %, by the {field} of {method}"
    axis = {"type": "log", "ticks": sorted(values), "whole": False}
    return lines(words, f"{field} of {method}", "accuracy on own test samples, %", series, **axis)


def value_of(words: str, method: str, field: str) -> float | None:
    """Read the value of a field off a method's name; the default where only other methods' fields could be meant.

    >>> value_of("protonorm scale=30", "protonorm", "scale"), value_of("protonorm", "protonorm", "scale")
    (30.0, 10.0)
    >>> value_of("fedtgp server_lr=1", "fedtgp", "threshold") is None
    True
    """
    name, *changed = words.split()
    if name != method or len(changed) > 1:
        return None
    if not changed:
        return float(getattr(registry.find("methods", method)(), field))
    key, _, value = changed[0].partition("=")
    return float(value) if key == field else None


def name_of(board: Board) -> str:
    """Return a setting's name without its kind."""
    return board.setting.partition(": ")[2]


def slug(board: Board) -> str:
    """Return a setting's name as a part of a file's.

    >>> slug(Board("long: banking77, 3,000 samples, 20 clients, dirichlet 0.1, 300 rounds", []))
    'banking77-dirichlet-0.1-300'
    """
    first, *rest = name_of(board).split(", ")
    words = [first, *rest[-2:]] if rest else [first]
    return "-".join(re.sub(r"[^\w.]+", "-", word.removesuffix(" rounds")).strip("-") for word in words)


def draw(wanted: Mapping[str, Figure], folder: Path) -> None:
    """Write figures as SVG files into a folder, and remove those that nothing is drawn in any more."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.svg"):
        if file.stem not in wanted:
            file.unlink()
    if wanted:
        for name, text in zip(wanted, drawings(NOTHING, list(wanted.values())), strict=True):
            assert text is not None
            write_text(folder / f"{name}.svg", text)
