"""What can be typed of the commands that train, or that ask what would be trained.

Each imports its own file when it is called, since that needs torch: help and completion do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from protea.core.errors import ConfigError

Config = Annotated[Path, typer.Argument(help="Experiment file (TOML).", show_default=False)]
Changes = Annotated[
    list[str] | None,
    typer.Argument(metavar="[A.B=C]...", help="Changes, such as method.pull=1 seed=2.", show_default=False),
]
Log = Annotated[
    list[str] | None, typer.Option(help="Also log to tensorboard, mlflow or wandb.  Repeatable.", show_default=False)
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write records as JSON lines to standard output.")]


def run(
    config_file: Config,
    changes: Changes = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory, new; runs/NAME if not given.", show_default=False)
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            help="Run this method too, on the same split: local if none is named; or alone.  Repeatable.",
            show_default=False,
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out; start it if there is none.")
    ] = False,
    log: Log = None,
    with_report: Annotated[bool, typer.Option("--report", help="End with a report, as an HTML page.")] = False,
    quiet: QuietOption = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment, and keep its records in a run directory."""
    from protea.cli import run

    run.run(config_file, changes, out, beside, again, log, with_report, quiet, as_json)


def resume(
    directory: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    log: Log = None,
    quiet: QuietOption = False,
    as_json: AsJson = False,
) -> None:
    """Continue a run that was interrupted, from its newest checkpoint."""
    from protea.cli import run

    run.resume(directory, log, quiet, as_json)


def show(config_file: Config, changes: Changes = None) -> None:
    """Show what an experiment would do: settings, who has which data, models, bytes, time.  Trains nothing."""
    from protea.cli import show

    show.show(config_file, changes)


def sweep(
    config_file: Config,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[A.B=C,D]...",
            help="Values to combine: method.name=fedproto,fedtgp seed=1..5 fedtgp:method.threshold=10,100.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory of the sweep, new or to go on with; runs/FILE-sweep if not given.", show_default=False
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option("--search", min=1, help="Search, by so many runs, what --for names.", show_default=False),
    ] = None,
    space: Annotated[
        list[str] | None,
        typer.Option("--for", help="training.lr=0.001..0.1, or method.pull=1,10.  Repeatable.", show_default=False),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Run all combinations of settings, or search for good ones.  Called again, it goes on."""
    from protea.cli import sweep

    sweep.sweep(config_file, arguments or [], out, trials, space or [], quiet)


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="PAPER/TABLE, or PAPER/TABLE/CELL for a part of it; see: protea list tables.", show_default=False
        ),
    ] = "",
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[A.B=C]...", help="Changes to all runs, such as device=cuda.", show_default=False),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Fewer rounds than the paper.", show_default=False)] = None,
    fraction: Annotated[float | None, typer.Option(help="Use this share of the data.", show_default=False)] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs per number; the paper's if not given.", show_default=False)
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Only these rows or methods, such as fedproto,fedtgp@code.", show_default=False)
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory of all runs, runs/PAPER-TABLE if not given; of a leaderboard, its page.", show_default=False
        ),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="local|alone",
            help="Run this beside every row, to tell what it gains.  Repeatable.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the models of finished runs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before starting.")] = False,
    board: Annotated[
        bool,
        typer.Option(
            "--leaderboard", help="Run nothing; rank the methods of finished runs, in the folders named, by setting."
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="Of a leaderboard: the Parquet file of results to read and add to.", show_default=False),
    ] = None,
) -> None:
    """Run a table of a paper again, and show its numbers beside ours.  Called again, it goes on where it was."""
    if board:
        from protea.cli.leaderboard import leaderboard

        leaderboard(Console(), [each for each in (name, *(changes or ())) if each], data, out)
        return
    if not name:
        raise ConfigError("Name a table, such as fedtgp/table1.  All of them: protea list tables")
    if data is not None:
        raise ConfigError("--data belongs to --leaderboard.  Leave it out, or add --leaderboard.")
    from protea.cli import reproduce
    from protea.studies.papers.plan import Scale

    scale = Scale(rounds, fraction, seeds, tuple(changes or ()))
    wanted = [each.strip() for each in methods.split(",") if each.strip()]
    reproduce.reproduce(name, scale, wanted, out, beside or [], keep, yes)
