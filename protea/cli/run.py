"""``protea run`` and ``protea resume``: an experiment from its file to a run directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from protea.cli import display, trackers
from protea.cli.report import write_report
from protea.config.experiment import Experiment, experiment_from_table, load_experiment
from protea.config.toml import to_table
from protea.config.words import ALONE
from protea.core.errors import ClientError, ConfigError
from protea.core.shell import quoted
from protea.methods.local import Local
from protea.runs import checkpoint
from protea.runs import run as runs
from protea.runs.beside import keep_gains
from protea.runs.directory import RunDirectory
from protea.runs.environment import run_path
from protea.runs.observers import Observer
from protea.runs.result import Result


def run(
    config_file: Path,
    changes: list[str] | None = None,
    out: Path | None = None,
    beside: list[str] | None = None,
    again: bool = False,
    log: list[str] | None = None,
    with_report: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Run an experiment, and keep its records in a run directory."""
    logs = trackers.make_trackers(log or [])
    if again and out is None:
        raise ConfigError(
            f"--resume does not say which run.  Name its directory: "
            f"protea run {quoted(config_file)} --out runs/NAME --resume"
        )
    first = load_experiment(config_file, changes or [])
    others = [(name, with_method(first, name)) for name in beside or []]
    refuse_twice([each.label for _, each in others])
    planned = [(each, None if out is None else path_beside(out, name, each)) for name, each in [("", first), *others]]
    for _, path in planned:
        if path is not None and not again:
            RunDirectory.refuse_taken(path)  # also that of the last one, before the first one's hours
    console, found = Console(stderr=as_json, quiet=quiet), []
    for each, path in planned:
        path = path or run_path(Path("runs"), each)
        with interruptible(path), screen(console, each, quiet, as_json) as show:
            found.append(start(each, path, again, console, [show, *logs]))
    found = keep_gains(found)
    finish(console, found, as_json)
    if with_report:
        write_report(console, [result.directory for result in found if result.directory])


def resume(directory: Path, log: list[str] | None, quiet: bool, as_json: bool) -> None:
    """Continue a run that was interrupted, from its newest checkpoint."""
    logs = trackers.make_trackers(log or [])
    console = Console(stderr=as_json, quiet=quiet)
    stored = RunDirectory.open(directory)
    if not stored.ended():
        stored.check()
    each = load_experiment(directory / "config.toml")
    with interruptible(directory), screen(console, each, quiet, as_json) as show:
        result = runs.resume(directory, observers=[show, *logs])
    finish(console, [result], as_json)


def refuse_twice(labels: list[str]) -> None:
    """Raise if a method is to run beside the experiment more than once."""
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(
                f"--beside names {label} {labels.count(label)} times, and equal runs have equal numbers.  Name it once."
            )


def path_beside(out: Path, name: str, each: Experiment) -> Path:
    """Return the directory of a run beside the one in ``out``; ``out`` itself for the first, which has no name."""
    return out.with_name(f"{out.name}-{ALONE if name == ALONE else each.label.replace(' ', '-')}") if name else out


def with_method(base: Experiment, name: str) -> Experiment:
    """Return the same experiment with another method, its settings at their defaults.

    ``alone`` is the method that the experiment has, with each client in a federation of its own.
    """
    if name == ALONE:
        if base.alone:
            raise ConfigError(f"--beside {name}: the experiment itself has alone = true.  Leave out one of the two.")
        return replace(base, alone=True)
    table = {**to_table(base), "method": name}
    other = experiment_from_table(table, f"--beside {name}").method
    return replace(base, method=other, alone=False, protect=base.protect and not isinstance(other, Local))


def start(each: Experiment, path: Path, again: bool, console: Console, observers: list[Observer]) -> Result:
    """Run an experiment in a new directory; with ``again``, resume the run there, or say that it has ended."""
    if not again:
        RunDirectory.refuse_taken(path)
    run = runs.Run(each, path, observers=observers)
    if not run.ended:
        return run.finish()
    console.print(f"{path} has ended: there is nothing to continue.", soft_wrap=True, highlight=False)
    return run.result


def screen(console: Console, each: Experiment, quiet: bool, as_json: bool) -> display.Quiet:
    """Make the display that fits the options and the console: live bars, lines, JSON, or none."""
    kind: type[display.Quiet] = display.Live if console.is_terminal else display.Lines
    if quiet or as_json:
        kind = display.Json if as_json else display.Quiet
    return kind(console, each.label, each)


@contextmanager
def interruptible(directory: Path) -> Iterator[None]:
    """Say how to resume the run after Ctrl-C or when a client has failed."""
    try:
        yield
    except ClientError as error:
        raise ClientError(
            f"{error}\n  What was done so far is in {directory}; protea resume {quoted(directory)}"
        ) from error
    except KeyboardInterrupt:
        if (directory / "config.toml").is_file():
            kept = checkpoint.complete(directory / "checkpoints")
            where = f"after round {int(kept[-1].name)}" if kept else "from the beginning"
            Console(stderr=True).print(
                f"Stopped.  Go on {where}: protea resume {quoted(directory)}", soft_wrap=True, highlight=False
            )
        raise SystemExit(130) from None


def finish(console: Console, found: list[Result], as_json: bool) -> None:
    """Print the results of the runs, and where their records are."""
    if as_json:
        for result in found:
            sys.stdout.write(
                json.dumps({"kind": "summary", "directory": str(result.directory), **result.summary}) + "\n"
            )
        return
    display.results(console, found)
    display.gains(console, found)
    for result in found:
        console.print(f"Records of {result.summary['method']}: {result.directory}", soft_wrap=True, highlight=False)
