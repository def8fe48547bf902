"""A leaderboard: methods by setting, from a table of results, with intervals over seeds."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import fill

from protea.runs.spread import Spread
from protea.studies.result_rows import ResultRow

COLUMNS: dict[str, str] = {  # by the name of a row's number
    "own": "own rule",
    "blend": "blend",
    "worst": "worst client",
    "ensemble": "ensemble",
    "server": "server",
}
ASIDE = ("curve: ", "ablation: ")  # settings that vary the fields of one method: they rank nobody
HEAD = ("method", "seeds", *COLUMNS.values(), "minus Local", "MB", "time", "steps")
MEANING = (
    "Accuracies are in percent, of the last round, mean over seeds with half of the 95 % interval.",
    "Own rule and blend are on the clients' own test samples, every sample counting once; worst client is the lowest "
    "of these by the own rule.",
    "Ensemble is all clients together, server the server's model, both on the shared test set.",
    "Minus Local is the own rule less that of the best variant of Local, in pairs of equal seeds; bold where the "
    "interval leaves out zero.",
    "MB are of payload, both ways, of the whole run.  Time is a multiple of Local's; runs that shared their cores "
    "with others make it rough.  Steps are SGD steps of a client.",
)


@dataclass(frozen=True)
class Entry:
    """One method in one setting: the last round of each of its runs, and all rounds that were evaluated."""

    method: str
    rows: Sequence[ResultRow]
    rounds: Sequence[ResultRow] = ()

    def courses(self, number: str) -> dict[int, list[tuple[int, float]]]:
        """Return for each seed the rounds in order that have a number, each with the number."""
        found: dict[int, list[tuple[int, float]]] = {}
        for row in sorted(self.rounds, key=lambda row: row.round):
            if (value := getattr(row, number)) is not None:
                found.setdefault(row.seed, []).append((row.round, value))
        return found

    def spread(self, number: str) -> Spread | None:
        """Return the mean of a number over seeds; None where no run has it."""
        found = [value for row in self.rows if (value := getattr(row, number)) is not None]
        return Spread.of(found) if found else None

    def mean(self, number: str) -> float | None:
        """Return the mean over seeds, without its interval."""
        found = self.spread(number)
        return None if found is None else found.mean

    def minus(self, other: Entry) -> Spread | None:
        """Return by how much the own rule is higher than another method's, in pairs of equal seeds."""
        known = {row.seed: row.own for row in other.rows if row.own is not None}
        pairs = [row.own - known[row.seed] for row in self.rows if row.own is not None and row.seed in known]
        return Spread.of(pairs) if pairs else None

    def times(self, other: Entry) -> float | None:
        """Return how many times as long a run takes as another method's: the median over equal seeds."""
        known = {row.seed: row.seconds for row in other.rows if row.seconds}
        found = [row.seconds / known[row.seed] for row in self.rows if row.seconds and row.seed in known]
        return statistics.median(found) if found else None


@dataclass(frozen=True)
class Board:
    """All methods in one setting, the best by its own rule first."""

    setting: str
    entries: Sequence[Entry]

    @cached_property
    def local(self) -> Entry | None:
        """The best variant of Local; None where none was run."""
        found = [each for each in self.entries if each.method.partition("@")[0].split()[0] == "local"]
        return max(found, key=_own, default=None)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return heads and lines, without the columns in which no method has a number."""
        rows = [self.cells(entry) for entry in self.entries]
        kept = [place for place in range(len(HEAD)) if any(row[place] != "-" for row in rows)]
        return [HEAD[place] for place in kept], [[row[place] for place in kept] for row in rows]

    def cells(self, entry: Entry) -> list[str]:
        """Format a method's line."""
        accuracies = [_with_margin(entry.spread(number)) for number in COLUMNS]
        beside = entry.minus(self.local) if self.local not in (None, entry) else None
        times = entry.times(self.local) if self.local is not None else None
        size, steps = entry.mean("bytes"), entry.mean("steps")
        return [
            entry.method,
            str(len(entry.rows)),
            *accuracies,
            _difference(beside),
            "-" if size is None else f"{size / 1e6:.2f}",
            "-" if times is None else f"{times:.1f}",
            "-" if steps is None else f"{steps:,.0f}",
        ]


def boards(rows: Iterable[ResultRow]) -> list[Board]:
    """Sort results into a board for each setting."""
    found: dict[str, dict[str, list[ResultRow]]] = {}
    for row in rows:
        found.setdefault(row.setting, {}).setdefault(row.method, []).append(row)
    return [
        Board(setting, sorted((_entry(name, some) for name, some in methods.items()), key=_own, reverse=True))
        for setting, methods in sorted(found.items())
    ]


def _entry(method: str, rounds: Sequence[ResultRow]) -> Entry:
    """Tell the last round of each seed from the others."""
    last: dict[int, ResultRow] = {}
    for row in rounds:
        known = last.get(row.seed)
        last[row.seed] = row if known is None or row.round > known.round else known
    return Entry(method, list(last.values()), rounds)


def overview(found: Sequence[Board]) -> list[list[str]]:
    """Rank methods over settings: mean place by the own rule, and in how many settings each is above Local for sure.

    A method that a setting has once goes by its name there, whatever fields were chosen for it.
    """
    places: dict[str, list[int]] = {}
    above: dict[str, int] = {}
    below: dict[str, int] = {}
    for board in found:
        rivals = [each for each in board.entries if not each.method.endswith(" alone")]
        often = Counter(each.method.split()[0] for each in rivals)
        for place, entry in enumerate(rivals, 1):
            first = entry.method.split()[0]
            name = "local" if entry is board.local else first if often[first] == 1 else entry.method
            places.setdefault(name, []).append(place)
            beside = entry.minus(board.local) if board.local not in (None, entry) else None
            above[name] = above.get(name, 0) + bool(beside and beside.low is not None and beside.low > 0)
            below[name] = below.get(name, 0) + bool(beside and beside.high is not None and beside.high < 0)
    order = sorted(places, key=lambda name: (statistics.fmean(places[name]), name))
    return [
        [name, f"{statistics.fmean(places[name]):.1f}", str(len(places[name]))]
        + (["-", "-"] if name == "local" else [str(above[name]), str(below[name])])
        for name in order
    ]


OVERVIEW = ("method", "mean place", "settings", "above Local", "below Local")


def markdown(found: Sequence[Board], command: str) -> str:
    """Write the leaderboard as a Markdown page."""
    parts = ["# Leaderboard", "Made by this command, and by nothing else:", f"```sh\n{command}\n```"]
    parts += ["\n".join(fill(f"- {each}", 120, subsequent_indent="  ") for each in MEANING)]
    parts += ["## All settings", "Methods with the others, by their mean place.", _table(OVERVIEW, overview(found))]
    for board in found:
        parts += [f"## {board.setting}", _table(*board.table())]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _with_margin(found: Spread | None) -> str:
    if found is None:
        return "-"
    return f"{found.mean:.1f}" + ("" if found.margin is None else f" ± {found.margin:.1f}")


def _difference(found: Spread | None) -> str:
    if found is None:
        return "-"
    if found.low is None or found.high is None:
        return f"{found.mean:+.1f}"
    text = f"{found.mean:+.1f} [{found.low:.1f}, {found.high:.1f}]"
    return f"**{text}**" if found.low > 0 or found.high < 0 else text


def _own(entry: Entry) -> float:
    return entry.mean("own") or 0.0
