"""``protea compare``: methods side by side, on a terminal or for a paper."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from protea.config.units import format_bytes
from protea.config.words import LOWER_IS_BETTER, MEASURES, PROTOCOLS, SCOPES, WEIGHTINGS
from protea.core.errors import ConfigError
from protea.core.files import write_text
from protea.runs import compare as numbers
from protea.runs.compare import Comparison, Row
from protea.runs.compared_number import ComparedNumber, refuse_unknown
from protea.runs.spread import Spread

WIDTH = 100  # columns of a table that is not printed on a terminal; the most on one


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them.", show_default=False)],
    rule: Annotated[
        str | None, typer.Option(help="Which scores answer: method, head, ...  By default method.", show_default=False)
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(PROTOCOLS), help="Of which rounds; by default the runs' own.", show_default=False
        ),
    ] = None,
    scope: Annotated[str, typer.Option(metavar="|".join(SCOPES), help="On which samples, by whom.")] = "own",
    weighting: Annotated[
        str | None,
        typer.Option(metavar="|".join(WEIGHTINGS), help="Over clients; weighted if not given.", show_default=False),
    ] = None,
    measure: Annotated[
        str, typer.Option(metavar="|".join(MEASURES), help="Of what; also a metric of your own that all runs have.")
    ] = "accuracy",
    target: Annotated[
        float | None, typer.Option(help="Also say in which round this is first reached: 0.9.", show_default=False)
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD", help="Differences are to this one; by default local, else the best.", show_default=False
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="table|markdown|csv|latex", help="By default as --out ends, else table.", show_default=False
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file.", show_default=False)] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="A.B=C", help="Only runs with this setting.  Repeatable.", show_default=False),
    ] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also compare what does not compare, and mark it.")] = False,
) -> None:
    """Compare methods over the seeds of their runs."""
    if format is not None:
        refuse_unknown(format, FORMATS, "--format")
    found = numbers.compare(
        runs,
        rule=rule,
        scope=scope,
        weighting=weighting,
        protocol=protocol,
        measure=measure,
        target=target,
        against=against,
        anyway=anyway,
        where=where or [],
    )
    form = format or ENDINGS.get(out.suffix if out else "", "table")
    text = FORMATS[form](found)
    if out is None:
        sys.stdout.write(text)
        sys.stdout.flush()  # so that the notes, on standard error, come after the table
    else:
        try:
            write_text(out, text)
        except OSError as error:
            raise ConfigError(f"{out} cannot be written: {error.strerror}.  Choose another --out.") from error
    aside = Console(stderr=True)
    if out is not None:
        aside.print(f"Written: {out}, as {form}", soft_wrap=True, highlight=False)
    for note in found.notes:
        aside.print(note, soft_wrap=True, highlight=False, markup=False)
    for warning in found.warnings:
        aside.print(warning, style="yellow", soft_wrap=True, highlight=False, markup=False)


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
        "sent": lambda row: format_bytes(row.sent),
    }
    return {name: [make(row) for row in found.rows] for name, make in columns.items() if make is not None}


def table(found: Comparison) -> str:
    """Format the comparison for a terminal, with its caption."""
    screen = Console()
    width = min(screen.width, WIDTH) if screen.is_terminal else WIDTH
    drawn = Table(box=SIMPLE, padding=0)
    columns = cells(found)
    for name in columns:
        label = name == "method"
        drawn.add_column(name, justify="left" if label else "right", no_wrap=not label, overflow="fold")
    for row in zip(*columns.values(), strict=True):
        drawn.add_row(*map(Text, row))
    file = StringIO()  # the same text for a terminal and a file, without colours
    console = Console(file=file, width=width)
    console.print(Text(caption(found)), drawn, *map(Text, [*footnotes(found), *explained(found)]), sep="\n")
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def explained(found: Comparison) -> list[str]:
    """Explain the columns whose names do not say what they mean."""
    lines = ["per MB: per megabyte sent up and down.  major: always answering each client's commonest class."]
    if found.target is not None:
        goal = f"{100 * found.target:g} %" if found.choice.built_in else f"{found.target:g}"
        lines.append(f"target: first round with {goal}, mean over runs.")
    return lines


def markdown(found: Comparison) -> str:
    """Format the comparison as a Markdown table."""
    columns = cells(found)
    lines = [list(columns), ["---" if name == "method" else "---:" for name in columns]]
    lines += [
        [cell.replace("|", "\\|").replace("*", "\\*") for cell in row] for row in zip(*columns.values(), strict=True)
    ]
    notes = [line.replace("*", "\\*", 1) for line in footnotes(found)]
    rows = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return "\n\n".join([rows, *notes, caption(found), " ".join(explained(found))]) + "\n"


def latex(found: Comparison) -> str:
    """Format the comparison as a LaTeX table for the booktabs package."""
    columns = cells(found)
    rows = [" & ".join(escaped(cell) for cell in row) + r" \\" for row in zip(*columns.values(), strict=True)]
    notes = [escaped(line) for line in [*footnotes(found), *explained(found)]]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escaped(caption(found))}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            r"\toprule",
            " & ".join(map(escaped, columns)) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par {note}" for note in notes),
            r"\end{table}",
            "",
        ]
    )


def comma_separated(found: Comparison) -> str:
    """Format the comparison as CSV: numbers are not rounded, and what the caption says has columns of its own."""
    choice, file = found.choice, StringIO()
    rows = []
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
                "measure": choice.measure,
                "rule": choice.rule,
                "scope": choice.scope,
                "weighting": choice.weighting,
                "protocol": choice.protocol,
                "data": found.data,
                "rounds": found.rounds,
                "seed_list": " ".join(map(str, row.seeds)),
                "differs": "; ".join(f"{name}={here}" for name, (here, _) in row.differs.items()),
            }
        )
    writer = csv.DictWriter(file, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


ENDINGS = {".md": "markdown", ".csv": "csv", ".tex": "latex"}
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
