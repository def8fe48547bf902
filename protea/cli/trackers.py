"""Other programs that keep a run's numbers: TensorBoard and MLflow, both in local files.

A tracker is fed the records as they come, and is made with the first one: by then the run's directory is there.
Nothing of these programs is imported unless it is asked for.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from protea.config.experiment import Experiment, method_label
from protea.config.toml import to_table
from protea.core.errors import ConfigError, nearest
from protea.federation.record import Record
from protea.runs.directory import RunDirectory
from protea.runs.settings_diff import flat


class Tracker(Protocol):
    """Made with an experiment and its run directory."""

    def record(self, round: int, numbers: Mapping[str, float]) -> None:
        """One round, by names such as ``test/head/weighted``."""
        ...

    def close(self, accuracy: float | None, ended: bool) -> None:
        """The headline accuracy, if there is one, and whether the run came to its end."""
        ...


class TensorBoard:
    """Event files in ``DIRECTORY/tensorboard``; ``tensorboard --logdir runs`` shows all runs."""

    def __init__(self, experiment: Experiment, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.rounds = experiment.rounds
        self.writer: Any = SummaryWriter(str(directory / "tensorboard"))
        settings = [f"| {name} | {value} |" for name, value in flat(to_table(experiment)).items()]
        self.writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *settings]))

    def record(self, round: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, round)
        self.writer.flush()  # whoever watches sees the round at once

    def close(self, accuracy: float | None, ended: bool) -> None:
        if accuracy is not None:
            self.writer.add_scalar("headline", accuracy, self.rounds)
        self.writer.close()


class MLflow:
    """A run in ``mlflow.db`` beside the run directory; ``mlflow ui --backend-store-uri sqlite:///runs/mlflow.db``."""

    def __init__(self, experiment: Experiment, directory: Path) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it reports every table that it makes
        self.metric, self.rounds = Metric, experiment.rounds
        home = directory.absolute().parent
        self.client: Any = MlflowClient(tracking_uri=f"sqlite:///{home / 'mlflow.db'}")
        found = self.client.get_experiment_by_name("protea")
        group = found.experiment_id if found else self.client.create_experiment("protea", (home / "mlflow").as_uri())
        run = self.client.create_run(group, run_name=directory.name, tags={"method": method_label(experiment.method)})
        self.run: str = run.info.run_id
        settings = [Param(name, str(value)) for name, value in flat(to_table(experiment)).items()]
        for start in range(0, len(settings), 100):  # its limit for one call
            self.client.log_batch(self.run, params=settings[start : start + 100])

    def record(self, round: int, numbers: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        allowed = {re.sub(r"[^\w\-./ ]", "_", name): value for name, value in numbers.items()}
        self.client.log_batch(self.run, [self.metric(name, value, now, round) for name, value in allowed.items()])

    def close(self, accuracy: float | None, ended: bool) -> None:
        if accuracy is not None:
            self.client.log_metric(self.run, "headline", accuracy, step=self.rounds)
        self.client.set_terminated(self.run, "FINISHED" if ended else "FAILED")


TRACKERS: dict[str, Callable[[Experiment, Path], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def check(names: Sequence[str]) -> None:
    """Refuse a tracker that there is not, or that is not installed."""
    os.environ.setdefault(
        "MLFLOW_DISABLE_TELEMETRY", "true"
    )  # read when it is imported; nothing is to leave this machine
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"--log {name}: there is no such tracker.  {nearest(name, TRACKERS)}")
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"--log {name} needs the package {error.name}.  Install it: pip install -e '.[{name}]'"
            ) from error


@contextmanager
def tracked(
    names: Sequence[str], experiment: Experiment, directory: Path, also: Callable[[Record], None]
) -> Iterator[Callable[[Record], None]]:
    """A function that gives a record to ``also`` and to the trackers."""
    live: list[Tracker] = []

    def record(record: Record) -> None:
        also(record)
        if not live:
            live.extend(TRACKERS[name](experiment, directory) for name in dict.fromkeys(names))
        line = record.lines()[0]
        numbers = {name: float(v) for name, v in flat(line, "/").items() if isinstance(v, int | float)}
        for tracker in live:
            tracker.record(record.round, {name: value for name, value in numbers.items() if name != "round"})

    try:
        yield record
    finally:
        summary = RunDirectory(directory).summary() if live else None
        for tracker in live:
            tracker.close(summary["accuracy"] if summary else None, summary is not None)
