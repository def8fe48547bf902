"""From an experiment to its records: put the parts together, run, keep what happened."""

from __future__ import annotations

import hashlib
import math
import platform
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

from protea import health, plugins
from protea.config import Experiment, check, dump, load, method_label, to_table
from protea.data.federate import federate
from protea.data.federated import Federated
from protea.data.partition_file import Given
from protea.data.views import refuse_unread
from protea.devices import device
from protea.engines import Engine, Watch, ignore
from protea.errors import CheckpointError, ConfigError
from protea.evaluation import Evaluation, Protocol
from protea.evaluation.protocols import Reported, headline, report
from protea.federation import Federation
from protea.layout import settle
from protea.payload import halved, to_bytes
from protea.recipe import Recipe
from protea.record import Record
from protea.rng import Streams
from protea.runs import checkpoint
from protea.runs.alike import differing, flat, shown, under
from protea.runs.store import Run, fresh, named
from protea.units import in_bytes
from protea.worker import Worker


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


def prepare(experiment: Experiment, given: Given | None = None) -> Recipe:
    """Load and share out the data, and try every model once: what cannot work fails here.

    ``given`` is the partition that a run had before it was interrupted.
    """
    check(experiment)
    data, place = experiment.data, device(experiment.device)
    seed = experiment.seed if data.seed is None else data.seed
    federated = federate(
        data.source.load(),
        experiment.clients,
        given or data.partition,
        split=data.split,
        pool=data.pool,
        samples=data.samples,
        public=data.public,
        seed=seed,
    )
    if experiment.method.needs.public_data and not len(federated.public):
        raise ConfigError(f"{method_label(experiment.method)} needs public data, and the partition file has none.")
    if (data.augment.crop or data.augment.flip) and len(federated.dataset.shape) != 3:
        raise ConfigError(f"data.augment is for images; samples here have the shape {federated.dataset.shape}.")
    recipe = Recipe(
        federated,
        models=experiment.models,
        training=experiment.training,
        augment=data.augment if data.augment.crop or data.augment.flip else None,
        rounds=experiment.rounds,
        device=place,
        gives_public=experiment.method.needs.public_data,
        gives_test=experiment.evaluation.shared != "never",
    )
    layout = settle(recipe.make, experiment.training.batch)
    recipe = replace(recipe, models=replace(recipe.models, channels_last=layout))
    with Streams(experiment.seed).default("try"):
        for index, member in enumerate(recipe.members):
            if member not in recipe.members[:index]:
                refuse_unread(federated.dataset, recipe.make(member).view)
        if experiment.models.server is not None:
            refuse_unread(federated.dataset, recipe.make("server").view)
    return recipe


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
    Run.refuse_taken(Path(out))
    recipe = _begin(experiment)
    experiment = replace(experiment, models=recipe.models)  # with what was settled by timing
    directory = Run.create(Path(out), dump(experiment), environment(recipe.device, experiment.engine.threads))
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
    directory = Run.open(Path(path))
    with directory.held():
        if directory.ended():
            raise ConfigError(f"{path} has ended: there is nothing to continue.  Its numbers are in summary.json.")
        directory.check()
        start = checkpoint.newest(directory.path / "checkpoints")
        if experiment is None:
            experiment = load(directory.path / "config.toml")
        else:
            refuse_other(experiment, directory.path / "config.toml")
            stored = tomllib.loads((directory.path / "config.toml").read_text("utf-8"))["models"]["channels_last"]
            experiment = replace(experiment, models=replace(experiment.models, channels_last=tuple(stored)))
        given = Given(str(directory.path / "partition.json")) if start else None
        return _run(experiment, _begin(experiment, given), directory, watch, on_round, start)


def ended(path: Path | str, experiment: Experiment) -> Result | None:
    """What a run of this experiment gave, if it has ended."""
    directory = Run.open(Path(path))
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
    if experiment.models.channels_last == "auto":
        free.append("models.channels_last")
    if other := [name for name in differing([given, stored]) if not under(name, free)]:
        found = ", ".join(f"{name} is {shown(given.get(name))}, {shown(stored.get(name))} there" for name in other[:3])
        raise ConfigError(
            f"This is not the experiment of {config.parent}: {found}.  Give the same one, or run it anew."
        )


def _begin(experiment: Experiment, given: Given | None = None) -> Recipe:
    """:func:`prepare`, while an engine whose start takes long gets ready."""
    warm: Callable[[], None] | None = getattr(plugins.find("engines", experiment.engine.name), "warm", None)
    if warm is not None:
        warm()
    return prepare(experiment, given)


