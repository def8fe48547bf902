"""What happened in a run, round by round, as plain values: the one writer and reader of ``metrics.jsonl``.

The file has a line on the data, then for every round a line and one for each client that had a part in it.  Nothing
here needs torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from protea.config.words import PARTS
from protea.evaluation.scores import ClientScores, Geometry, MetricScore, PartRecord, Score, Shared
from protea.federation.privacy import Privacy

Line = dict[str, Any]  # a line of metrics.jsonl; its "kind" is data, round or client


@dataclass(frozen=True)
class ClientData:
    """A client before the first round: its model, and its samples counted by class."""

    client: int
    architecture: str
    parameters: int | None  # None where the model is a site's own
    train: list[int]  # training samples of each class; empty where the samples are a site's own
    validation: list[int]
    test: list[int]
    site: str | None = None  # its name: in a federation over a network, or its key where the partition is by-key

    def line(self) -> Line:
        """Return the client as it stands in the first line of ``metrics.jsonl``."""
        site = {} if self.site is None else {"site": self.site}
        rest = {name: value for name, value in asdict(self).items() if name not in ("client", "site")}
        return {"client": self.client, **site, **rest}


@dataclass(frozen=True)
class DataRecord:
    """The first line of ``metrics.jsonl``: the names of the classes, and what each client has."""

    classes: list[str] = field(default_factory=list)
    clients: list[ClientData] = field(default_factory=list)

    def line(self) -> Line:
        """Return the first line of ``metrics.jsonl``."""
        return {"kind": "data", "round": 0, "classes": self.classes, "clients": [each.line() for each in self.clients]}

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> DataRecord:
        """Rebuild the record from what :meth:`line` wrote."""
        return _DATA.validate_python(dict(line))


@dataclass(frozen=True)
class Cost:
    """Time and memory of a round: the only values of a record that differ between equal runs."""

    seconds: dict[str, float] = field(default_factory=dict)  # by step: train, server, evaluate
    memory: int = 0  # peak memory so far, in bytes, summed over processes


@dataclass(frozen=True)
class ClientBytes:
    """Bytes of payload that a client sent (up) and was sent (down)."""

    up: int
    down: int
    total_up: int  # since the first round
    total_down: int


@dataclass(frozen=True)
class ClientRecord(ClientScores):
    """One client in one round: what its training cost and what its evaluation found."""

    client: int = field(kw_only=True)
    bytes: ClientBytes | None = field(default=None, kw_only=True)  # None if it was only evaluated
    loss: float | None = field(default=None, kw_only=True)  # mean over its training steps; None without training
    privacy: Privacy | None = field(default=None, kw_only=True)  # None if nothing of its upload is noisy

    @property
    def accuracy(self) -> float | None:
        """The accuracy by the method's own rule on the client's test samples; None where it was not evaluated."""
        return self.accuracy_by()

    @property
    def metrics(self) -> dict[str, float]:
        """The user's own metrics on the client's test samples."""
        return self.parts["test"].metrics if "test" in self.parts else {}

    def accuracy_by(self, rule: str = "method", part: str = "test") -> float | None:
        """Return the accuracy by a rule on a part of the client's samples; None where it was not evaluated so."""
        return self.parts[part].accuracy(rule) if part in self.parts else None

    def line(self, round: int) -> Line:
        """Return the client's line of ``metrics.jsonl``.

        The key ``test/head`` holds the number of test samples that the rule ``head`` answers correctly, ``test/right``
        which ones the method's own rule does.
        """
        line: Line = {"kind": "client", "round": round, "client": self.client}
        if self.bytes is not None:
            line |= {"loss": self.loss, **vars(self.bytes)}
        if self.privacy is not None:
            line["privacy"] = self.privacy.line()
        for name, part in self.parts.items():
            line[f"{name}/samples"] = part.samples
            line |= {} if part.right is None else {f"{name}/right": part.right}
            line[f"{name}/classes"] = {str(label): list(counts) for label, counts in part.classes.items()}
            line |= {f"{name}/{rule}": hits for rule, hits in part.hits.items()}
            line |= {f"{name}/metrics": part.metrics} if part.metrics else {}
        if self.inter is not None and self.intra is not None:
            line |= {"inter": self.inter, "intra": self.intra}
        line |= {name: value for name in ("gain", "pull") if (value := getattr(self, name)) is not None}
        return line | {f"shared/{rule}": accuracy for rule, accuracy in self.shared.items()}

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> ClientRecord:
        """Rebuild the client's record from what :meth:`line` wrote."""
        parts = {}
        for name in PARTS:
            if f"{name}/samples" in line:
                hits = dict(_below(f"{name}/", line))
                own = {each: hits.pop(each) for each in ("samples", "classes", "metrics", "right") if each in hits}
                parts[name] = _PART.validate_python({**own, "hits": hits})
        sizes = {name: line[name] for name in ("up", "down", "total_up", "total_down") if name in line}
        rest = {name: line[name] for name in ("inter", "intra", "gain", "pull", "loss", "privacy") if name in line}
        return _CLIENT_RECORD.validate_python(
            {
                **rest,
                "parts": parts,
                "shared": dict(_below("shared/", line)),
                "client": line["client"],
                "bytes": sizes or None,
            }
        )


