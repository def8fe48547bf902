"""What a run gave, as plain typed numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from protea.config.experiment import Experiment
from protea.config.units import format_bytes, percent
from protea.config.words import PROTOCOLS, RULES
from protea.core.errors import ConfigError
from protea.evaluation.scores import Score
from protea.federation.record import Record
from protea.runs.answers import RunAnswers
from protea.runs.gain import Gain, gain
from protea.runs.reader import names_in, split_mark
from protea.runs.steps import rounds_and_steps
from protea.runs.tables import html_table


@dataclass(frozen=True, repr=False)
class Result:
    """What a run gave.  ``directory`` is where it left its traces, if it was told to."""

    experiment: Experiment | None  # None for a run that was only read, or is of a federation over a network
    records: list[Record]
    summary: dict[str, Any]
    directory: Path | None = None

    @property
    def method(self) -> str:
        """The method's name, with its variant."""
        return str(self.summary["method"])

    @property
    def accuracy(self) -> float:
        """By the run's protocol and the method's own rule, every test sample counting once; nan if there is none."""
        accuracy = self.summary["accuracy"]
        return math.nan if accuracy is None else float(accuracy)

    @property
    def honest(self) -> float | None:
        """The accuracy of the clients that ``[attack]`` does not name, in the same rounds; None without an attack."""
        found = self.summary.get("honest")
        return None if found is None else float(found)

    @property
    def rounds(self) -> list[int]:
        """The rounds that the protocol reports."""
        return list(self.summary["made"]["rounds"])

    @property
    def steps(self) -> int | None:
        """SGD steps that a client has made on its own samples, mean over clients; None where nobody knows."""
        found = self.summary.get("steps")
        return None if found is None else int(found)

    @property
    def by_rule(self) -> dict[str, Score]:
        """All measures on the clients' own test samples, by rule, in the reported rounds."""
        return {rule: Score(**score) for rule, score in self.summary["test"].items()}

    @property
    def clients(self) -> dict[int, float]:
        """Each client's accuracy by the method's own rule, mean over the reported rounds."""
        found: dict[int, list[float]] = {}
        for record in self.records:
            if record.round in self.rounds:
                for client in record.clients:
                    if (accuracy := client.accuracy) is not None:
                        found.setdefault(client.client, []).append(accuracy)
        return {client: math.fsum(values) / len(values) for client, values in found.items()}

    @property
    def warnings(self) -> dict[str, str]:
        """Signs that the run is not well, by kind."""
        return dict(self.summary["warnings"])

    def __repr__(self) -> str:
        """Show the headline in three lines."""
        protocol, sent = self.summary["made"]["protocol"], self.summary["bytes_up"] + self.summary["bytes_down"]
        trained = "" if self.steps is None else f"{self.steps:,} steps a client, "
        count = len(self.warnings)
        doubts = f", {count} warning{'s' if count > 1 else ''}" if count else ""
        return (
            f"Result of {self.method}: accuracy {percent(self.accuracy)} % ({PROTOCOLS.get(protocol, protocol)})\n"
            f"  {len(self.records)} rounds, commonest class {percent(self.summary['majority'])} %, "
            f"{trained}{format_bytes(sent)} sent{doubts}\n"
            f"  records in {self.directory or 'memory'}"
        )

    def _repr_html_(self) -> str:
        """Show the headline numbers, for a notebook."""
        rows: list[tuple[str, object]] = [
            ("method", self.method),
            ("accuracy", f"{percent(self.accuracy)} %, {PROTOCOLS[self.summary['made']['protocol']]}"),
            *((f"by {RULES.get(rule, rule)}", f"{percent(score.weighted)} %") for rule, score in self.by_rule.items()),
            ("trained", rounds_and_steps(len(self.records), self.steps)),
            ("commonest class", f"{percent(self.summary['majority'])} %"),
            ("sent", f"{format_bytes(self.summary['bytes_up'])} up, {format_bytes(self.summary['bytes_down'])} down"),
        ]
        if "privacy" in self.summary:
            rows.append(("privacy", self.summary["privacy"]["words"]))
        rows += [("warning", text) for text in self.warnings.values()]
        return html_table(rows)

    @property
    def gain(self) -> dict[str, Gain]:
        """What ``summary.json`` tells of the gain over runs beside this one, by name: ``local``, ``alone``."""
        return {name: Gain.read(plain) for name, plain in self.summary.get("gain", {}).items()}

    def gain_over(self, other: Result) -> Gain:
        """By how much this run is better than another on the same split, such as one of Local.

        Raise :class:`ConfigError` where the split is another one, or no client was evaluated in both.
        """
        found = gain([(self.answers(), other.answers())])
        if found is None:
            raise ConfigError(f"There is no client that both {self.method} and {other.method} were evaluated on.")
        return found

    def answers(self) -> RunAnswers:
        """What the clients answered in the reported rounds, by the method's own rule."""
        marks, seed, split = dict[str, str](), 1, None if self.directory is None else split_mark(self.directory)
        if split is not None:
            marks["partition"] = split
        if self.experiment is not None:
            seed, data = self.experiment.seed, self.experiment.data
            marks["settings"] = repr((data, self.experiment.clients, seed if data.seed is None else data.seed))
        records = [client for record in self.records if record.round in self.rounds for client in record.clients]
        found = RunAnswers.of(records, str(self.directory or self.method), seed, marks)
        return found if self.directory is None else replace(found, names=names_in(self.directory))
