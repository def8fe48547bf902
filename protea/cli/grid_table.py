"""``protea compare --grid``: methods by data sets, or by the values of another setting, as text."""

from __future__ import annotations

import csv
import re
from io import StringIO

from rich.console import Console
from rich.text import Text

from protea.cli.comparison_formats import WIDTH, escaped, measured, shown
from protea.cli.narrow_tables import tables_of
from protea.config.words import PROTOCOLS, SCOPES
from protea.runs.compared_grid import ComparedGrid


def caption(found: ComparedGrid) -> str:
    """Say what the numbers are: measure, rule, test samples, protocol, rounds and seeds of each column."""
    first, columns = next(iter(found.columns.values())), found.columns.items()
    rounds = sorted({each.rounds for _, each in columns})
    seeds = sorted({seed for _, each in columns for seed in each.seeds})
    return (
        f"{measured(first.choice)} by {found.key}: rule {first.choice.rule}, {SCOPES[first.choice.scope]}, "
        f"protocol {first.choice.protocol} ({PROTOCOLS[first.choice.protocol]}); "
        f"{', '.join(map(str, rounds))} rounds; seeds {', '.join(map(str, seeds))}. "
        f"Mean ± standard deviation over seeds."
    )


def cell(found: ComparedGrid, label: str, column: str) -> str:
    """Format one number: mean and deviation; the mean alone with one seed, a dash without any."""
    score, share = found.score(label, column), found.columns[column].choice.built_in
    if score is None:
        return "-"
    deviation = "" if score.deviation is None else f" ± {shown(score.deviation, share)}"
    return shown(score.mean, share) + deviation


def grid_table(found: ComparedGrid) -> str:
    """Format the grid for a terminal: ** marks the best of a column, * the next one."""
    screen, file, marks = Console(), StringIO(), {1: " **", 2: " * "}
    width = screen.width if screen.is_terminal else max(WIDTH, 20 * (1 + len(found.columns)))
    columns = {"method": list(found.methods)}
    for column in found.columns:
        columns[column] = [
            cell(found, label, column) + marks.get(found.place(label, column) or 0, "   ") for label in found.methods
        ]
    drawn, console = tables_of(columns, width), Console(file=file, width=width)
    console.print(Text(caption(found)), *drawn, Text("** is the best of a column, * the next one."), sep="\n")
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def grid_markdown(found: ComparedGrid) -> str:
    """Format the grid as a Markdown table: best bold, second in italics, which Markdown has for underlining."""
    marks = {1: "**", 2: "*"}
    lines = [["method", *found.columns], ["---", *("---:" for _ in found.columns)]]
    for label in found.methods:
        marked = [marks.get(found.place(label, column) or 0, "") for column in found.columns]
        cells = [mark + cell(found, label, column) + mark for mark, column in zip(marked, found.columns, strict=True)]
        lines.append([label, *cells])
    rows = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{rows}\n\n{caption(found)} Bold is the best of a column, italic the next one.\n"


def grid_latex(found: ComparedGrid) -> str:
    r"""Format the grid as a LaTeX table for booktabs: best bold, second underlined, with a ``\label``."""
    marks = {1: r"\textbf{%s}", 2: r"\underline{%s}"}
    rows = []
    for label in found.methods:
        cells = [
            marks.get(found.place(label, column) or 0, "%s") % escaped(cell(found, label, column))
            for column in found.columns
        ]
        rows.append(" & ".join([escaped(label), *cells]) + r" \\")
    name = re.sub(r"[^a-z0-9]+", "-", found.key.lower()).strip("-")
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escaped(caption(found))} Bold is best, underlined second.}}",
            rf"\label{{tab:{name}}}",
            rf"\begin{{tabular}}{{l{'r' * len(found.columns)}}}",
            r"\toprule",
            " & ".join(["method", *map(escaped, found.columns)]) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def grid_csv(found: ComparedGrid) -> str:
    """Format the grid as CSV in long form, numbers not rounded: one line for each method and column."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["method", found.key, "seeds", "mean", "sd", "place"])
    for label in found.methods:
        for column in found.columns:
            if (score := found.score(label, column)) is not None:
                place = found.place(label, column)
                writer.writerow([label, column, score.count, score.mean, score.deviation, place])
    return file.getvalue()


GRID_FORMATS = {"table": grid_table, "markdown": grid_markdown, "csv": grid_csv, "latex": grid_latex}
