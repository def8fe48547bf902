"""The page of a paper's table that was run again: ``table.md``, with the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from protea.config.units import format_bytes
from protea.config.words import PROTOCOLS, Protocol
from protea.core.files import write_text
from protea.studies.papers import Measure
from protea.studies.papers.plan import Plan
from protea.studies.reproduce import MEASURES, TableResults, value


def write(path: Path, results: TableResults) -> None:
    """Write ``table.md``: both tables, how ours was made, every run by every protocol, choices and notes."""
    plan, preset = results.plan, results.plan.preset
    text = [f"# {preset.name}: {preset.shows}"]
    text += [f"**{plan.warning}**"] if plan.warning else []
    text += [preset.paper + ".", made(results)]
    for measure in preset.numbers:
        text += [f"## {MEASURES[measure]}", "Paper / ours (difference)", beside(results, measure)]
    text += ["## Gain over training alone, and where it comes from", GAIN, gained(results)] if results.gains else []
    text += ["## Every run, by every protocol", EVERY, every_run(results)]
    text += section("Runs that look unwell", results.warnings)
    text += section("Failed", [f"{path.name}: {why}" for path, why in results.failed.items()])
    reasons = dict.fromkeys(f"{name}: {why}" for name, why in lacking(plan))
    text += section("Not run", list(reasons))
    text += section("Where the paper is silent or was not followed", preset.choices)
    text += section("What does not agree within the paper", preset.notes)
    write_text(path, "\n\n".join(text) + "\n")


EVERY = (
    "By each method's own rule on the clients' own test samples, unless the column says otherwise; `last5` is the mean "
    "of the last five evaluations, or of as many as there were. Other rules are in the round of the table's protocol."
)


GAIN = (
    "In points of accuracy on the clients' own test samples, with 95 % intervals, in pairs of runs that answer the "
    "same samples. *Its training*: the method with every client alone, minus Local. *The others*: the method minus "
    "itself alone."
)
PARTS = {"over": "over Local", "training": "its training", "others": "the others"}  # of a gain


def gained(results: TableResults) -> str:
    """Format a Markdown table of gains, with how many clients are better, worse and neither."""
    lines = []
    for (cell, row), each in results.gains.items():
        parts = [each.known[part].in_points() if part in each.known else "-" for part in PARTS]
        clients = [str(getattr(each.over, name)) if each.over else "-" for name in ("better", "worse", "neither")]
        lines.append([cell, row, *parts, *clients])
    return markdown(["cell", "row", *PARTS.values(), "better", "worse", "neither"], lines)


def made(results: TableResults) -> str:
    """Say in a sentence how our numbers were made, and how many runs have finished."""
    done = sum(each.finished for each in results.plan.runs)
    seeds = sorted({each.seed for each in results.plan.runs})
    over = f"seed {seeds[0]} alone" if len(seeds) == 1 else f"mean and population deviation over {len(seeds)} seeds"
    return (
        f"Ours: {PROTOCOLS[results.protocol]}; by each method's own rule; {over}; "
        f"{done} of {len(results.plan.runs)} runs have finished."
    )


def beside(results: TableResults, measure: Measure) -> str:
    """Format the paper's table in Markdown, with both numbers in each place."""
    plan = results.plan
    cells: dict[str, list[str]] = {}
    for _, row, paper, ours in results.pairs(measure):
        cells.setdefault(row, []).append(f"{paper.text} / {ours} ({ours.beside(paper)})")
    lines = [[row, *found] for row, found in cells.items()]
    if measure == "test":
        majority = [results.majority(cell) for cell in plan.cells]
        lines.append(["majority class", *("-" if m is None else f"- / {m:.2f} (-)" for m in majority)])
    return markdown(["", *plan.cells], lines)


def every_run(results: TableResults) -> str:
    """Format a Markdown table with one line for each run, its columns explained by ``EVERY``."""
    others: list[Measure] = [m for m in results.plan.preset.numbers if m != "test"]
    protocols = [name for name in get_args(Protocol) if name != "validation"]
    lines = []
    for each in results.plan.runs:
        reader = results.readers.get(each.path)
        if reader is None or reader.summary is None:
            lines.append(
                [each.cell, each.row, str(each.seed), *["-"] * (len(protocols) + 2 + len(others) + 2), each.path.name]
            )
            continue
        numbers = [value(reader, "test", protocol) for protocol in protocols]
        numbers += [value(reader, "test", results.protocol, rule) for rule in ("head", "local_prototypes")]
        numbers += [value(reader, measure, results.protocol) for measure in others]
        travelled = format_bytes(reader.summary["bytes_up"] + reader.summary["bytes_down"])
        spent = f"{reader.summary['cost']['seconds']:.0f} s"
        shown = ["-" if number is None else f"{number:.2f}" for number in numbers]
        lines.append([each.cell, each.row, str(each.seed), *shown, travelled, spent, each.path.name])
    return markdown(
        ["cell", "row", "seed", *protocols, "by head", "by local prototypes", *others, "up and down", "time", "run"],
        lines,
    )


def lacking(plan: Plan) -> list[tuple[str, str]]:
    """List what cannot be run, and why: by row where the method is missing, by cell where the data are."""
    found = []
    for (cell, row), why in plan.lacking.items():
        word = next((word for word in (*cell.split("/"), row) if word in plan.preset.needs), None)
        name = word or (row if "no method" in why else f"{row}, {cell}")
        found.append((name, why))
    return list(dict.fromkeys(found))


def section(title: str, lines: Sequence[str]) -> list[str]:
    """Format a Markdown section with a list; nothing if there are no lines."""
    return [f"## {title}", "\n".join(f"- {line}" for line in lines)] if lines else []


def markdown(head: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """Format a Markdown table."""
    rule = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in (head, rule, *lines))
