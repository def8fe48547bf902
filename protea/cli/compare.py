"""``protea compare``: methods side by side, on a terminal or for a paper."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from protea.cli.comparison_formats import FORMATS
from protea.cli.grid_table import GRID_FORMATS
from protea.config.words import MEASURES, PROTOCOLS, SCOPES, WEIGHTINGS
from protea.core.errors import ConfigError
from protea.core.files import write_text
from protea.runs import compare as numbers
from protea.runs.compared_grid import compare_grid
from protea.runs.compared_number import refuse_unknown

ENDINGS = {".md": "markdown", ".csv": "csv", ".tex": "latex"}


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
    clients: Annotated[
        bool, typer.Option("--clients", help="Also each client's difference, with who gains and who loses.")
    ] = False,
    rules: Annotated[
        bool, typer.Option("--rules", help="Also the same number by every answering rule: head, prototypes, blend.")
    ] = False,
    grid: Annotated[
        str | None,
        typer.Option(
            metavar="A.B", help="Methods by the values of a setting, such as data.source.", show_default=False
        ),
    ] = None,
    latex: Annotated[bool, typer.Option("--latex", help="The same as --format latex.")] = False,
) -> None:
    """Compare methods over the seeds of their runs."""
    if format is not None:
        refuse_unknown(format, FORMATS, "--format")
    if latex and format not in (None, "latex"):
        raise ConfigError(f"--latex and --format {format} are two formats.  Leave out one.")
    if grid is not None and (clients or rules or target is not None or against is not None):
        raise ConfigError("--grid has one number for each method: leave out --clients, --rules, --target, --against.")
    options: dict[str, Any] = {
        "rule": rule,
        "scope": scope,
        "weighting": weighting,
        "protocol": protocol,
        "measure": measure,
        "anyway": anyway,
        "where": where or [],
    }
    form = "latex" if latex else format or ENDINGS.get(out.suffix if out else "", "table")
    if grid is None:
        found = numbers.compare(runs, **options, target=target, against=against, clients=clients, rules=rules)
        comparisons, text = [found], FORMATS[form](found, clients)
    else:
        table = compare_grid(runs, grid, **options)
        comparisons, text = list(table.columns.values()), GRID_FORMATS[form](table)
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
    for note in dict.fromkeys(note for each in comparisons for note in each.notes):
        aside.print(note, soft_wrap=True, highlight=False, markup=False)
    for warning in dict.fromkeys(warning for each in comparisons for warning in each.warnings):
        aside.print(warning, style="yellow", soft_wrap=True, highlight=False, markup=False)
