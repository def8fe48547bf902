"""From an experiment to its records: put the parts together, run, keep what happened."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from protea.clients.factory import ClientFactory
from protea.config.experiment import Experiment, experiment_to_toml, load_experiment
from protea.config.toml import to_table
from protea.core.errors import CheckpointError, ConfigError
from protea.core.files import naming_file
from protea.core.payload import to_bytes, to_half
from protea.data.partition.file import PartitionFile
from protea.federation.jobs import Watch, ignore
from protea.federation.loop import Federation
from protea.federation.record import Record
from protea.runs import checkpoint
from protea.runs.directory import RunDirectory
from protea.runs.environment import environment
from protea.runs.settings_diff import differing, flat, shown, under
from protea.runs.setup import _begin, federation, open_engine
from protea.runs.summary import summarise


@dataclass(frozen=True)
class Result:
    """What a run gave.  ``directory`` is where it left its traces, if it was told to."""

    experiment: Experiment
    records: list[Record]
    summary: dict[str, Any]
    directory: Path | None

    @property
    def accuracy(self) -> float:
        """By the run's protocol and the method's own rule, every test sample counting once; nan if there is none."""
        accuracy = self.summary["accuracy"]
        return math.nan if accuracy is None else float(accuracy)


def rounds(experiment: Experiment, watch: Watch = ignore) -> Iterator[Record]:
    """Run the experiment and yield one record per round; nothing is written."""
    recipe = _begin(experiment)
    with closing(open_engine(experiment, recipe)) as engine:
        yield from federation(experiment, recipe, engine, watch).run()


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    *,
    watch: Watch = ignore,
    on_round: Callable[[Record], None] = lambda record: None,
) -> Result:
    """Run the experiment to its end; with ``out``, in that new directory."""
    if out is None:
        return _run(experiment, _begin(experiment), None, watch, on_round)
    RunDirectory.refuse_taken(Path(out))
    recipe = _begin(experiment)
    experiment = replace(experiment, models=recipe.models)  # with what was settled by timing
    directory = RunDirectory.create(
        Path(out), experiment_to_toml(experiment), environment(recipe.device, experiment.engine.threads)
    )
    with directory.held():
        return _run(experiment, recipe, directory, watch, on_round)


def resume(
    path: Path | str,
    experiment: Experiment | None = None,
    *,
    watch: Watch = ignore,
    on_round: Callable[[Record], None] = lambda record: None,
) -> Result:
    """Continue a run from its newest complete checkpoint, to the same end as if it had never stopped.

    A script whose method or data no file can name gives its experiment again.
    """
    directory = RunDirectory.open(Path(path))
    with directory.held():
        if directory.ended():
            raise ConfigError(f"{path} has ended: there is nothing to continue.  Its numbers are in summary.json.")
        directory.check()
        start = checkpoint.newest(directory.path / "checkpoints")
        if experiment is None:
            experiment = load_experiment(directory.path / "config.toml")
        else:
            refuse_other(experiment, directory.path / "config.toml")
            stored = tomllib.loads((directory.path / "config.toml").read_text("utf-8"))["models"]["channels_last"]
            experiment = replace(experiment, models=replace(experiment.models, channels_last=tuple(stored)))
        given = PartitionFile(str(directory.path / "partition.json")) if start else None
        return _run(experiment, _begin(experiment, given), directory, watch, on_round, start)


def ended(path: Path | str, experiment: Experiment) -> Result | None:
    """What a run of this experiment gave, if it has ended."""
    directory = RunDirectory.open(Path(path))
    if not directory.ended():
        return None
    directory.check()
    refuse_other(experiment, directory.path / "config.toml")
    try:
        records = Record.read(directory.metrics())
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise CheckpointError(f"{directory.metrics_path} cannot be read: {error!r}.") from error
    return Result(experiment, records, directory.summary() or {}, directory.path)


def refuse_other(experiment: Experiment, config: Path) -> None:
    """Raise unless a run's config has these settings.  Where it goes on, and how often it is saved, may differ."""
    given, stored = (flat(table) for table in (to_table(experiment), tomllib.loads(config.read_text("utf-8"))))
    engine = ("name", "workers", "limit", "retries", "memory", "address", "gpus")
    free = ["device", "checkpoint", *(f"engine.{setting}" for setting in engine)]
    if isinstance(experiment.models.channels_last, str):
        free.append("models.channels_last")
    if other := [name for name in differing([given, stored]) if not under(name, free)]:
        found = ", ".join(f"{name} is {shown(given.get(name))}, {shown(stored.get(name))} there" for name in other[:3])
        raise ConfigError(
            f"This is not the experiment of {config.parent}: {found}.  Give the same one, or run it anew."
        )


def _run(
    experiment: Experiment,
    recipe: ClientFactory,
    directory: RunDirectory | None,
    watch: Watch,
    on_round: Callable[[Record], None],
    start: Path | None = None,  # a checkpoint
) -> Result:
    records = []
    with closing(open_engine(experiment, recipe)) as engine:
        loop = federation(experiment, recipe, engine, watch)
        if directory is not None:
            if start is not None:
                checkpoint.load(start, loop)
            with directory.writing():
                checkpoint.clear(directory.path / "checkpoints", experiment.checkpoint.keep)
                directory.cut(checkpoint.metrics_size(start) if start else 0, loop.server.round)
                if start is None:
                    with naming_file(directory.path / "partition.json"):
                        recipe.data.save_partition(directory.path / "partition.json")
                    directory.append([recipe.describe()])
            records = Record.read(directory.metrics())
            loop.recall(records)
        for record in loop.run():
            records.append(record)
            if directory is not None:
                with directory.writing():
                    _keep(experiment, record, loop, directory)
            on_round(record)
    numbers = summarise(experiment, records, recipe.data)
    if directory is not None:
        with directory.writing():
            directory.finish(numbers)
    return Result(experiment, records, numbers, directory.path if directory else None)


def _keep(experiment: Experiment, record: Record, loop: Federation, directory: RunDirectory) -> None:
    """Write what happened in the round; the checkpoint last, since it vouches for the rest."""
    directory.append(record.lines())
    if experiment.evaluation.snapshot_due(record.round, experiment.rounds):
        directory.keep_snapshot(record.round, to_bytes(to_half(loop.look())))
    if record.round % experiment.checkpoint.every == 0 or record.round == experiment.rounds:
        checkpoint.save(directory.path / "checkpoints", loop, experiment.checkpoint.keep)
