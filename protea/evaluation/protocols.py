"""From the rounds' scores to the number that is reported.

Papers differ here more than in anything else: the best round on the test set flatters, the
last one swings.  Every run has all of these; the settings say which one is its headline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol as Like

from protea.config.words import Protocol
from protea.evaluation.scores import Score


class Scored(Like):
    """A round's record, as far as is needed here."""

    @property
    def round(self) -> int: ...

    @property
    def test(self) -> dict[str, Score]: ...

    @property
    def judged(self) -> frozenset[int]: ...

    @property
    def validation(self) -> dict[str, Score]: ...


@dataclass(frozen=True)
class Reported:
    """Scores by rule, and the rounds they are of."""

    protocol: Protocol
    rounds: list[int]
    test: dict[str, Score]


def report(records: Sequence[Scored], protocol: Protocol) -> Reported | None:
    """None where there is nothing to report: no evaluation, or for ``validation`` nothing held out.

    A round is chosen only among those that judged all clients: others may have met easier ones.
    """
    scored = [record for record in records if record.test]
    everyone = frozenset[int]().union(*(record.judged for record in scored))
    whole = [record for record in scored if record.judged == everyone]
    if protocol == "validation":
        held_out = [record for record in whole if record.validation]
        chosen = [max(held_out, key=lambda record: record.validation["method"].weighted)] if held_out else []
    elif protocol == "best":
        chosen = [max(whole, key=lambda record: record.test["method"].weighted)] if whole else []
    else:
        chosen = scored[-5:] if protocol == "last5" else scored[-1:]
    if not chosen:
        return None
    rules = [rule for rule in chosen[0].test if all(rule in record.test for record in chosen)]
    test = {rule: Score.mean([record.test[rule] for record in chosen]) for rule in rules}
    return Reported(protocol, [record.round for record in chosen], test)


def headline(records: Sequence[Scored], protocol: Protocol) -> Reported | None:
    """What the run reports: by ``protocol``, or of the final round where that one has nothing to go by."""
    return report(records, protocol) or report(records, "final")
