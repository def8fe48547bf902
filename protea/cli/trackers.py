"""Trackers: programs that record a run's numbers.  TensorBoard, MLflow and Weights & Biases keep them in local files.

Their packages are imported only when asked for.  An own tracker is a class like these, named in ``--log``
as ``package.module:name`` or by an entry point of the group ``protea.trackers``.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from protea.config import registry
from protea.config.experiment import method_label
from protea.config.toml import to_table
from protea.core.errors import ConfigError, PluginError, nearest
from protea.core.shell import install_hint
from protea.federation.record import Record
from protea.runs.observers import Observer
from protea.runs.run import Run
from protea.runs.settings_diff import flat


class Tracker(Observer):
    """An observer that is given the numbers of each round under names such as ``test/head/weighted``."""

    package: ClassVar[str] = ""  # the package it needs, also the name of the extra that installs it

    def open(self, run: Run, directory: Path) -> None:
        """Prepare for the first round; the run's directory exists."""

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Record the numbers of one round."""
        raise NotImplementedError

    def close(self, run: Run, accuracy: float | None) -> None:
        """Finish; ``accuracy`` is the headline number of a run that ended, None for one that was interrupted."""

    def started(self, run: Run) -> None:
        if run.directory is None:
            raise ConfigError(f"{type(self).__name__} needs a run with a directory.  Give the run a path.")
        self.open(run, run.directory.path)

    def round(self, record: Record) -> None:
        line = record.lines()[0]
        numbers = {name: float(v) for name, v in flat(line, "/").items() if isinstance(v, int | float)}
        self.log(record.round, {name: value for name, value in numbers.items() if name != "round"})

    def ended(self, run: Run) -> None:
        self.close(run, run.result.summary["accuracy"] if run.ended else None)


class TensorBoard(Tracker):
    """A tracker that writes event files to ``DIRECTORY/tensorboard``; ``tensorboard --logdir runs`` shows all runs."""

    package = "tensorboard"

    def open(self, run: Run, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(directory / "tensorboard"))
        settings = [f"| {name} | {value} |" for name, value in flat(to_table(run.experiment)).items()]
        self.writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *settings]))

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, round)
        self.writer.flush()  # so that TensorBoard shows the round at once

    def close(self, run: Run, accuracy: float | None) -> None:
        if accuracy is not None:
            self.writer.add_scalar("headline", accuracy, run.setup.rounds)
        self.writer.close()


class MLflow(Tracker):
    """A tracker that adds a run to ``mlflow.db`` beside the run directory.

    ``mlflow ui --backend-store-uri sqlite:///runs/mlflow.db`` shows all runs.
    """

    package = "mlflow"

    def open(self, run: Run, directory: Path) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # else it reports every database table it makes
        self.metric, beside = Metric, directory.absolute().parent
        self.client: Any = MlflowClient(tracking_uri=f"sqlite:///{beside / 'mlflow.db'}")
        found = self.client.get_experiment_by_name("protea")
        group = found.experiment_id if found else self.client.create_experiment("protea", (beside / "mlflow").as_uri())
        made = self.client.create_run(group, run_name=directory.name, tags={"method": method_label(run.setup.method)})
        self.run: str = made.info.run_id
        settings = [Param(name, str(value)) for name, value in flat(to_table(run.experiment)).items()]
        for start in range(0, len(settings), 100):  # MLflow takes at most 100 in one call
            self.client.log_batch(self.run, params=settings[start : start + 100])

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        allowed = {re.sub(r"[^\w\-./ ]", "_", name): value for name, value in numbers.items()}
        self.client.log_batch(self.run, [self.metric(name, value, now, round) for name, value in allowed.items()])

    def close(self, run: Run, accuracy: float | None) -> None:
        if accuracy is not None:
            self.client.log_metric(self.run, "headline", accuracy, step=run.setup.rounds)
        self.client.set_terminated(self.run, "FINISHED" if run.ended else "FAILED")


class WeightsAndBiases(Tracker):
    """A tracker that writes an offline run to ``DIRECTORY/wandb``; ``wandb sync`` sends it, if that is wanted.

    Nothing is sent by itself, but where the environment variable ``WANDB_MODE`` says ``online``.
    """

    package = "wandb"

    def open(self, run: Run, directory: Path) -> None:
        import wandb

        # Neither the screen nor the machine and its user are of interest.
        quiet = {"silent": True, "console": "off", "save_code": False, "disable_git": True}
        quiet |= {"x_disable_meta": True, "x_disable_stats": True}
        self.run: Any = wandb.init(
            project="protea",
            name=directory.name,
            group=method_label(run.setup.method),
            dir=str(directory.absolute()),
            mode="online" if os.environ.get("WANDB_MODE") == "online" else "offline",
            config=flat(to_table(run.experiment)),
            settings=wandb.Settings(**quiet),
            reinit="create_new",
        )

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        self.run.log(dict(numbers), step=round)

    def close(self, run: Run, accuracy: float | None) -> None:
        if accuracy is not None:
            self.run.summary["headline"] = accuracy
        self.run.finish(exit_code=0 if run.ended else 1)


def make_trackers(names: Sequence[str]) -> list[Observer]:
    """Make the trackers of these names; refuse those that do not exist or whose package is not installed."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read at import; nothing may leave this machine
    found: list[Observer] = []
    for name in dict.fromkeys(names):
        try:
            kind = registry.find("trackers", name)
        except PluginError as error:
            if ":" in name:
                raise PluginError(f"--log {name}: {error}") from error
            hint = nearest(name, registry.table("trackers"))
            raise ConfigError(f"--log {name}: there is no such tracker.  {hint}") from error
        if not isinstance(kind, type) or not issubclass(kind, Observer):
            raise ConfigError(f"--log {name}: {name} is not derived from protea.Observer, as all trackers are.")
        if issubclass(kind, Tracker) and kind.package:
            try:
                import_module(kind.package)
            except ModuleNotFoundError as error:
                raise ConfigError(
                    f"--log {name} needs the package {error.name}.  Install it: {install_hint(kind.package)}"
                ) from error
        found.append(kind())
    return found
