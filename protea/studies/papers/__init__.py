"""Tables of papers: the printed numbers, and the experiments that should give them.

Each paper is a TOML file in this folder.  A table has columns (``cells``) and rows (methods).  Each entry of
``changes`` is keyed by words, and applies to the paper's base experiment where all its words are among those of the
cell, such as ``practical/cifar10``, and the name of the row; entries apply in the order of the file.  A cell with
commas, such as ``scale,flip/share10,share20``, stands for all combinations.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import PositiveInt

from protea.config.experiment import Experiment, experiment_from_table
from protea.config.registry import table as plugged
from protea.config.toml import Table, override, settings_from_table
from protea.core.errors import ConfigError, nearest

Measure = Literal["test", "ensemble", "server", "numbers", "honest", "forward", "computation"]

NOT_THERE = "-"  # no such number in the paper: the method does not apply, or was not run
DIVERGED = "diverged"  # printed so in the paper
UNREADABLE = "?"  # not legible in our copy of the paper


@dataclass(frozen=True)
class Number:
    """A number as the paper prints it; ``mean`` is None where it has none, and ``text`` says why."""

    text: str
    mean: float | None = None
    deviation: float | None = None

    @classmethod
    def of(cls, text: str) -> Number:
        """Parse ``88.15±0.43``, ``88.15``, or one of the three marks above."""
        if text in (NOT_THERE, DIVERGED, UNREADABLE):
            return cls(text)
        mean, _, deviation = text.partition("±")
        return cls(text, float(mean), float(deviation) if deviation else None)


@dataclass(frozen=True)
class TableFile:
    """One table as it is written in a paper's file, below ``[tables]``."""

    shows: str
    cells: list[str]
    numbers: dict[Measure, dict[str, str]]  # by what is measured, then by row: one number for each cell, or one dash
    base: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, list[str]] = field(default_factory=dict)
    seeds: PositiveInt | None = None
    choices: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    own: bool = False
    draw: bool = False  # runs for the figures of the paper
    sample: list[PositiveInt] = field(default_factory=list)  # shape of one, for tables that are computed, not run
    classes: PositiveInt | None = None  # for these


@dataclass(frozen=True)
class PaperFile:
    """The content of a paper's file.  ``needs`` tells for a word of a cell, or a row, or several joined by " + ", what
    is lacking to run it."""

    title: str
    source: str
    seeds: PositiveInt
    base: dict[str, Any]
    changes: dict[str, list[str]]
    tables: dict[str, dict[str, Any]]
    choices: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    needs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Preset:
    """One table of a paper, with all that is needed to run it again."""

    name: str  # fedtgp/table1
    paper: str
    shows: str
    cells: tuple[str, ...]
    rows: tuple[str, ...]
    numbers: Mapping[Measure, Mapping[str, Mapping[str, Number]]]  # by measure, row, cell
    base: Table
    changes: Sequence[tuple[frozenset[str], Sequence[str]]]
    seeds: int
    choices: Sequence[str]  # where the paper is silent, or cannot be followed
    notes: Sequence[str]  # what does not agree within the paper
    needs: Mapping[str, str]
    own: bool = False  # a table of ours, for which no paper has numbers
    draw: bool = False  # its runs are there to be drawn: protea report --paper
    sample: tuple[int, ...] = ()  # shape of one, where the numbers follow from architectures and nothing is run
    classes: int = 0

    def table(self, cell: str, row: str) -> Table:
        """Return the settings of the experiment behind a cell and row."""
        words, result = {*cell.split("/"), row}, self.base
        for needed, changes in self.changes:
            if needed <= words:
                result = override(result, changes)
        return result

    def experiment(self, cell: str, row: str, changes: Sequence[str] = (), variant: str | None = None) -> Experiment:
        """Build and check the experiment behind a cell and row, with further ``changes``.

        ``variant``, such as ``fedtgp@code``, replaces the method's name.
        """
        table = override(self.table(cell, row), changes)
        if variant is not None:
            method = table["method"]
            table["method"] = {**(method if isinstance(method, dict) else {}), "name": variant}
        return experiment_from_table(table, f"{self.name}, {cell}, {row}")

    def method(self, cell: str, row: str) -> str:
        """Return the name of the method of a cell and row."""
        method = self.table(cell, row).get("method", "fedproto")
        return str(method if isinstance(method, str) else method["name"])

    def lacking(self, cell: str, row: str) -> str | None:
        """Return why a cell and row cannot be run; None if they can."""
        words = {*cell.split("/"), row}
        for needed, why in self.needs.items():
            if words.issuperset(needed.split(" + ")):
                return why
        if not self.own and all(rows[row][cell].text == NOT_THERE for rows in self.numbers.values() if row in rows):
            return "The paper has no number here."
        name = self.method(cell, row).partition("@")[0]
        there = name in plugged("methods") or ":" in name
        return None if there else f"There is no method {name} in Protea yet."


