"""``protea sweep``: a grid of runs, or a search; called again, it goes on where it stopped."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from protea.cli.comparison_formats import table
from protea.config.units import format_duration, percent
from protea.core.errors import ConfigError
from protea.core.shell import quoted
from protea.federation.record import Record
from protea.runs.compare import compare
from protea.studies.grid import SweepRun, SweepSource, grid
from protea.studies.search import TriedRun, prepare_search, ranking, search
from protea.studies.sweep import Sweep, SweepOutcome, begin, held, play

QUARTERS = 4  # of a run: a log file has a line after each
SHOWN = 5  # best runs that are listed at the end of a search


def sweep(
    config_file: Path, given: list[str], out: Path | None, trials: int | None, space: list[str], quiet: bool
) -> None:
    """Run all combinations of settings, or search for good ones.  Called again, it goes on."""
    if trials is None and space:
        raise ConfigError("--for says what to search, and --search by how many runs.  Add, for example, --search 20.")
    source = SweepSource.load(config_file)
    path = out or Path("runs") / f"{config_file.stem}-sweep"
    console = Console(quiet=quiet)
    if trials is None:
        dimensions = []
        wanted = Sweep(path, source, given, grid(source, given))
    else:
        dimensions = prepare_search(source, given, space)
        wanted = Sweep(path, source, given, [], space)
        console.print(f"Searching {'; '.join(map(str, dimensions))}.", highlight=False, soft_wrap=True)
    again = shlex.join(["protea", *sys.argv[1:]])
    tried: list[TriedRun] = []
    try:
        with held(path):
            this = begin(wanted)
            with board(console, trials or len(this.entries), quiet) as shown:
                if trials is None:
                    found = [play(path, entry, shown) for entry in this.entries]
                else:
                    tried = search(this, dimensions, trials, shown)
                    found = [outcome for outcome, _ in tried]
    except KeyboardInterrupt:
        Console(stderr=True).print(f"Stopped.  Go on with: {again}", soft_wrap=True, highlight=False, markup=False)
        raise SystemExit(130) from None
    if tried:
        announce(console, path, source, tried)
    else:
        conclude(console, path, found)
    if failed := {outcome.entry.name: outcome.error for outcome in found if outcome.summary is None}:
        complain(path, failed, again)
        raise SystemExit(1)


def conclude(console: Console, path: Path, found: list[SweepOutcome]) -> None:
    """Print the comparison of the runs over seeds, and the command that makes other tables."""
    ended = list(dict.fromkeys(path / outcome.entry.name for outcome in found if outcome.summary is not None))
    if not ended or console.quiet:
        return
    try:
        numbers = compare(ended, anyway=True)
        console.out(table(numbers), end="", highlight=False)
        notes, warnings = numbers.notes, numbers.warnings
    except ConfigError as error:  # there is no number that all runs have
        notes, warnings = [str(error)], []
    for note in notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    for warning in warnings:
        console.print(warning, style="yellow", highlight=False, markup=False, soft_wrap=True)
    console.print(f"Runs are in {path}.  Compare them: protea compare {quoted(path)}", highlight=False, soft_wrap=True)


def announce(console: Console, path: Path, source: SweepSource, tried: list[TriedRun]) -> None:
    """Print the best runs by validation accuracy, and the test accuracy and settings of the very best."""
    ranked = ranking(tried)
    if not ranked:
        return
    best = ranked[0][0]
    test = percent(best.summary["accuracy"] if best.summary else None)
    lines = [f"Best of {len(tried)} runs on validation samples, in %:"]
    lines += [f"  {percent(value):>5}  {outcome.entry.name}" for outcome, value in ranked[:SHOWN]]
    lines += [
        f"Test accuracy of the first: {test} %.  Its settings are in {path / 'best.toml'}; or",
        f"  {shlex.join(['protea', 'run', str(source.path), *best.entry.changes])}",
        f"Runs are in {path}.  To choose among them by their test accuracy would flatter the one chosen.",
    ]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def complain(path: Path, failed: dict[str, str], again: str) -> None:
    """Print the errors of failed runs on standard error."""
    console = Console(stderr=True)
    console.print(f"{len(failed)} failed:", style="bold red", highlight=False)
    for name, error in failed.items():
        text = f"  {name}: {brief(error)}"
        console.print(text, soft_wrap=True, highlight=False, markup=False)
    text = f"  All of an error is in {path}/NAME/error.txt.  To try these again: {again}"
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def brief(error: str) -> str:
    """Return the line of an error that says most: the last one of a traceback."""
    lines = error.strip().splitlines()
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


class SweepQuiet:
    """A display that only counts runs, and the base of the other displays of sweeps."""

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total = console, total
        self.done = self.failed = 0
        self.seconds: list[float] = []  # that each ended run took
        self.entry: SweepRun | None = None  # the one that is running
        self.started = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def start(self, entry: SweepRun) -> None:
        self.entry, self.started = entry, time.perf_counter()

    def record(self, record: Record) -> None: ...

    def end(self, outcome: SweepOutcome) -> None:
        self.entry = None
        if outcome.summary is None:
            self.failed += 1
        else:
            self.done += 1
            self.seconds.append(outcome.summary["cost"]["seconds"])

    @property
    def state(self) -> str:
        """Describe the progress: ``3/20 done, 1 failed, about 2 min left``."""
        parts = [f"{self.done}/{self.total} done"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        left = self.left()
        if left is not None:
            parts.append(f"about {format_duration(left)} left")
        return ", ".join(parts)

    def left(self) -> float | None:
        """Estimate the seconds left from the runs so far; None before the first has ended, and at the end."""
        count = self.total - self.done - self.failed
        if not self.seconds or not count:
            return None
        each = sum(self.seconds) / len(self.seconds)
        passed = time.perf_counter() - self.started if self.entry is not None else 0.0
        return each * (count - 1) + max(each - passed, 0.0)

    def result(self, outcome: SweepOutcome) -> str:
        """Describe in one line a run that has ended."""
        if outcome.summary is None:
            return f"{outcome.entry.name}  failed: {brief(outcome.error)}"
        summary = outcome.summary
        return f"{outcome.entry.name}  accuracy {percent(summary['accuracy'])} %  {summary['cost']['seconds']:.0f} s"


class SweepLines(SweepQuiet):
    """A display for log files: a line when a run starts, at each quarter, and when it ends."""

    def say(self, text: str) -> None:
        self.console.print(f"{text}  ({self.state})", soft_wrap=True, highlight=False, markup=False)

    def start(self, entry: SweepRun) -> None:
        super().start(entry)
        self.say(f"{entry.name}  starts")

    def record(self, record: Record) -> None:
        assert self.entry is not None
        rounds = self.entry.experiment.rounds
        if record.round < rounds and record.round * QUARTERS // rounds > (record.round - 1) * QUARTERS // rounds:
            self.say(f"{self.entry.name}  round {record.round}/{rounds}  accuracy {percent(record.accuracy)} %")

    def end(self, outcome: SweepOutcome) -> None:
        super().end(outcome)
        self.say(self.result(outcome))


class SweepLive(SweepQuiet):
    """A display for terminals: a line for every run that has ended, above bars for the sweep and the run."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(console, total)
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self.all = self.progress.add_task("runs", total=total, note="")
        self.each = self.progress.add_task("", total=1, note="", visible=False)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.update(self.each, visible=False)
        self.progress.stop()

    def start(self, entry: SweepRun) -> None:
        super().start(entry)
        self.progress.reset(
            self.each, description=f"  {entry.name}", total=entry.experiment.rounds, visible=True, note="rounds"
        )

    def record(self, record: Record) -> None:
        note = f"rounds  accuracy {percent(record.accuracy)} %"
        self.progress.update(self.each, completed=record.round, note=note)
        self.progress.update(self.all, note=self.state)

    def end(self, outcome: SweepOutcome) -> None:
        super().end(outcome)
        self.progress.console.print(self.result(outcome), soft_wrap=True, highlight=False, markup=False)
        self.progress.update(self.all, completed=self.done + self.failed, note=self.state)
        self.progress.update(self.each, visible=False)


def board(console: Console, total: int, quiet: bool) -> SweepQuiet:
    """Make the display that fits the console: live bars, lines, or none."""
    if quiet:
        return SweepQuiet(console, total)
    return (SweepLive if console.is_terminal else SweepLines)(console, total)
