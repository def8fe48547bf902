"""Displays of a run's progress: live bars on a terminal, plain lines elsewhere; and the final table."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from protea.cli import gain_tables
from protea.config.experiment import Experiment
from protea.config.units import format_bytes, format_duration, percent
from protea.config.words import PROTOCOLS, SCOPES, WEIGHTINGS
from protea.federation.jobs import Reply
from protea.federation.privacy import NO_GUARANTEE
from protea.federation.record import Record
from protea.runs.gain import Gain
from protea.runs.observers import Observer
from protea.runs.progress import client_jobs
from protea.runs.result import Result
from protea.runs.steps import rounds_and_steps


class Quiet(Observer):
    """A display that shows nothing, and the base of the other displays."""

    def __init__(self, console: Console, title: str, experiment: Experiment) -> None:
        self.console, self.title, self.experiment, self.rounds = console, title, experiment, experiment.rounds

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def complain(self, record: Record) -> None:
        """Print why clients were left out of a round."""
        for why in record.failures.values():
            self.console.print(
                f"  left out: {why.strip().splitlines()[0]}", soft_wrap=True, highlight=False, markup=False
            )


class Lines(Quiet):
    """A display of one line per round, for log files."""

    def __init__(self, console: Console, title: str, experiment: Experiment) -> None:
        super().__init__(console, title, experiment)
        self.begun = time.perf_counter()
        self.ends: list[float] = []  # times at which rounds ended, in seconds

    def round(self, record: Record) -> None:
        self.ends.append(time.perf_counter())
        passed = self.ends[-1] - self.begun
        # The time of the first round includes the start-up; from the second on, rounds are timed without it.
        each = (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1) if len(self.ends) > 1 else passed
        left = each * (self.rounds - record.round)
        loss = "-" if record.loss is None else f"{record.loss:.3f}"
        self.console.print(
            f"{self.title}  round {record.round}/{self.rounds}  loss {loss}  "
            f"accuracy {percent(record.accuracy)} %  {privacy_note(record)}{passed:.0f} s, "
            f"about {format_duration(left)} left",
            soft_wrap=True,
            highlight=False,
        )
        self.complain(record)


def privacy_note(record: Record) -> str:
    """Say in a few words what the uploads so far cost; nothing where nothing is noisy."""
    told = record.privacy
    if told is None:
        return ""
    return f"{NO_GUARANTEE}  " if told.epsilon is None else f"epsilon {told.epsilon:.3g}  "


class Json(Quiet):
    """A display that writes the lines of ``metrics.jsonl`` to standard output."""

    def round(self, record: Record) -> None:
        for line in record.lines():
            sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


class Live(Quiet):
    """A display of two bars, rounds and client jobs of the current round, with accuracy and time left."""

    def __init__(self, console: Console, title: str, experiment: Experiment) -> None:
        super().__init__(console, title, experiment)
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.all = self.progress.add_task(title, total=self.rounds, note="rounds")
        self.each = self.progress.add_task("  this round", total=client_jobs(experiment, 1), note="client jobs")

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.update(self.each, visible=False)
        self.progress.stop()

    def replied(self, reply: Reply) -> None:
        self.progress.advance(self.each)

    def round(self, record: Record) -> None:
        note = f"rounds  accuracy {percent(record.accuracy)} %" if record.accuracy is not None else "rounds"
        self.progress.update(self.all, completed=record.round, note=note)
        self.progress.reset(self.each, total=client_jobs(self.experiment, record.round + 1))
        self.complain(record)


COLUMNS = {
    "own rule": "own rule: as the method answers; head: by the classifier; last: own rule in the last round; best: in "
    f"the best one on test samples (which); all {WEIGHTINGS['weighted']}.",
    "ensemble": "ensemble: all clients together on the shared test set, by their own rule.",
    "server": "server: the server's model on the shared test set.",
    "up": "up, down: all clients and rounds.",
}


def results(console: Console, found: Sequence[Result]) -> None:
    """Print the final table: each run's results, and the majority-class predictor's on the same split."""
    table = Table(
        title=f"Accuracy in % on the {SCOPES['own']}, {PROTOCOLS[found[0].summary['made']['protocol']]}",
        title_justify="left",
        box=SIMPLE,
        padding=0,
    )
    table.add_column("method", overflow="fold")  # gives way on a narrow screen; numbers do not
    shared = any(result.summary["shared"] for result in found)
    served = any(result.summary["server"] for result in found)
    extra = ["ensemble"] * shared + ["server"] * served
    for name in ("own rule", "head", "last", "best", *extra, "up", "down", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in found:
        s: dict[str, Any] = result.summary
        best = s["protocols"].get("best")
        highest = f"{percent(best['test']['method']['weighted'])} ({best['rounds'][0]})" if best else "-"
        last = s["protocols"].get("final", {}).get("test", {}).get("method", {}).get("weighted")
        head = s["test"].get("head", {}).get("weighted")
        ensemble = [percent(s["shared"].get("method", {}).get("ensemble"))] * shared
        server = [percent(s["server"].get("head"))] * served
        table.add_row(
            s["method"], percent(s["accuracy"]), percent(head), percent(last),
            highest, *ensemble, *server,
            format_bytes(s["bytes_up"]), format_bytes(s["bytes_down"]), f"{s['cost']['seconds']:.0f} s",
        )  # fmt: skip
    table.add_row("majority", percent(found[0].summary["majority"]))
    console.print(table)
    words = [COLUMNS[name] for name in ("own rule", *extra, "up")]
    words += dict.fromkeys(rounds_and_steps(len(result.records), result.steps) for result in found)
    console.print("  ".join(words), style="dim", highlight=False)
    for result in found:
        if "privacy" in result.summary:
            console.print(f"{result.method}: privacy: {result.summary['privacy']['words']}.", highlight=False)
        if result.honest is not None:
            honest = f"{result.method}: accuracy {percent(result.honest)} % of the clients that [attack] does not name."
            console.print(honest, highlight=False, markup=False)
        for warning in result.summary["warnings"].values():
            console.print(f"{result.summary['method']}: {warning}", style="yellow", highlight=False)


def gains(console: Console, found: Sequence[Result]) -> None:
    """Print the table of gains over training alone, if runs beside these tell of any."""
    rows = [(result.method, name, gain) for result in found for name, gain in result.gain.items()]
    if not rows:
        return
    table = Table(title="Gain over training alone, in points of accuracy", title_justify="left", box=SIMPLE, padding=0)
    table.add_column("method", overflow="fold")
    table.add_column("over", overflow="fold")
    for name in ("gain", "95 % interval", "better", "worse", "neither"):
        table.add_column(name, justify="right", no_wrap=True)
    for method, name, gain in rows:
        table.add_row(method, name, *gain_cells(gain))
    console.print(table)
    words = [
        "local: no federation at all; alone: the same method, every client by itself.",
        "better, worse: clients whose own 95 % interval lies above or below 0.",
        *gain_tables.notes([gain for _, _, gain in rows]),
    ]
    console.print("  ".join(words), style="dim", highlight=False)


def gain_cells(gain: Gain) -> list[str]:
    """Format a gain and its interval in points, and how many clients are better, worse and neither."""
    interval = f"{100 * gain.low:+.2f} to {100 * gain.high:+.2f}"
    return [f"{100 * gain.mean:+.2f}", interval, str(gain.better), str(gain.worse), str(gain.neither)]