def names() -> list[str]:
    """List the tables of all papers in this folder, as ``paper/table``."""
    return [f"{paper}/{name}" for paper in papers() for name in load(paper).tables]


def papers() -> list[str]:
    """List the papers in this folder."""
    return sorted(Path(each.name).stem for each in files(__name__).iterdir() if each.name.endswith(".toml"))


def find(name: str) -> tuple[Preset, list[str]]:
    """Find the table that a name such as ``fedtgp/table1/cifar10`` means, and those of its cells that it selects.

    A name is ``paper/table`` or ``file.toml/table``; cells are selected by the words that follow, all of them.
    """
    stem, dot, rest = name.partition(".toml/")
    paper, _, rest = (f"{stem}.toml", "", rest) if dot else name.partition("/")
    table, _, words = rest.partition("/")
    if not dot and paper not in papers():
        raise ConfigError(f"There is no paper {paper!r}.  {nearest(paper, papers())}  See: protea list tables")
    known = load(paper).tables
    if table not in known:
        what = f"has no table {table!r} here" if table else f"is a paper: name a table of it, such as {paper}/table1"
        raise ConfigError(f"{paper} {what}.  It has: {', '.join(known)}.  See: protea list tables")
    preset = preset_of(paper, table)
    wanted = set(filter(None, words.split("/")))
    cells = [cell for cell in preset.cells if wanted <= set(cell.split("/"))]
    if not cells:
        raise ConfigError(f"{preset.name} has no cell {words!r}.  {nearest(words, preset.cells)}")
    return preset, cells


def load(paper: str) -> PaperFile:
    """Read a paper's file: one of this folder by its name, any other by its path."""
    own = paper.endswith(".toml")
    try:
        text = (Path(paper) if own else files(__name__) / f"{paper}.toml").read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{paper} cannot be read as a file of tables: {error}") from error
    result: PaperFile = settings_from_table(PaperFile, content, paper)
    return result


def preset_of(paper: str, table: str) -> Preset:
    """Build the preset of a table from the paper's file."""
    whole = load(paper)
    where = f"{paper}, tables.{table}"
    part: TableFile = settings_from_table(TableFile, whole.tables[table], where)
    cells = combined(part.cells)
    rows = tuple(dict.fromkeys(row for by_row in part.numbers.values() for row in by_row))
    pairs = [*whole.changes.items(), *part.changes.items()]
    return Preset(
        name=f"{Path(paper).stem}/{table}",
        paper=f"{whole.title}. {whole.source}",
        shows=part.shows,
        cells=tuple(cells),
        rows=rows,
        numbers={
            measure: {row: numbers(text, cells, f"{where}, {measure}, {row}") for row, text in by_row.items()}
            for measure, by_row in part.numbers.items()
        },
        base=merged(whole.base, part.base),
        changes=[(frozenset(words.split(" + ")), changes) for words, changes in pairs],
        seeds=part.seeds or whole.seeds,
        choices=[*([] if part.sample else whole.choices), *part.choices],
        notes=[*whole.notes, *part.notes],
        needs=whole.needs,
        own=part.own,
        draw=part.draw,
        sample=tuple(part.sample),
        classes=part.classes or 0,
    )


def combined(cells: Sequence[str]) -> list[str]:
    """Return all cells, those with commas as every combination of their words.

    >>> combined(["cifar10", "a,b/c"])
    ['cifar10', 'a/c', 'b/c']
    """
    return ["/".join(words) for cell in cells for words in product(*(part.split(",") for part in cell.split("/")))]


def numbers(text: str, cells: Sequence[str], where: str) -> dict[str, Number]:
    """Parse a row of numbers separated by spaces, one for each cell; ``where`` names the row in errors.

    A single dash says that there is none in the whole row.
    """
    found = text.split()
    found = found * len(cells) if found == [NOT_THERE] else found
    if len(found) != len(cells):
        raise ConfigError(f"{where}: {len(found)} numbers for {len(cells)} cells.  Write - where there is none.")
    try:
        return {cell: Number.of(each) for cell, each in zip(cells, found, strict=True)}
    except ValueError as error:
        raise ConfigError(f"{where}: {error}.  A number is written as 88.15 or 88.15±0.43.") from error


def merged(first: Table, second: Table) -> Table:
    """Merge two tables, and the tables within them; where both have a value, take the second's."""
    result = dict(first)
    for name, value in second.items():
        inner = result.get(name)
        result[name] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result
