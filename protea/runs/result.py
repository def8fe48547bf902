"""What a run gave, as plain typed numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protea.config.experiment import Experiment
from protea.config.units import format_bytes, percent
from protea.config.words import PROTOCOLS, RULES
from protea.evaluation.scores import Score
from protea.federation.record import Record
from protea.runs.tables import html_table


@dataclass(frozen=True)
class Gain:
    """By how much one run is better than another on the clients' own test samples."""

    accuracy: float
    clients: dict[int, float]  # of each client that both runs evaluated


@dataclass(frozen=True)
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
    def rounds(self) -> list[int]:
        """The rounds that the protocol reports."""
        return list(self.summary["made"]["rounds"])

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

    def _repr_html_(self) -> str:
        """Show the headline numbers, for a notebook."""
        rows: list[tuple[str, object]] = [
            ("method", self.method),
            ("accuracy", f"{percent(self.accuracy)} %, {PROTOCOLS[self.summary['made']['protocol']]}"),
            *((f"by {RULES.get(rule, rule)}", f"{percent(score.weighted)} %") for rule, score in self.by_rule.items()),
            ("commonest class", f"{percent(self.summary['majority'])} %"),
            ("sent", f"{format_bytes(self.summary['bytes_up'])} up, {format_bytes(self.summary['bytes_down'])} down"),
        ]
        rows += [("warning", text) for text in self.warnings.values()]
        return html_table(rows)

    def gain_over(self, other: Result) -> Gain:
        """By how much this run is better than another, such as one of Local on the same split."""
        ours, theirs = self.clients, other.clients
        each = {client: ours[client] - theirs[client] for client in ours if client in theirs}
        return Gain(self.accuracy - other.accuracy, each)
