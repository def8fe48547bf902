"""The ``protea`` command, put together from its subcommands: one file of this folder for each."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import click
import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

import protea
from protea.core.errors import ProteaError

COMMANDS = {  # module of this folder and name in it, and the first sentence of its help
    "demo": (
        "demo:demo",
        "Play a small federation of ten clients with few handwritten digits each, and show who gains by it.",
    ),
    "examples": ("demo:examples", "Copy the examples that come with Protea into a folder."),
    "run": ("training:run", "Run an experiment, and keep its records in a run directory."),
    "resume": ("training:resume", "Continue a run that was interrupted, from its newest checkpoint."),
    "show": ("training:show", "Show what an experiment would do: settings, who has which data, models, bytes, time."),
    "audit": (
        "audit:audit",
        "Attack what was sent, or what a site would send, and say of each class whether it leaks.",
    ),
    "list": ("listing:list_", "List methods, families, architectures, data, partitions, engines or tables of papers."),
    "doctor": ("listing:doctor", "Say what is installed, what is missing, and the command that adds it."),
    "compare": ("compare:compare", "Compare methods over the seeds of their runs."),
    "export": ("export:export", "Write the numbers of all rounds and clients in long form: one line for each number."),
    "export-model": (
        "export_model:export_model",
        "Write a client's trained model as a folder that answers new samples, with Protea or without.",
    ),
    "predict": ("predict:predict", "Predict the classes of new samples by the trained model of a client."),
    "report": ("report:report", "Show runs, ended or not, in one HTML page that works offline."),
    "watch": ("watch:watch", "Follow runs, sweeps and federations in a live page, served on this machine, read-only."),
    "reproduce": ("training:reproduce", "Run a table of a paper again, and show its numbers beside ours."),
    "sweep": ("training:sweep", "Run all combinations of settings, or search for good ones."),
    "federation": ("federation:app", "Coordinate a federation over a network."),
    "site": ("site:app", "Take part in a federation over a network."),
}


USUAL = {"--beside": "local"}  # what options mean that may stand without a value


class Command(TyperCommand):
    """A subcommand in which some options may stand without a value, before another option or at the end."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put in the values that are left out."""
        whole = list[str]()
        for place, word in enumerate(args):
            whole.append(word)
            if word in USUAL and (place + 1 == len(args) or args[place + 1].startswith("-")):
                whole.append(USUAL[word])
        return super().parse_args(ctx, whole)


class LazyCommands(TyperGroup):
    """The subcommands, each imported when it is used: help and completion are there before torch could be imported."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: click.Command(name, help=words) for name, (_, words) in COMMANDS.items()}
        self.listing = False  # whether names and words are all that is asked for

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import a subcommand; where a list of all is made, its name and words will do."""
        if self.listing or name not in COMMANDS:
            return self.commands.get(name)
        module, attribute = COMMANDS[name][0].split(":")
        found = getattr(import_module(f"protea.cli.{module}"), attribute)
        if not isinstance(found, typer.Typer):
            one = typer.Typer(add_completion=False)
            one.command(name, cls=Command)(found)
            found = one
        return typer.main.get_command(found)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the help of ``protea`` itself."""
        self.listing = True
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete the name of a subcommand."""
        self.listing = True
        return super().shell_complete(ctx, incomplete)


app = typer.Typer(
    cls=LazyCommands,
    suggest_commands=False,  # click does it
    help="Federated learning across different models and different data, by exchanging class prototypes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def show_version(asked: bool) -> None:
    """Print the version, and do nothing else."""
    if asked:
        typer.echo(f"protea {protea.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options that stand before a subcommand."""


def main() -> None:
    """Run the ``protea`` command; show Protea's own errors as messages, without a traceback."""
    try:
        app()
    except ProteaError as error:
        Console(stderr=True).print(f"[bold red]{type(error).__name__}[/]: ", end="")
        Console(stderr=True).print(str(error), soft_wrap=True, highlight=False, markup=False)
        raise SystemExit(2) from error
