"""``protea federation``: coordinate a federation over a network."""

from __future__ import annotations

import json
import tomllib
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from protea.core.errors import ConfigError
from protea.core.shell import quoted

if TYPE_CHECKING:
    from protea.network.coordinator.status import Show, Status

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
    from protea.network.coordinator.directory import CoordinatorDirectory, refuse_names
    from protea.network.task import new_task, read_public_inputs

    invited = [name.strip() for name in sites.split(",") if name.strip()]
    refuse_names(invited)
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
    for name in invited:
        say(console, f"Bundle for {name}: {federation.invite(name)}")
    if tls is None:
        say(console, "Without --tls the server is for this machine only: neither encrypted, nor are sites told apart.")
    else:
        if sites:
            say(console, "Each bundle holds that site's private key.  Hand it over on a safe way, then delete it here.")
        say(console, "Sites that make their own keys:  protea site request NAME  there, then here")
        say(console, f"  protea federation invite {quoted(directory)} --request NAME.request")
    say(console, f"Start: protea federation serve {quoted(directory)}")


@app.command()
def invite(
    directory: Directory,
    names: Annotated[list[str] | None, typer.Argument(help="Names of sites.", show_default=False)] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Write all bundles anew, after task.toml was changed.")
    ] = False,
    request: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="What a site wrote by: protea site request.  Repeatable.", show_default=False
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take a new key that the former one has not signed: that was lost.")
    ] = False,
) -> None:
    """Write bundles for further sites.  A federation that is running lets them in at its next round.

    A site that made its own key asks by a file; its bundle has no private key.  So does one that changes its key.
    """
    from protea.network.coordinator.directory import CoordinatorDirectory, refuse_names
    from protea.network.trust.requests import read_request
    from protea.network.trust.signatures import fingerprint

    federation, console = CoordinatorDirectory.open(directory), Console()
    if not names and not renew and not request:
        raise ConfigError("Whom to invite?  Give names of sites, --request FILE, or --renew.")
    refuse_names(names or [], [site.name for site in federation.guests.sites])
    for asked in [read_request(file) for file in request or []]:
        path = federation.answer(asked, replace_key=replace)
        say(console, f"Bundle for {asked.site}, without a private key: {path}")
        say(
            console, f"  Its key, to be compared with what {asked.site} reads to you: {fingerprint(asked.key.encode())}"
        )
        say(console, f"  Yours, to be read to them: {fingerprint(federation.signer.public())}")
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
def rotate(directory: Directory) -> None:
    """Make the coordinator's own keys anew: the one that signs jobs and, with TLS, the authority's.

    All sites need the new bundles before they can go on; the former key vouches for the new one.
    """
    from protea.core.files import hold_lock
    from protea.network.coordinator.directory import CoordinatorDirectory
    from protea.network.trust.signatures import fingerprint

    federation, console = CoordinatorDirectory.open(directory), Console()
    with hold_lock(directory / ".lock", f"{directory} is being served.  Stop that first."):
        paths = federation.rotate()
    for path in paths:
        say(console, f"Bundle: {path}")
    say(console, f"The coordinator's new key: {fingerprint(federation.signer.public())}")
    say(console, "Sites go on once they have opened theirs: protea site join BUNDLE")


@app.command()
def ledger(
    directory: Directory,
    site: Annotated[
        list[str] | None, typer.Option(help="Show every answer of this site.  Repeatable.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write all lines, with their signatures and keys, to a new .jsonl file.", show_default=False),
    ] = None,
) -> None:
    """Show which site took part in which rounds, and check its signature of every accepted upload."""
    from protea.cli.ledger import show_ledger

    show_ledger(Console(), directory, site or [], out)


@app.command()
def serve(
    directory: Directory,
    listen: Annotated[
        str | None, typer.Option(help="Address to listen on; all of this machine's if not given.", show_default=False)
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve numbers for Prometheus: to this machine alone, or with HOST to whoever has a token.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run the rounds; started again after a crash, go on from the last complete one."""
    console = Console()
    for line in first_words(directory):
        say(console, line)
    screen = Screen(console)
    with ExitStack() as opened:
        show: Show = screen.show
        if metrics is not None:
            from protea.network.coordinator.directory import CoordinatorDirectory
            from protea.network.coordinator.metrics import MetricsServer

            CoordinatorDirectory.open(directory)
            told = opened.enter_context(MetricsServer(metrics, directory))
            say(console, f"Metrics: {told.url}")
            show = both(screen.show, told.show)
        opened.enter_context(screen)
        try:
            from protea.network.coordinator.directory import CoordinatorDirectory
            from protea.network.coordinator.service import serve as serve_

            CoordinatorDirectory.open(directory)
            numbers = serve_(directory, show, listen)
        except KeyboardInterrupt:
            screen.stop()
            say(Console(stderr=True), f"Stopped.  Go on: protea federation serve {quoted(directory)}")
            raise SystemExit(130) from None
    say(console, f"The federation in {directory} has ended.")
    if numbers.get("accuracy") is not None:
        say(console, f"Accuracy {100 * numbers['accuracy']:.1f} % on the sites' own test samples.")
    say(console, f"Records: {directory / 'run'}.  Look at them: protea report {quoted(directory / 'run')}")


def both(first: Show, second: Show) -> Show:
    """Show the status in two places."""

    def show(status: Status, news: str | None) -> None:
        first(status, news)
        second(status, news)

    return show


def first_words(directory: Path) -> list[str]:
    """Return what a coordinator waits for, read without what takes long to import: the first thing on its screen.

    Nothing for a directory that cannot be read: that is told, with what to do, when it is opened.
    """
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        guests = json.loads((directory / "federation.json").read_bytes())
        task = tomllib.loads((directory / "task.toml").read_text("utf-8"))
        names = [str(site["name"]) for site in guests["sites"] if not site.get("removed")]
        host, port, quorum = str(guests["host"]), int(guests["port"]), int(task.get("quorum", 2))
        who = ", ".join(names) or "sites to be invited"
        return [
            f"Federation {directory}: {task.get('rounds', 50)} rounds, at {host}:{port}.  The server is being started.",
            f"It waits for {who}; a round begins with {quorum} or more.  Stop with Ctrl-C; nothing is lost.",
        ]
    return []


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
        there = "removed" if site.removed else "late" if site.late else "yes" if site.connected else "no"
        own = "" if site.accuracy is None else f"{100 * site.accuracy:.1f} %"
        gain = "" if site.gain is None else f"{100 * site.gain:+.1f}"
        row = [site.name, there, site.model, site.said, own, *[gain] * told, str(site.refused)]
        table.add_row(*(Text(printable(cell)) for cell in row))  # plain text, no markup: sites sent part of it
    head = Text(f"Round {status.round} of {status.task.rounds}{accuracy}: {status.doing}")
    return Group(head, *(Text(f"Warning: {each}") for each in status.warnings), table)


def printable(text: str) -> str:
    """Return text with a question mark for each character that is none, such as those that move a cursor.

    >>> printable("north" + chr(27) + "[2J")
    'north?[2J'
    """
    return "".join(each if each.isprintable() or each in "\n\t" else "?" for each in text)


def say(console: Console, text: str) -> None:
    """Print plain text, neither wrapped nor marked up, and nothing in it that a terminal would obey."""
    console.print(printable(text), soft_wrap=True, highlight=False, markup=False)
