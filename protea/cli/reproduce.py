"""``protea reproduce``: a table of a paper, run again beside the paper's numbers."""

from __future__ import annotations

import itertools
import shlex
import sys
from pathlib import Path

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from protea.cli import display
from protea.config.sections import participants
from protea.config.units import format_bytes, format_duration
from protea.config.words import PROTOCOLS
from protea.core.errors import ConfigError
from protea.studies import papers
from protea.studies.papers import Measure
from protea.studies.papers.plan import Plan, Planned, Scale, plan
from protea.studies.reproduce import MEASURES, RunScreen, TableResults, costs, run_all
from protea.studies.reproduced_page import PARTS, lacking, write


def reproduce(
    name: str, scale: Scale, methods: list[str], out: Path | None, beside: list[str], keep: bool, yes: bool
) -> None:
    """Run a table of a paper again, and show its numbers beside ours.  Called again, it goes on where it was."""
    preset, cells = papers.find(name)
    if preset.sample:
        show_computed(Console(), preset, cells)
        return
    place = out or Path("runs") / preset.name.replace("/", "-")
    asked = plan(preset, cells, methods, scale, place, beside)
    console = Console()
    announce(console, asked)
    failed: dict[Path, str] = {}
    if asked.open:
        estimate(console, asked, keep)
        if not yes and not agreed():
            raise SystemExit(1)
        try:
            failed = run_all(asked.open, screens(console, len(asked.open)), keep)
        except KeyboardInterrupt:
            Console(stderr=True).print("Stopped.  The same command goes on from here.", soft_wrap=True)
            raise SystemExit(130) from None
        finally:
            finish(console, TableResults(asked, failed), place)
    else:
        finish(console, TableResults(asked, failed), place)
    if failed:
        raise SystemExit(1)


def show_computed(console: Console, preset: papers.Preset, cells: list[str]) -> None:
    """Print a table whose numbers follow from architectures: nothing is run, and nothing written."""
    from protea.studies.computation import COMPUTED, pairs

    say(console, f"{preset.name}: {preset.shows}")
    say(console, preset.paper)
    for measure in preset.numbers:
        say(console, f"\n{COMPUTED[measure]}.")
        table = Table(box=SIMPLE, padding=0)
        for column in ("cell", "row", "paper", "ours"):
            table.add_column(column, justify="right" if column in ("paper", "ours") else "left", no_wrap=True)
        for cell, row, paper, ours in pairs(preset, cells, measure):
            table.add_row(cell, row, paper.text, f"{ours:.3f}")
        console.print(table)
    for choice in (*preset.choices, *preset.notes):
        say(console, f"- {choice}")


def announce(console: Console, asked: Plan) -> None:
    """Print what will be run, and what cannot be."""
    preset = asked.preset
    say(console, f"{preset.name}: {preset.shows}")
    say(console, preset.paper)
    warn(console, asked.warning)
    for name, why in lacking(asked):
        say(console, f"Not run: {name}.  {why}")
    if not asked.runs:
        raise ConfigError(f"Nothing of {preset.name} that was asked for can be run here.")
    every = (*asked.runs, *asked.controls)
    done = len({each.path for each in every if each.finished})
    sizes = dict.fromkeys(
        f"{each.experiment.rounds} x {participants(each.experiment.clients, each.experiment.fraction)}"
        for each in every
    )
    count = len({each.path for each in every})
    say(console, f"Runs: {count} (rounds x clients: {', '.join(sizes)}), {done} finished, {len(asked.open)} to do.")


def estimate(console: Console, asked: Plan, keep: bool) -> None:
    """Print how long the unfinished runs will take here, and the disk space of their models."""
    found = costs(asked.open)
    seconds = sum(cost.seconds for cost in found.values())
    sizes = [cost.bytes for cost in found.values()]
    on_disk = sum(sizes) if keep else max(sizes)
    say(
        console,
        f"About {format_duration(seconds)} here, not counting the server's work and what a method adds to a step, and "
        f"{format_bytes(on_disk)} of models on disk{'' if keep else ' at a time'}.",
    )


def agreed() -> bool:
    """Ask on the terminal whether to start."""
    if not sys.stdin.isatty():
        raise ConfigError("There is no terminal to ask on whether to start.  Add --yes.")
    return typer.confirm("Start?")


def screens(console: Console, count: int) -> RunScreen:
    """Return a function that makes a display for each run, titled with its number out of ``count``."""
    numbers = itertools.count(1)
    kind: type[display.Quiet] = display.Live if console.is_terminal else display.Lines

    def screen(each: Planned) -> display.Quiet:
        return kind(console, f"{next(numbers)}/{count} {each.title}", each.experiment)

    return screen


def finish(console: Console, results: TableResults, place: Path) -> None:
    """Print the paper's numbers beside ours and write ``table.md``, if any run has finished."""
    if not results.readers:
        return
    for measure in results.plan.preset.numbers:
        how = PROTOCOLS[results.protocol] if measure != "numbers" else "last round"
        say(console, f"\n{results.plan.preset.name}.  {MEASURES[measure]}, {how}.")
        warn(console, results.plan.warning)
        console.print(side_by_side(results, measure))
    for warning in results.warnings:
        warn(console, warning)
    for path, why in results.failed.items():
        warn(console, f"{path.name} failed: {why}")
    write(place / "table.md", results)
    say(console, f"How it was made, all protocols, our choices: {place / 'table.md'}")
    if results.plan.preset.draw:
        paper = results.plan.preset.name.partition("/")[0]
        say(console, f"Draw its figures: protea report {shlex.quote(str(place))} --paper {paper} --figures figures")


def side_by_side(results: TableResults, measure: Measure) -> Table:
    """Lay out the paper's numbers, ours, their difference, and of our gain what training does and what others give."""
    table = Table(box=SIMPLE, padding=0)
    for column in ("cell", "row"):
        table.add_column(column)
    for column in ("paper", "ours", "difference"):
        table.add_column(column, justify="right", no_wrap=True)
    gains = results.gains if measure == "test" else {}
    parts = [part for part in ("training", "others") if any(part in each.known for each in gains.values())]
    for part in parts:
        table.add_column(PARTS[part], justify="right", no_wrap=True)
    for cell, row, paper, ours in results.pairs(measure):
        known = gains[cell, row].known if (cell, row) in gains else {}
        split = [known[part].in_points() if part in known else "-" for part in parts]
        table.add_row(cell, row, paper.text, str(ours), ours.beside(paper), *split)
    for cell in results.plan.cells if measure == "test" else []:
        if (majority := results.majority(cell)) is not None:
            table.add_row(cell, "majority class", "", f"{majority:.2f}", "")
    return table


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print plain text, neither wrapped nor marked up."""
    console.print(text, style=style, soft_wrap=True, highlight=False, markup=False)


def warn(console: Console, text: str) -> None:
    """Print a warning, unless it is empty."""
    if text:
        say(console, text, "yellow")
