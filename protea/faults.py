"""Clients that stay away or come too late, and how much a server puts up with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeInt

from protea.record import Record
from protea.rng import Streams
from protea.units import Size

Rate = Annotated[float, Field(ge=0, le=1)]
Absence = Literal["dropped out", "late", "quarantined"]


@dataclass(frozen=True)
class Faults:
    """``[faults]`` of an experiment: what goes wrong by chance, to study methods under it.

    Rates are of one round: one for all clients, or a list with one for each.
    """

    dropout: Rate | tuple[Rate, ...] = 0.0  # hears nothing of the round, and does not train
    late: Rate | tuple[Rate, ...] = 0.0  # trains, and its upload comes when the round is over

    def draw(self, clients: Sequence[int], count: int, rng: Streams) -> dict[int, Absence]:
        """Who of these clients is away in a round.  What happens to one does not depend on who else takes part."""
        if self == Faults():
            return {}
        luck = torch.rand(count, generator=rng.generator("faults"), dtype=torch.float64).tolist()
        found: dict[int, Absence] = {}
        for client in clients:
            dropout, late = _of(self.dropout, client), _of(self.late, client)
            if luck[client] < dropout:
                found[client] = "dropped out"
            elif luck[client] < dropout + (1 - dropout) * late:
                found[client] = "late"
        return found


def _of(rate: float | Sequence[float], client: int) -> float:
    return rate[client] if isinstance(rate, Sequence) else rate


@dataclass(frozen=True)
class Limits:
    """``[limits]`` of an experiment: uploads beyond these are refused."""

    upload: Size = "256MB"
    norm: Annotated[float, Field(gt=0)] = 1e6  # of a prototype, or any other row of numbers
    quarantine: NonNegativeInt = 3  # refused so many times in a row, a client is asked no more; 0 for never


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
