"""A comparison of methods as text: for a terminal, in Markdown, in LaTeX, or as CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from typing import Any

from rich.console import Console
from rich.text import Text

from protea.cli import gain_tables, rule_table
from protea.cli.narrow_tables import tables_of
from protea.config.units import format_bytes
from protea.config.words import LOWER_IS_BETTER, MEASURES, PROTOCOLS, SCOPES, WEIGHTINGS
from protea.runs.compare import Comparison, Row
from protea.runs.compared_number import ComparedNumber
from protea.runs.spread import Spread

WIDTH = 100  # columns of a table that is not printed on a terminal; the most on one


def caption(found: Comparison) -> str:
    """Say in full what the numbers are: measure, rule, test samples, protocol, data, rounds and seeds."""
    choice = found.choice
    seeds = ", ".join(map(str, found.seeds))
    weighted = choice.scope == "own" and (choice.by_accuracy or not choice.built_in)
    weights = f", {WEIGHTINGS[choice.weighting]}" if weighted else ""
    text = (
        f"{measured(choice)}: rule {choice.rule}, {SCOPES[choice.scope]}{weights}, "
        f"protocol {choice.protocol} ({PROTOCOLS[choice.protocol]}); {found.data}; {found.rounds} rounds; "
        f"seeds {seeds}. "
        f"± is the 95 % interval of a mean over seeds"
    )
    if found.against is not None:
        text += f"; differences are to {found.against}, in pairs of the same seed and split, p by the paired t test"
    return text + "."


def measured(choice: ComparedNumber) -> str:
    """Name the measure, such as ``Calibration error (lower is better) in %``, or the user's own metric."""
    if not choice.built_in:
        return choice.measure
    words = MEASURES[choice.measure]
    lower = " (lower is better)" if choice.measure in LOWER_IS_BETTER else ""
    return f"{words[0].upper()}{words[1:]}{lower} in %"


def footnotes(found: Comparison) -> list[str]:
    """Say for each row with other settings than the rest, which do not compare, what differs."""
    return [
        f"* {row.label}: " + "; ".join(f"{name} is {here}, elsewhere {there}" for name, (here, there) in differs)
        for row in found.rows
        if (differs := row.differs.items())
    ]


def cells(found: Comparison) -> dict[str, list[str]]:
    """Format the columns of the table: one text for each row, by the column's name."""
    compared, share = found.against is not None, found.choice.built_in
    columns: dict[str, Callable[[Row], str] | None] = {
        "method": lambda row: f"{row.label} *" if row.differs else row.label,
        "seeds": lambda row: str(row.score.count),
        "mean": lambda row: shown(row.score.mean, share),
        "sd": lambda row: shown(row.score.deviation, share),
        "95 %": lambda row: shown(row.score.margin, share, "±"),
        "diff": (lambda row: signed(row.difference, share)) if compared else None,
        "± diff": (lambda row: shown(row.difference.margin if row.difference else None, share, "±"))
        if compared
        else None,
        "p": (lambda row: chance(row.difference)) if compared else None,
        "per MB": lambda row: "-" if row.per_megabyte is None else brief((100 if share else 1) * row.per_megabyte),
        "target": reached if found.target is not None else None,
        "major": lambda row: shown(row.majority, share),
        "steps": (lambda row: "-" if row.steps is None else f"{row.steps:.0f}")
        if any(row.steps is not None for row in found.rows)
        else None,
        "sent": lambda row: format_bytes(row.sent),
    }
    return {name: [make(row) for row in found.rows] for name, make in columns.items() if make is not None}


