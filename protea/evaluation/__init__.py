"""How accuracy is measured.

An accuracy is a function of a rule (which scores answer), a scope (a client's own test
part, the test set that all share, a model on the server), a weighting over clients, and a
protocol (which round's numbers are reported).  All are computed, stored and named.

    tally.py      what one rule answered, as counts, and the measures that follow from them
    rules.py      the ways in which a client can answer
    examine.py    one pass over a client's data, for every rule at once
    judge.py      from the clients' counts to a round's scores
    protocols.py  from the rounds' scores to the number that is reported
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

Protocol = Literal["validation", "final", "last5", "best"]


@dataclass(frozen=True)
class Evaluation:
    """``[evaluation]`` of an experiment."""

    every: PositiveInt = 1  # rounds; the last round is always evaluated
    when: Literal["after", "before"] = "after"  # the round's training
    clients: Literal["all", "participants"] = "all"
    shared: Literal["never", "last"] | PositiveInt = "last"  # every n rounds, clients on the shared test set
    local_prototypes: bool = True  # as one more rule; needs a look at the training data
    snapshots: NonNegativeInt = 20  # of all prototypes, over the run, for its report
    protocol: Protocol = "validation"  # the round whose numbers are reported; final where nothing is held out

    def due(self, round: int, rounds: int) -> bool:
        """Whether clients are judged on their own data in this round."""
        return round % self.every == 0 or round == rounds

    def shared_due(self, round: int, rounds: int) -> bool:
        """Whether they are judged on the shared test set too."""
        if isinstance(self.shared, str):
            return self.shared == "last" and round == rounds
        return round % self.shared == 0 or round == rounds

    def snapshot_due(self, round: int, rounds: int) -> bool:
        """Whether prototypes are kept: spread evenly over the run, the last round always."""
        if not self.snapshots:
            return False
        return round * self.snapshots // rounds > (round - 1) * self.snapshots // rounds
