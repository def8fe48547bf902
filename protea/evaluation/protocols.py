"""From the rounds' scores to the number that is reported.

Papers differ here more than in anything else: the best round on the test set flatters, the
last one swings.  Every run has all of these; the settings say which one is its headline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol as Interface
from typing import TypeVar

from protea.config.words import Protocol
from protea.evaluation.scores import Score


class Scored(Interface):
    """A round's record, as far as is needed here."""

    @property
    def round(self) -> int: ...

    @property
    def test(self) -> dict[str, Score]: ...

    @property
    def judged(self) -> frozenset[int]: ...

    @property
    def validation(self) -> dict[str, Score]: ...


S = TypeVar("S", bound=Scored)


@dataclass(frozen=True)
class Reported:
    """Scores by rule, and the rounds they are of."""

    protocol: Protocol
    rounds: list[int]
    test: dict[str, Score]


def best_round(records: Sequence[S], score: Callable[[S], float | None], *, of_all: bool = True) -> S | None:
    """The round with the highest score, the latest of equals; None where no round has one.

    Few samples make many equals, and of these the one that has trained longest is the safest guess.
    With ``of_all`` it is chosen among the rounds that evaluated all clients: others may have met easier ones.
    """
    if of_all:
        scored = [record for record in records if record.test]
        everyone = frozenset[int]().union(*(record.judged for record in scored))
        records = [record for record in scored if record.judged == everyone]
    found = [(value, record) for record in records if (value := score(record)) is not None]
    return max(reversed(found), key=lambda pair: pair[0])[1] if found else None


def accuracy_on_test(record: Scored) -> float | None:
    """The accuracy on test samples by the method's own rule, every sample counting once; None without evaluation."""
    return record.test["method"].weighted if record.test else None


def accuracy_on_validation(record: Scored) -> float | None:
    """The same on validation samples; None where none are held out."""
    return record.validation["method"].weighted if record.validation else None


def report(records: Sequence[Scored], protocol: Protocol) -> Reported | None:
    """The scores by a protocol; None where it has nothing to go by: no evaluation, or nothing held out."""
    if protocol in ("validation", "best"):
        best = best_round(records, accuracy_on_validation if protocol == "validation" else accuracy_on_test)
        chosen = [] if best is None else [best]
    else:
        scored = [record for record in records if record.test]
        chosen = scored[-5:] if protocol == "last5" else scored[-1:]
    if not chosen:
        return None
    rules = [rule for rule in chosen[0].test if all(rule in record.test for record in chosen)]
    test = {rule: Score.mean([record.test[rule] for record in chosen]) for rule in rules}
    return Reported(protocol, [record.round for record in chosen], test)


def headline(records: Sequence[Scored], protocol: Protocol) -> Reported | None:
    """What the run reports: by ``protocol``, or of the final round where that one has nothing to go by."""
    return report(records, protocol) or report(records, "final")
