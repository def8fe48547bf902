"""The ``protea`` command, put together from its subcommands: one file of this folder for each."""

from __future__ import annotations

import typer
from rich.console import Console

from protea.cli import federation, site
from protea.cli.audit import audit
from protea.cli.compare import compare
from protea.cli.export import export
from protea.cli.export_model import export_model
from protea.cli.listing import doctor, list_
from protea.cli.predict import predict
from protea.cli.report import report
from protea.cli.reproduce import reproduce
from protea.cli.run import resume, run
from protea.cli.show import show
from protea.cli.sweep import sweep
from protea.core.errors import ProteaError

app = typer.Typer(
    help="Federated learning across different models and different data, by exchanging class prototypes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command()(run)
app.command()(resume)
app.command()(show)
app.command()(audit)
app.command("list")(list_)
app.command()(doctor)
app.add_typer(federation.app, name="federation")
app.add_typer(site.app, name="site")
app.command()(compare)
app.command()(export)
app.command()(export_model)
app.command()(predict)
app.command()(report)
app.command()(reproduce)
app.command()(sweep)


def main() -> None:
    """Run the ``protea`` command; show Protea's own errors as messages, without a traceback."""
    try:
        app()
    except ProteaError as error:
        Console(stderr=True).print(f"[bold red]{type(error).__name__}[/]: ", end="")
        Console(stderr=True).print(str(error), soft_wrap=True, highlight=False, markup=False)
        raise SystemExit(2) from error
