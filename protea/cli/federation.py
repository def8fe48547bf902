"""``protea federation``: coordinate a federation over a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from protea.core.errors import ConfigError
from protea.core.shell import quoted
from protea.network.coordinator.status import Status

app = typer.Typer(help="Coordinate a federation over a network.", no_args_is_help=True, add_completion=False)

Directory = Annotated[Path, typer.Argument(help="The federation's directory.", show_default=False)]


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="A new directory.", show_default=False)],
    classes: Annotated[str, typer.Option(help="Names of the classes, with commas between.", show_default=False)],
    sites: Annotated[str, typer.Option(help="Names of the sites to invite, with commas between.")] = "",
    method: Annotated[str, typer.Option(help="A method for different models.")] = "fedproto",
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 50,
    dim: Annotated[int, typer.Option(help="Numbers in a prototype.")] = 128,
    quorum: Annotated[int, typer.Option(help="Sites that must have answered for a round to count.")] = 2,
    tls: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Encrypt, and let invited sites in only; HOST is where they connect to."),
    ] = None,
    port: Annotated[int, typer.Option(help="Of the server.")] = 8443,
    public: Annotated[
        Path | None,
        typer.Option(help="A .npy file of inputs that all parties may have, for methods that need it."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="A setting of the task.  Repeatable.")
    ] = None,
) -> None:
    """Write a task file, keys, and a bundle for each site."""
    from protea.network.coordinator.directory import CoordinatorDirectory
    from protea.network.task import new_task, read_public_inputs

    names = [name.strip() for name in classes.split(",") if name.strip()]
    table: dict[str, Any] = {"classes": names, "rounds": rounds, "quorum": quorum, "method": {"name": method}}
    table["models"] = {"dim": dim}
    content = None
    if public is not None:
        content, table["shape"] = read_public_inputs(public)
    federation = CoordinatorDirectory.create(
        directory, new_task(table, set_ or []), tls or "127.0.0.1", port, tls is not None, content
    )
    console = Console()
    say(console, f"Task: {directory / 'task.toml'}")
    for name in [name.strip() for name in sites.split(",") if name.strip()]:
        say(console, f"Bundle for {name}: {federation.invite(name)}")
    if tls is None:
        say(console, "Without --tls the server is for this machine only: neither encrypted, nor are sites told apart.")
    else:
        say(console, "Each bundle holds that site's private key.  Hand it over on a safe way, then delete it here.")
    say(console, f"Start: protea federation serve {quoted(directory)}")


@app.command()
def invite(
    directory: Directory,
    names: Annotated[list[str] | None, typer.Argument(help="Names of sites.", show_default=False)] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Write all bundles anew, after task.toml was changed.")
    ] = False,
) -> None:
    """Write bundles for further sites.  A federation that is running lets them in at its next round."""
    from protea.network.coordinator.directory import CoordinatorDirectory

    federation, console = CoordinatorDirectory.open(directory), Console()
    if not names and not renew:
        raise ConfigError("Whom to invite?  Give names of sites, or --renew.")
    for path in federation.renew() if renew else []:
        say(console, f"Bundle: {path}")
    for name in names or []:
        say(console, f"Bundle for {name}: {federation.invite(name)}")


@app.command()
def remove(
    directory: Directory, name: Annotated[str, typer.Argument(help="Name of a site.", show_default=False)]
) -> None:
    """Put a site out.  Its key is worth nothing from the next round on."""
    from protea.network.coordinator.directory import CoordinatorDirectory

    CoordinatorDirectory.open(directory).remove(name)
    say(Console(), f"{name} takes part no longer.")


@app.command()
def serve(
    directory: Directory,
    listen: Annotated[
        str | None, typer.Option(help="Address to listen on; all of this machine's if not given.", show_default=False)
    ] = None,
) -> None:
    """Run the rounds; started again after a crash, go on from the last complete one."""
    from protea.network.coordinator.directory import CoordinatorDirectory
    from protea.network.coordinator.service import serve as serve_

    CoordinatorDirectory.open(directory)
    console = Console()
    screen = Screen(console)
    with screen:
        try:
            numbers = serve_(directory, screen.show, listen)
        except KeyboardInterrupt:
            screen.stop()
            say(Console(stderr=True), f"Stopped.  Go on: protea federation serve {quoted(directory)}")
            raise SystemExit(130) from None
    if numbers.get("accuracy") is not None:
        say(console, f"Accuracy {100 * numbers['accuracy']:.1f} % on the sites' own test samples.")
    say(console, f"Records: {directory / 'run'}.  Look at them: protea report {quoted(directory / 'run')}")


class Screen:
    """A coordinator's screen: a live table of the status on a terminal, lines of news elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, refresh_per_second=4) if console.is_terminal else None

    def __enter__(self) -> Screen:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the live table; its last state stays on the terminal."""
        if self.live is not None:
            self.live.stop()

    def show(self, status: Status, news: str | None) -> None:
        """Print a line of news, if there is one, and update the live table."""
        if news is not None:
            say(self.console, news)
        if self.live is not None:
            self.live.update(pictured(status))


def pictured(status: Status) -> Group:
    """Draw the status: a line on the round, and a table of the sites."""
    accuracy = "" if status.accuracy is None else f", accuracy {100 * status.accuracy:.1f} %"
    table = Table(box=SIMPLE)
    told = any(site.gain is not None for site in status.sites)
    for column in ("site", "connected", "model", "last", "accuracy", *["over alone"] * told, "refused"):
        table.add_column(column, justify="right" if column in ("accuracy", "over alone", "refused") else "left")
    for site in status.sites:
        there = "removed" if site.removed else "yes" if site.connected else "no"
        own = "" if site.accuracy is None else f"{100 * site.accuracy:.1f} %"
        gain = "" if site.gain is None else f"{100 * site.gain:+.1f}"
        row = [site.name, there, site.model, site.said, own, *[gain] * told, str(site.refused)]
        table.add_row(*(Text(cell) for cell in row))  # plain text, no markup: sites sent part of it
    head = Text(f"Round {status.round} of {status.task.rounds}{accuracy}: {status.doing}")
    return Group(head, table)


def say(console: Console, text: str) -> None:
    """Print plain text, neither wrapped nor marked up."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)
