"""``protea compare``: methods side by side, on a terminal or for a paper."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from protea.cli.comparison_formats import FORMATS
from protea.config.words import MEASURES, PROTOCOLS, SCOPES, WEIGHTINGS
from protea.core.errors import ConfigError
from protea.core.files import write_text
from protea.runs import compare as numbers
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
        clients=clients,
        rules=rules,
    )
    form = format or ENDINGS.get(out.suffix if out else "", "table")
    text = FORMATS[form](found, clients)
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
