"""``protea watch``: a page that follows runs while they go on."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from protea.core.errors import ConfigError


def watch(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DIR]...",
            help="Runs, sweeps, federations, or folders of them; runs if not given.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the page; 0 for any free one.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Address to listen at.  Beyond this machine, the URL has a token.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Follow runs, sweeps and federations in a live page, served on this machine, read-only."""
    # Imported here: reading runs takes numpy and more.
    from protea.core.addresses import is_loopback
    from protea.watch.collection import Collection
    from protea.watch.server import LiveServer

    console, errors = Console(), Console(stderr=True)
    places = folders or [Path("runs")]
    for place in places:
        if not place.is_dir():
            raise ConfigError(f"{place} is not a folder.  Give a run directory, or a folder of runs: protea watch DIR")
    collection = Collection(places)
    with LiveServer(collection, host, port) as server:
        collection.look()
        collection.start(lambda error: errors.print(f"Could not look at the runs: {error!r}", markup=False))
        if not is_loopback(host):
            errors.print("Anybody who has this address can read along, and it is not encrypted.", highlight=False)
        console.print(f"Live page: {server.url}", soft_wrap=True, highlight=False, markup=False)
        console.print(f"{len(collection.rows)} runs.  Ctrl-C ends it.", highlight=False)
        if browser:
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            console.print("Ended.")
        finally:
            collection.stop()