@dataclass(frozen=True)
class Section:
    """One table of a comparison: what its numbers are, its columns, and what stands below them."""

    caption: str
    columns: dict[str, list[str]]
    marks: list[str]  # what an asterisk in the table stands for
    words: list[str]  # what the columns mean

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The lines of the table."""
        return list(zip(*self.columns.values(), strict=True))


def sections(found: Comparison, clients: bool) -> list[Section]:
    """Lay out the tables: methods, their gains where somebody trains alone; if asked for, rules and single clients."""
    tables = [Section(caption(found), cells(found), footnotes(found), explained(found))]
    if found.by_rule:
        tables.append(
            Section(
                f"{measured(found.choice)} by every answering rule", rule_table.columns(found), [], rule_table.WORDS
            )
        )
    if found.gains:
        columns, words = gain_tables.method_columns(found), gain_tables.explained(found)
        tables.append(Section("Gain in points of accuracy, and where it comes from", columns, [], words))
    if clients and (columns := gain_tables.client_columns(found))["method"]:
        tables.append(Section(f"Accuracy in % of each client, against {found.against}", columns, [], []))
    return tables


def table(found: Comparison, clients: bool = False) -> str:
    """Format the comparison for a terminal, with its caption."""
    screen = Console()
    return text_of(sections(found, clients), min(screen.width, WIDTH) if screen.is_terminal else WIDTH)


def text_of(tables: list[Section], width: int) -> str:
    """Draw tables that are not wider than so many columns: the same text for a terminal and a file, no colours."""
    file = StringIO()
    console = Console(file=file, width=width)
    for place, section in enumerate(tables):
        drawn = tables_of(section.columns, width)
        space = [Text()] if place else []
        console.print(*space, Text(section.caption), *drawn, *map(Text, [*section.marks, *section.words]), sep="\n")
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def explained(found: Comparison) -> list[str]:
    """Explain the columns whose names do not say what they mean."""
    lines = ["per MB: per megabyte sent up and down.  major: always answering each client's commonest class."]
    if any(row.steps is not None for row in found.rows):
        lines.append("steps: of SGD, of a client on its own samples, mean over clients.")
    if found.target is not None:
        goal = f"{100 * found.target:g} %" if found.choice.built_in else f"{found.target:g}"
        lines.append(f"target: first round with {goal}, mean over runs.")
    return lines


def markdown(found: Comparison, clients: bool = False) -> str:
    """Format the comparison as Markdown tables."""
    return "\n".join(map(markdown_section, sections(found, clients)))


def markdown_section(section: Section) -> str:
    """Format one table, with what it says below it."""
    head, *cells = [
        [cell.replace("|", "\\|").replace("*", "\\*") for cell in row] for row in [section.columns, *section.rows]
    ]
    lines = [head, ["---" if name == "method" else "---:" for name in head], *cells]
    notes = [line.replace("*", "\\*", 1) for line in section.marks]
    rows = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    below = [" ".join(section.words)] if section.words else []
    return "\n\n".join([rows, *notes, section.caption, *below]) + "\n"


def latex(found: Comparison, clients: bool = False) -> str:
    """Format the comparison as LaTeX tables for the booktabs package."""
    return "\n".join(map(latex_section, sections(found, clients)))


def latex_section(section: Section) -> str:
    """Format one table, with what it says below it."""
    rows = [" & ".join(escaped(cell) for cell in row) + r" \\" for row in section.rows]
    notes = [escaped(line) for line in [*section.marks, *section.words]]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escaped(section.caption)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(section.columns) - 1)}}}",
            r"\toprule",
            " & ".join(map(escaped, section.columns)) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par {note}" for note in notes),
            r"\end{table}",
            "",
        ]
    )


def comma_separated(found: Comparison, clients: bool = False) -> str:
    """Format the comparison as CSV: numbers are not rounded, and what the caption says has columns of its own.

    With ``clients`` it has a line for each client of each method, and none for the methods.
    """
    file, rows = StringIO(), gain_tables.plain_clients(found) if clients else plain_methods(found)
    writer = csv.DictWriter(file, rows[0] if rows else ["method"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def plain_methods(found: Comparison) -> list[dict[str, Any]]:
    """Give the numbers of each method."""
    choice, rows, by_rule = found.choice, list[dict[str, Any]](), found.by_rule.items()
    for row in found.rows:
        score, difference = row.score, row.difference
        rows.append(
            {
                "method": row.label,
                "seeds": score.count,
                "mean": score.mean,
                "sd": score.deviation,
                "low": score.low,
                "high": score.high,
                "against": found.against if difference else None,
                "pairs": difference.count if difference else None,
                "difference": difference.mean if difference else None,
                "difference_low": difference.low if difference else None,
                "difference_high": difference.high if difference else None,
                "p": difference.p if difference else None,
                "per_megabyte": row.per_megabyte,
                "target": found.target,
                "target_round": row.reached.round if row.reached else None,
                "target_runs": row.reached.runs if row.reached else None,
                "majority": row.majority,
                "bytes": row.sent,
                "steps": row.steps,
                "measure": choice.measure,
                "rule": choice.rule,
                "scope": choice.scope,
                "weighting": choice.weighting,
                "protocol": choice.protocol,
                "data": found.data,
                "rounds": found.rounds,
                "seed_list": " ".join(map(str, row.seeds)),
                "differs": "; ".join(f"{name}={here}" for name, (here, _) in row.differs.items()),
                **gain_tables.plain_parts(found, row.label),
                **{f"by_{rule}": means[row.label].mean if row.label in means else None for rule, means in by_rule},
            }
        )
    return rows


FORMATS = {"table": table, "markdown": markdown, "csv": comma_separated, "latex": latex}


def shown(value: float | None, share: bool, sign: str = "") -> str:
    """Format a number, with a sign before it; a dash where there is none.

    A ``share`` is shown in %: 0.0125 becomes ``1.25``; other numbers as they are.
    """
    if value is None:
        return "-"
    return f"{sign}{100 * value:.2f}" if share else f"{sign}{value:.4f}"


def signed(spread: Spread | None, share: bool) -> str:
    """Format a mean difference with its sign; a dash where there is none."""
    return "-" if spread is None else f"{100 * spread.mean:+.2f}" if share else f"{spread.mean:+.4f}"


def chance(spread: Spread | None) -> str:
    """Format the p value of a difference; a dash where there is none."""
    if spread is None or (p := spread.p) is None:
        return "-"
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def brief(value: float) -> str:
    """Format a number in three digits, or as an integer if that has more."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def reached(row: Row) -> str:
    """Format the mean round in which a row's runs reach the target, or how many did if not all."""
    found = row.reached
    if found is None:
        return "-"
    return f"{found.round:.1f}" if found.round is not None else f"- {found.runs} of {found.of}"


def escaped(text: str) -> str:
    """Escape a text for LaTeX."""
    marks = {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        "±": r"$\pm$", "<": r"$<$", ">": r"$>$", **{mark: f"\\{mark}" for mark in "_%&#$"},
    }  # fmt: skip
    if text[:1] in ("+", "-") and text[1:].replace(".", "").isdigit():
        return f"${text}$"
    return "".join(marks.get(character, character) for character in text)
