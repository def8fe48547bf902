"""What the clients of a run answered in the rounds that it reports, sample by sample where that is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from protea.core.errors import ConfigError
from protea.federation.record import ClientRecord
from protea.runs.reader import RunReader

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClientAnswers:
    """One client's answers on its test samples, mean over the reported rounds."""

    classes: dict[int, int]  # test samples of each class there is
    accuracy: float
    right: Floats | None  # (samples,) share of the rounds in which each was answered right; None where not known

    @property
    def samples(self) -> int:
        """The number of test samples."""
        return sum(self.classes.values())


@dataclass(frozen=True)
class RunAnswers:
    """The answers of all clients of a run; a client without test samples has None."""

    name: str  # of the run, in messages
    seed: int
    marks: Mapping[str, str]  # of the split, by kind: two runs have the same split if a kind that both have is equal
    clients: dict[int, ClientAnswers | None]
    names: Mapping[int, str] = field(default_factory=dict)  # of clients that have one

    @classmethod
    def of(
        cls, records: Iterable[ClientRecord], name: str, seed: int, marks: Mapping[str, str], rule: str = "method"
    ) -> RunAnswers:
        """Gather the answers by a rule from the clients' records of the reported rounds."""
        found: dict[int, list[ClientRecord]] = {}
        for record in records:
            found.setdefault(record.client, []).append(record)
        return cls(name, seed, marks, {client: _mean(each, rule) for client, each in sorted(found.items())})

    @classmethod
    def read(cls, run: RunReader, rounds: Iterable[int], rule: str = "method") -> RunAnswers:
        """Read the answers in some rounds from the directory of a run."""
        marks = {} if run.split is None else {"partition": run.split}
        found = cls.of(run.clients_in(rounds), str(run.path), run.seed, marks, rule)
        return replace(found, names={client.client: client.site for client in run.data.clients if client.site})

    def refuse_other_split(self, other: RunAnswers) -> None:
        """Raise :class:`ConfigError` unless both runs answer the same test samples, as far as that is known."""
        common = next((kind for kind in self.marks if kind in other.marks), None)
        same = common is None or self.marks[common] == other.marks[common]
        for client, ours in self.clients.items():
            theirs = other.clients.get(client)
            same = same and (ours is None or theirs is None or ours.classes == theirs.classes)
        if not same:
            raise ConfigError(
                f"{self.name} and {other.name} do not answer the same test samples, so there is no gain of one over "
                f"the other.\n  Run both with the same data, clients and seed: protea run CONFIG --beside local"
            )


def _mean(records: list[ClientRecord], rule: str) -> ClientAnswers | None:
    parts = [record.parts["test"] for record in records if "test" in record.parts]
    accuracies = [accuracy for part in parts if (accuracy := part.accuracy(rule)) is not None]
    if not parts or len(accuracies) < len(parts):
        return None
    bits = [samples for part in parts if rule == "method" and (samples := part.right_samples) is not None]
    right = np.mean(np.array(bits, float), axis=0) if len(bits) == len(parts) else None
    classes = {label: count for label, (_, count) in parts[0].classes.items()}
    if not classes:
        return None  # a site that does not tell its classes: nobody knows whether these are the same samples
    return ClientAnswers(classes, float(np.mean(accuracies)), right)
