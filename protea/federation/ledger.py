"""What adds up over rounds: bytes that travelled, and uploads in a row that were refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from protea.federation.record import Record


@dataclass(frozen=True)
class Strikes:
    """How many uploads in a row of each client were refused."""

    most: int  # and out; 0 for never
    count: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, records: Iterable[Record], most: int) -> Strikes:
        """As it was after these rounds."""
        found = cls(most)
        for record in records:
            found.add([c for c in record.participants if c not in record.absent], record.refused)
        return found

    def add(self, asked: Iterable[int], refused: Iterable[int]) -> None:
        refused = set(refused)
        for client in asked:
            self.count[client] = self.count[client] + 1 if client in refused else 0

    def out(self, client: int) -> bool:
        return 0 < self.most <= self.count[client]


@dataclass(frozen=True)
class Traffic:
    """Bytes that each client has sent and was sent since the first round."""

    up: Counter[int] = field(default_factory=Counter)
    down: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, records: Iterable[Record]) -> Traffic:
        """As it was after these rounds."""
        found = cls()
        for line in (line for record in records for line in record.clients if "up" in line):
            found.add(line["client"], line["up"], line["down"])
        return found

    def add(self, client: int, up: int, down: int) -> None:
        self.up[client] += up
        self.down[client] += down
