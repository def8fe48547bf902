"""A run: an experiment from its first round to what was learned, in memory or in a directory."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from protea.clients.state_files import carry_clients, save_server
from protea.config.experiment import Experiment, load_experiment, method_label
from protea.config.units import percent
from protea.core.errors import CheckpointError, ConfigError, ProteaError
from protea.core.prototypes import Prototypes
from protea.core.scratch import ScratchFolder
from protea.core.shell import install_hint
from protea.federation.loop import Federation
from protea.federation.record import Record
from protea.runs import checkpoint
from protea.runs.directory import RunDirectory
from protea.runs.driver import Driver
from protea.runs.observers import STOP, Callback, Observer, Observers
from protea.runs.progress import Progress, in_notebook
from protea.runs.result import Result
from protea.runs.setup import RunSetup
from protea.runs.simulation import Simulation
from protea.runs.tables import client_rows, html_table, round_rows
from protea.runs.trained import Inputs, TrainedClient, TrainedState

if TYPE_CHECKING:
    import pandas


class Run:
    """A run of an experiment: iterate over it, and every step is a round.

    ``path`` is its directory: a new one, or that of the same experiment, which then goes on from its newest checkpoint.
    Without a path nothing is written.  Without an experiment, the directory's own is taken (:func:`protea.load`).
    ``progress`` shows how far it is: by default in a notebook only.  Without a path, what was learned is kept in a
    temporary folder until the object is gone; ``keep_models=False`` spares that.

    >>> from protea import Data, Experiment, Models, Run
    >>> experiment = Experiment(rounds=2, clients=2, data=Data(samples=200), models=Models("tiny_mlp", dim=16))
    >>> run = Run(experiment)
    >>> for record in run:
    ...     assert record.accuracy is not None
    >>> run.client(1).model.name
    'tiny_mlp'
    """

    def __init__(
        self,
        experiment: Experiment | RunSetup | None = None,
        path: Path | str | None = None,
        *,
        observers: Sequence[Observer | Callback] = (),
        progress: bool | None = None,
        keep_models: bool = True,
    ) -> None:
        self.directory = None if path is None else RunDirectory(Path(path))
        self.keep_models = keep_models
        shown = in_notebook() if progress is None else progress
        self.observers = Observers([*observers, *([Progress()] if shown else [])])
        self._given = Simulation(experiment) if isinstance(experiment, Experiment) else experiment
        self._driver: Driver | None = None  # while the run goes on here
        self._records: list[Record] = []  # of a run without a directory, once it is closed
        self._kept: TrainedState | None = None  # what was learned, if it was asked for or nothing else keeps it
        self._summary: dict[str, Any] | None = None
        self._clear: weakref.finalize[..., Run] | None = None  # removes the folder of what is kept
        self._over = ""  # why a run without a directory cannot go on
        if experiment is not None and not isinstance(experiment, Experiment | RunSetup):
            raise ConfigError(
                f"A run is of an Experiment; found {experiment!r}.  From a file: protea.Run(load_experiment(path)), "
                f"with load_experiment of protea.config.experiment."
            )
        if self.directory is not None:
            if self._given is not None:
                self.directory.go_on = self._given.go_on(self.directory.path)
            if experiment is None or self.directory.begun:
                RunDirectory.open(self.directory.path)
            else:
                RunDirectory.refuse_taken(self.directory.path)
            if self.directory.begun and self._given is not None:
                self.directory.check()
                self._given.refuse_other(self.directory)

    # Going on, round by round

    def __iter__(self) -> Iterator[Record]:
        """Play the rounds that are left, one for each step; leave the loop and come back any time."""
        while (record := self.step()) is not None:
            yield record

    def step(self) -> Record | None:
        """Play one more round; ``None`` if there is none left."""
        if self.ended:
            return None
        try:
            driver = self._driving()
            record = None if driver.done else driver.play_round()  # else only the end is missing
            stopped = record is not None and self.observers.round(record) is STOP
            if stopped:
                driver.save()
            if stopped or driver.done:
                self._end(driver)
            return record
        except BaseException as error:
            self._over = "This run has failed"
            try:
                self.close()
            except Exception as also:  # such as of an observer: what went wrong first is what matters
                error.add_note(f"When the run was closed: {also!r}")
            raise

    def _driving(self) -> Driver:
        """What plays the rounds: as it was left, or opened now."""
        if self._driver is None:
            if self._over and self.directory is None:
                raise ConfigError(
                    f"{self._over}, and keeps nothing on disk to go on from.  Make a new one; with a path it can go on."
                )
            self._driver = Driver(self.setup, self.directory, self.observers.replied)
            self.observers.started(self)
        return self._driver

    def _end(self, driver: Driver) -> None:
        """Write the summary, or without a directory keep what was learned, and close."""
        summary = driver.end()
        self._keep_models(driver)
        self._summary = summary
        self.close()

    def _keep_models(self, driver: Driver) -> None:
        """Keep what was learned, where no directory does."""
        if self.directory is None and self.keep_models:
            self._kept = self._state_of(driver.loop)

    def finish(self) -> Result:
        """Play all rounds that are left."""
        for _ in self:
            pass
        return self.result

    def close(self) -> None:
        """Give back processes, files and the lock on the directory.

        A run with a directory can go on later.  One without keeps its records and models, and is over.
        """
        if self._driver is None:
            return
        driver = self._driver
        if not self._over and self._summary is None and driver.records:
            self._keep_models(driver)
        self._over = self._over or f"This run was closed after round {driver.loop.server.round}"
        self._records, self._driver = driver.records, None
        try:
            self.observers.ended(self)
        finally:
            driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What there is

    @cached_property
    def setup(self) -> RunSetup:
        """What the run is made of."""
        if self._given is not None:
            return self._given
        if self.directory is None:
            raise ConfigError("A run needs an experiment, or the directory of a run that was begun.")
        self.directory.check()
        found = Simulation(load_experiment(self.directory.config_path))
        found.refuse_other(self.directory)
        return found

    @property
    def experiment(self) -> Experiment:
        """The experiment of a simulation."""
        if isinstance(self.setup, Simulation):
            return self.setup.experiment
        raise ConfigError("This run is that of a federation over a network, which has a task and no experiment.")

    @property
    def ended(self) -> bool:
        """Whether all rounds are done, or an observer has stopped the run."""
        return self._summary is not None or (self.directory is not None and self.directory.ended())

    @property
    def records(self) -> list[Record]:
        """All rounds so far; those of a run that another process goes on with are read anew."""
        if self._driver is not None:
            return list(self._driver.records)
        if self.directory is None or not self.directory.begun:
            return list(self._records)
        try:
            return Record.read(self.directory.metrics())
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise CheckpointError(f"{self.directory.metrics_path} cannot be read: {error!r}.") from error

    @property
    def result(self) -> Result:
        """The headline numbers: those of the end, or of the rounds so far."""
        summary = self._summary or (self.directory.summary() if self.directory is not None else None)
        records = self.records
        if summary is None:
            if self._driver is None:
                self.setup.prepare(self.directory if self.directory is not None and self.directory.begun else None)
            summary = self.setup.summary(records)
        experiment = self._given.experiment if isinstance(self._given, Simulation) else None
        return Result(experiment, records, summary, None if self.directory is None else self.directory.path)

    def table(self, clients: bool = False) -> pandas.DataFrame:
        """A pandas table with a row for each round, or with ``clients`` for each client in each round."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise ConfigError(
                f"run.table() needs pandas, which is not installed.  Type: {install_hint('pandas')}"
            ) from None
        return pandas.DataFrame(client_rows(self.records) if clients else round_rows(self.records))

    def _repr_html_(self) -> str:
        """Show how far the run is, for a notebook."""
        records, evaluated = self.records, [record for record in self.records if record.accuracy is not None]
        rows: list[tuple[str, object]] = [("run", "in memory" if self.directory is None else self.directory.path)]
        with suppress(ProteaError):  # a script's own method, which cannot be found here
            rows.append(("method", method_label(self.setup.method)))
            rows.append(("rounds", f"{len(records)} of {self.setup.rounds}{', ended' if self.ended else ''}"))
        if evaluated:
            rows.append(("accuracy", f"{percent(evaluated[-1].accuracy)} % after round {evaluated[-1].round}"))
        return html_table(rows)

    # What was learned

    def client(self, id: int, round: int | None = None) -> TrainedClient:
        """A client after the last round here, or after the newest checkpoint of a run that goes on elsewhere.

        With ``round``, as it was after an earlier round of which a checkpoint is kept.
        """
        return (self._state() if round is None else self._state_after(round)).client(id)

    def predict(self, x: Inputs, client: int, rule: str = "method") -> Tensor:
        """A client's class probabilities ``(samples, classes)``, by the method's own rule or another."""
        return self.client(client).predict(x, rule)

    @property
    def prototypes(self) -> Prototypes | None:
        """The global prototypes; ``None`` for methods that have none."""
        return self._state().prototypes()

    def _state(self) -> TrainedState:
        if self._driver is not None:
            loop = self._driver.loop
            if self._kept is None or self._kept.round != loop.server.round:
                self._kept = self._state_of(loop)
            return self._kept
        if self.directory is None:
            if self._kept is None:
                why = self._over or "This run has not begun"
                raise ConfigError(f"{why}: there are no models.  Iterate over a run, or finish() it, to have some.")
            return self._kept
        found = checkpoint.complete(self.directory.checkpoints)
        if not found:
            raise ConfigError(
                f"{self.directory.path} has no checkpoint, so there are no models in it.  They are written every "
                f"{self.setup.checkpoint.every} rounds (checkpoint.every) and at the end."
            )
        if self._kept is None or self._kept.folder != found[-1]:
            checkpoint.verify(found[-1])
            self.setup.prepare(self.directory)
            self._kept = TrainedState(self.setup, found[-1], int(found[-1].name))
        return self._kept

    def _state_after(self, round: int) -> TrainedState:
        """The state in the checkpoint of a round; :class:`ConfigError` that names the rounds there are."""
        found = [] if self.directory is None else list(checkpoint.complete(self.directory.checkpoints))
        rounds = {int(path.name): path for path in found}
        if round not in rounds:
            there = ", ".join(map(str, rounds)) or "none"
            raise ConfigError(
                f"There are no models of round {round}.  Checkpoints are kept of these rounds: {there}.  More are kept "
                f"by checkpoint.every and checkpoint.keep."
            )
        checkpoint.verify(rounds[round])
        self.setup.prepare(self.directory)
        return TrainedState(self.setup, rounds[round], round)

    def _state_of(self, loop: Federation) -> TrainedState:
        """Write the state of server and clients to a folder that is gone with this run."""
        scratch = ScratchFolder()
        folder, earlier, clear = scratch.path, self._kept, self._clear
        self._clear = weakref.finalize(self, scratch.cleanup)
        save_server(loop.server, folder)
        loop.engine.save(folder)  # from where it goes on, also with clients that it has not met
        complete = [] if self.directory is None else checkpoint.complete(self.directory.checkpoints)
        for source in [*([earlier.folder] if earlier is not None else []), *complete[-1:]]:
            carry_clients(source, folder)
        if clear is not None:
            clear()
        return TrainedState(self.setup, folder, loop.server.round)


def load(path: Path | str, experiment: Experiment | None = None) -> Run:
    """The run in a directory: ended, interrupted, or still going on; iterate over it to go on with it.

    A script whose method or data no file can name gives its experiment again.
    """
    RunDirectory.open(Path(path))
    return Run(experiment, path)


def run(
    experiment: Experiment, out: Path | str | None = None, *, observers: Sequence[Observer | Callback] = ()
) -> Result:
    """Run an experiment to its end; with ``out``, in that new directory."""
    if out is not None:
        RunDirectory.refuse_taken(Path(out))
    return Run(experiment, out, observers=observers, keep_models=False).finish()  # only its numbers come back


def resume(
    path: Path | str, experiment: Experiment | None = None, *, observers: Sequence[Observer | Callback] = ()
) -> Result:
    """Continue a run from its newest complete checkpoint, to the same end as if it had never stopped.

    A script whose method or data no file can name gives its experiment again.
    """
    found = Run(experiment, RunDirectory.open(Path(path)).path, observers=observers)
    if found.ended:
        raise ConfigError(f"{path} has ended: there is nothing to continue.  Its numbers are in summary.json.")
    return found.finish()
