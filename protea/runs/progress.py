"""How far a run is: a bar in a notebook, lines elsewhere."""

from __future__ import annotations

import html
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from protea.config.experiment import Experiment, experiment_to_toml, method_label
from protea.config.sections import participants
from protea.config.units import format_duration, percent
from protea.federation.jobs import Reply
from protea.federation.record import Record
from protea.runs.observers import Observer
from protea.runs.simulation import Simulation

if TYPE_CHECKING:
    from protea.runs.run import Run

PAUSE = 0.2  # seconds between two looks at the bar within a round


def in_notebook() -> bool:
    """Tell whether this is the kernel of a notebook, such as Jupyter's."""
    kernel = sys.modules.get("ipykernel.zmqshell")  # not imported: where it is not yet, there is no notebook
    if kernel is None:
        return False
    from IPython import get_ipython

    return isinstance(get_ipython(), kernel.ZMQInteractiveShell)


def client_jobs(experiment: Experiment, round: int) -> int:
    """Count the jobs that clients get in a round: to train, and in some rounds to be evaluated."""
    settings, taking = experiment.evaluation, participants(experiment.clients, experiment.fraction)
    evaluated = experiment.clients if settings.clients == "all" else taking
    times = settings.due(round, experiment.rounds) + settings.shared_due(round, experiment.rounds)
    return taking + times * evaluated


def why_inline(experiment: Experiment) -> str | None:
    """Say why clients run one after another in a notebook, and what would change that; ``None`` where they do not."""
    if experiment.engine.name != "auto" or experiment.engine_name != "inline":
        return None
    names = sorted(set(re.findall(r"__main__:(\w+)", experiment_to_toml(experiment))))
    return (
        f"Clients train one after another, in this process: other processes cannot import {' and '.join(names)}, which "
        f"this notebook defines.  Move that into a file beside the notebook and import it from there: then clients "
        f"train in parallel."
    )


class Progress(Observer):
    """Shows rounds, client jobs of the round, accuracy and time left.

    In a notebook one output is updated in place; elsewhere each round is a line on standard error.
    """

    def __init__(self) -> None:
        self.display: Any = None  # of a notebook
        self.done = self.jobs = self.rounds = 0
        self.accuracy: float | None = None
        self.ends: list[float] = []  # of rounds, in seconds
        self.shown = 0.0
        self.experiment: Experiment | None = None
        self.title, self.state, self.note = "", "running", ""

    def started(self, run: Run) -> None:
        setup = run.setup
        self.experiment = setup.experiment if isinstance(setup, Simulation) else None
        self.title, self.rounds, self.jobs, self.ends = method_label(setup.method), setup.rounds, 0, []
        records = run.records
        self.done, self.accuracy = (records[-1].round, records[-1].accuracy) if records else (0, None)
        self.begun, self.state = time.perf_counter(), "running"
        self.note = "" if self.experiment is None else why_inline(self.experiment) or ""
        if in_notebook():
            from IPython.display import display

            self.display = display(self._bundle(), raw=True, display_id=True)

    def replied(self, reply: Reply) -> None:
        self.jobs += 1
        if self.display is not None and time.perf_counter() - self.shown > PAUSE:
            self._update()

    def round(self, record: Record) -> None:
        self.ends.append(time.perf_counter())
        self.done, self.jobs = record.round, 0
        self.accuracy = self.accuracy if record.accuracy is None else record.accuracy
        if self.display is not None:
            self._update()
        else:
            sys.stderr.write(f"{self._line()}\n")

    def ended(self, run: Run) -> None:
        self.state = "ended" if run.ended else "stopped"
        if self.display is not None:
            self._update()

    def _seconds_left(self) -> float | None:
        """Estimate by the rounds so far, but for the first, which has the start-up in it."""
        if not self.ends:
            return None
        several = len(self.ends) > 1
        passed = self.ends[-1] - (self.ends[0] if several else self.begun)
        return passed / max(1, len(self.ends) - 1) * (self.rounds - self.done)

    def _words(self) -> str:
        found = [f"round {self.done}/{self.rounds}"]
        if self.state == "running" and self.jobs:
            of = "" if self.experiment is None else f"/{client_jobs(self.experiment, self.done + 1)}"
            found.append(f"client jobs of the next {self.jobs}{of}")
        if self.accuracy is not None:
            found.append(f"accuracy {percent(self.accuracy)} %")
        left = self._seconds_left()
        if self.state != "running":
            found.append(f"{self.state} after {format_duration(time.perf_counter() - self.begun)}")
        elif left is not None:
            found.append(f"about {format_duration(left)} left")
        return ", ".join(found)

    def _line(self) -> str:
        return f"{self.title}: {self._words()}"

    def _bundle(self) -> dict[str, str]:
        bar = (
            f'<progress value="{self.done}" max="{self.rounds}" style="width: 20em; vertical-align: middle"></progress>'
        )
        note = f'<div style="opacity: 0.7; max-width: 50em">{html.escape(self.note)}</div>' if self.note else ""
        text = f"<div><b>{html.escape(self.title)}</b> {bar} {html.escape(self._words())}</div>{note}"
        return {"text/html": text, "text/plain": self._line() + (f"\n{self.note}" if self.note else "")}

    def _update(self) -> None:
        self.shown = time.perf_counter()
        self.display.update(self._bundle(), raw=True)
