"""What happened in one round, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter

from protea.evaluation.scores import Geometry, Score, Shared


@dataclass(frozen=True)
class Cost:
    """What a round took; nothing here is the same in equal runs."""

    seconds: dict[str, float] = field(default_factory=dict)  # by what they were spent on
    memory: int = 0  # most bytes that all processes together had so far


@dataclass(frozen=True)
class Record:
    """One round.  All but ``cost`` is equal in equal runs."""

    round: int
    participants: list[int]
    loss: float | None
    test: dict[str, Score]  # by rule; empty in rounds without evaluation
    validation: dict[str, Score]
    classes: dict[str, list[int]]  # test samples, hits and answers of all clients by class, by the method's own rule
    shared: dict[str, Shared]  # on the shared test set, by rule; empty in rounds without it
    server: dict[str, float]  # a model on the server, on the shared test set, by rule
    geometry: Geometry | None
    values: dict[str, float | None]  # numbers in the server's memory: its loss, a margin; None if not finite
    bytes_up: int
    bytes_down: int
    total_up: int  # bytes since the first round
    total_down: int
    failures: dict[int, str]  # clients whose work is not in this round, and why
    refused: list[int]  # those of them whose upload was not as declared
    absent: dict[int, str]  # clients that were not heard, by no fault in their work: dropped out, late, quarantined
    cost: Cost
    clients: list[dict[str, Any]]  # each client's own numbers

    @property
    def accuracy(self) -> float | None:
        """By the method's own rule on the clients' test parts, every sample counting once."""
        return self.test["method"].weighted if self.test else None

    @property
    def judged(self) -> frozenset[int]:
        """The clients whose test samples are in the scores."""
        return frozenset(line["client"] for line in self.clients if "test/samples" in line)

    def lines(self) -> list[dict[str, Any]]:
        """The record for ``metrics.jsonl``: a line for the round, and one for each client that had a part in it."""
        whole = asdict(self)
        clients = whole.pop("clients")
        line = {"kind": "round", "accuracy": self.accuracy, **whole}
        return [line, *({"kind": "client", "round": self.round, **client} for client in clients)]

    @classmethod
    def read(cls, lines: Iterable[Mapping[str, Any]]) -> list[Record]:
        """The records that :meth:`lines` wrote; other lines are passed over."""
        records: list[Record] = []
        for line in lines:
            if line["kind"] == "data":
                continue
            values = {k: v for k, v in line.items() if k not in ("kind", "accuracy")}
            if line["kind"] == "client":
                records[-1].clients.append({k: v for k, v in values.items() if k != "round"})
            else:
                records.append(_PLAIN.validate_python({**values, "clients": []}))
        return records


_PLAIN: TypeAdapter[Record] = TypeAdapter(Record)