def _below(prefix: str, line: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the items whose name starts with a prefix, without it."""
    return ((name.removeprefix(prefix), value) for name, value in line.items() if name.startswith(prefix))


@dataclass(frozen=True)
class Record:
    """The results of one round.  All but ``cost`` is equal in equal runs."""

    round: int
    participants: list[int]
    loss: float | None
    test: dict[str, Score]  # by rule; empty in rounds without evaluation
    validation: dict[str, Score]
    classes: dict[str, list[int]]  # test samples, hits and answers of all clients by class, by the method's own rule
    shared: dict[str, Shared]  # on the shared test set, by rule; empty in rounds without it
    server: dict[str, float]  # accuracy of the server's model on the shared test set, by rule
    geometry: Geometry | None
    values: dict[str, float | None]  # numbers in the server's memory: its loss, a margin; None if not finite
    bytes_up: int
    bytes_down: int
    total_up: int  # bytes since the first round
    total_down: int
    failures: dict[int, str]  # clients whose work is not in this round, and why
    refused: list[int]  # those of them whose upload was not as declared
    absent: dict[int, str]  # clients left out through no fault in their work: dropped out, late, quarantined
    cost: Cost
    clients: list[ClientRecord]
    metrics: dict[str, MetricScore] = field(default_factory=dict)  # the user's own, on test samples, by name
    validation_metrics: dict[str, MetricScore] = field(default_factory=dict)
    privacy: Privacy | None = None  # of the client that has spent most; None where nothing is noisy
    honest: float | None = None  # the accuracy of the clients that [attack] does not name; None without an attack
    mistakes: list[list[int]] = field(default_factory=list)  # class, the class it was taken for, how often; simulations
    changed: list[int] = field(default_factory=list)  # clients whose upload filters changed beside the others'
    train: float | None = None  # accuracy by the method's own rule on training samples; None unless asked for

    @property
    def accuracy(self) -> float | None:
        """The accuracy by the method's own rule on the clients' test samples, every sample counting once."""
        return self.test["method"].weighted if self.test else None

    @property
    def judged(self) -> frozenset[int]:
        """The clients whose test samples are in the scores."""
        return frozenset(each.client for each in self.clients if "test" in each.parts)

    def line(self) -> Line:
        """Return the round's line of ``metrics.jsonl``, without its clients."""
        whole = asdict(replace(self, clients=[], privacy=None))
        del whole["clients"], whole["privacy"]
        if self.privacy is not None:
            whole["privacy"] = self.privacy.line()
        for name in ("metrics", "validation_metrics"):
            if not whole[name]:
                del whole[name]  # nobody asked for any
        if self.honest is None:
            del whole["honest"]
        for name in ("changed", "mistakes"):
            if not whole[name]:
                del whole[name]
        if self.train is None:
            del whole["train"]
        return {"kind": "round", "accuracy": self.accuracy, **whole}

    def lines(self) -> list[Line]:
        """Return all lines of ``metrics.jsonl``: one for the round, and one for each client that had a part in it."""
        return [self.line(), *(each.line(self.round) for each in self.clients)]

    @classmethod
    def read(cls, lines: Iterable[Mapping[str, Any]]) -> list[Record]:
        """Rebuild the records from what :meth:`lines` wrote; the line on the data is skipped."""
        return read_metrics(lines)[1]


def accuracy_without(clients: Iterable[ClientRecord], others: Collection[int]) -> float | None:
    """Return the accuracy by the method's own rule over the test samples of all clients but ``others``; None without.

    Every sample counts once.
    """
    parts = [each.parts["test"] for each in clients if each.client not in others and "test" in each.parts]
    samples = sum(part.samples for part in parts)
    return sum(part.hits["method"] for part in parts) / samples if samples else None


EARLIER: Line = {"values": {}, "refused": [], "absent": {}}  # keys that earlier versions did not write


def read_metrics(lines: Iterable[Mapping[str, Any]], clients: bool = True) -> tuple[DataRecord, list[Record]]:
    """Read all lines of a ``metrics.jsonl``.

    With ``clients=False`` the lines of clients, which are many, are skipped, and the records have no clients.
    :class:`ValueError` for lines that are none of these.
    """
    data, records = DataRecord(), list[Record]()
    for line in lines:
        kind = line.get("kind") if isinstance(line, Mapping) else None
        if kind == "data":
            data = DataRecord.read(line)
        elif kind == "round":
            records.append(_ROUND.validate_python({**EARLIER, **line, "clients": []}))
        elif kind != "client":
            raise ValueError(f"a line of kind {kind!r} is none of a run's metrics")
        elif not records or "client" not in line:
            raise ValueError("a line of a client is of no round, or of no client")
        elif clients:
            records[-1].clients.append(ClientRecord.read(line))
    return data, records


_DATA: TypeAdapter[DataRecord] = TypeAdapter(DataRecord)
_PART: TypeAdapter[PartRecord] = TypeAdapter(PartRecord)
_CLIENT_RECORD: TypeAdapter[ClientRecord] = TypeAdapter(ClientRecord)
_ROUND: TypeAdapter[Record] = TypeAdapter(Record)