def _run(
    experiment: Experiment,
    recipe: Recipe,
    directory: Run | None,
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
                    with named(directory.path / "partition.json"):
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


def _keep(experiment: Experiment, record: Record, loop: Federation, directory: Run) -> None:
    """Write what happened in the round; the checkpoint last, since it vouches for the rest."""
    directory.append(record.lines())
    if experiment.evaluation.snapshot_due(record.round, experiment.rounds):
        directory.keep_snapshot(record.round, to_bytes(halved(loop.look())))
    if record.round % experiment.checkpoint.every == 0 or record.round == experiment.rounds:
        checkpoint.save(directory.path / "checkpoints", loop, experiment.checkpoint.keep)


def open_engine(experiment: Experiment, recipe: Recipe) -> Engine:
    settings = experiment.engine
    local = experiment.evaluation.local_prototypes
    worker = Worker(
        experiment.method,
        recipe,
        experiment.seed,
        settings.threads,
        local,
        careful=experiment.failures == "skip",
        memory=None if settings.memory is None else in_bytes(settings.memory),
    )
    engine: Engine = plugins.find("engines", settings.name)(worker, settings)
    return engine


def federation(experiment: Experiment, recipe: Recipe, engine: Engine, watch: Watch = ignore) -> Federation:
    view = recipe.server_view(experiment.method.needs.server_model)
    return Federation(
        method=experiment.method,
        engine=engine,
        server=recipe.server(experiment.seed, view),
        clients=experiment.clients,
        rounds=experiment.rounds,
        fraction=experiment.fraction,
        evaluation=experiment.evaluation,
        failures=experiment.failures,
        min_replies=experiment.min_replies,
        faults=experiment.faults,
        limits=experiment.limits,
        threads=experiment.engine.threads,
        test=recipe.shared_test(view),
        watch=watch,
    )


def summarise(experiment: Experiment, records: list[Record], data: Federated) -> dict[str, Any]:
    """The headline numbers of a run, beside the majority predictor's."""
    settings = experiment.evaluation
    majority: float | None = data.majority()
    if math.isnan(data.majority()) or (settings.clients == "participants" and experiment.fraction < 1):
        majority = None  # accuracy is of some clients only
    return summary(experiment.method, settings, records, data.dataset.names, majority)


def summary(
    method: Any, settings: Evaluation, records: list[Record], names: Sequence[str], majority: float | None = None
) -> dict[str, Any]:
    """The headline numbers and how they were made; ``majority`` is what answering the commonest class would give."""
    main = headline(records, settings.protocol)
    protocols = {name: found for name in get_args(Protocol) if (found := report(records, name)) is not None}
    last = next((record for record in reversed(records) if record.shared or record.server), None)
    return {
        "method": method_label(method),
        "rounds": records[-1].round if records else 0,
        "accuracy": main.test["method"].weighted if main else None,
        "made": made(main, settings),
        "test": {rule: asdict(score) for rule, score in main.test.items()} if main else {},
        "protocols": {name: asdict(found) for name, found in protocols.items()},
        "shared": {rule: asdict(score) for rule, score in last.shared.items()} if last else {},
        "server": last.server if last else {},
        "shared_round": last.round if last else None,  # which both are of
        "majority": majority,
        "bytes_up": records[-1].total_up if records else 0,
        "bytes_down": records[-1].total_down if records else 0,
        "failures": sum(len(record.failures) for record in records),
        "refused": dict(Counter(client for record in records for client in record.refused)),  # times, by client
        "warnings": health.warnings(records, majority, names),
        "cost": {
            "seconds": sum(sum(record.cost.seconds.values()) for record in records),
            "memory": max((record.cost.memory for record in records), default=0),
        },
    }


def made(main: Reported | None, settings: Evaluation) -> dict[str, Any]:
    """How the headline accuracy was made: two numbers compare only if all but the rounds are the same."""
    return {
        "rule": "method",
        "scope": "clients' own test samples",
        "weighting": "every sample once",
        "protocol": main.protocol if main else settings.protocol,
        "rounds": main.rounds if main else [],
        "clients": settings.clients,
        "when": settings.when,
        "every": settings.every,
    }


def run_path(parent: Path, experiment: Experiment) -> Path:
    """``runs/digits-fedproto-s1-4f2a``: what was run, and a mark of all its settings."""
    text = dump(experiment)
    source = plugins.name_of("sources", type(experiment.data.source)).rpartition(":")[2].lower()
    mark = hashlib.blake2b(text.encode(), digest_size=2).hexdigest()
    return fresh(parent, f"{source}-{method_label(experiment.method)}-s{experiment.seed}-{mark}")


def environment(place: str, threads: int) -> dict[str, Any]:
    packages = ("protea", "torch", "numpy", "scikit-learn", "safetensors")
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": platform.machine(),
        "device": place,
        "threads": threads,
        "versions": {name: version(name) for name in packages},
        "commit": commit(),
    }


def commit() -> str | None:
    """Of the working tree that this code is in, if it is in one."""
    try:
        ask = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        found = subprocess.run(ask, capture_output=True, text=True, timeout=5, check=False)
    except OSError:
        return None
    return found.stdout.strip() or None
