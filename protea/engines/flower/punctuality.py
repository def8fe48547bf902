"""How long nodes usually take, and which of them are late: so that one that is stuck costs little.

A node is late if it takes more than ``factor`` times as long as it, and the slowest of the others, usually do.  It gets
a strike then, and is asked nothing until it has said again who it is.  After that it sits out some rounds, the more the
more strikes it has, and each answer in time takes one strike away.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

KEPT = 5  # answers of a node whose times are remembered, of each kind
LEAST = 5.0  # seconds that any node has: less may be a moment in which its machine did something else
MOST = 4  # strikes that count: after these a node sits out 7 rounds

Kinds = tuple[str, ...]  # what is asked in one message, such as ("evaluate", "train")


class Punctuality:
    """The times of nodes, by their place, and their strikes.  With ``factor`` 0 no node is ever late."""

    def __init__(self, factor: float = 0.0) -> None:
        self.factor = factor
        self.times: dict[int, dict[Kinds, deque[float]]] = defaultdict(dict)
        self.strikes: Counter[int] = Counter()
        self.late: set[int] = set()  # that have not said anything since
        self.rests: Counter[int] = Counter()  # rounds that a node which is back sits out

    def usual(self, place: int, kinds: Kinds) -> float | None:
        """Return the seconds that a node usually takes for this; None if nothing is known of it.

        What was never asked in one message before takes as long as its parts, or as trainings do.
        """
        known = self.times.get(place, {})
        if kinds in known:
            return median(known[kinds])
        parts = [known.get((kind,), known.get(("train",))) for kind in kinds]
        found = [median(part) for part in parts if part is not None]
        return sum(found) if len(found) == len(kinds) else None

    def allowed(self, place: int, asked: Mapping[int, Kinds]) -> float:
        """Return the seconds that a node has, of all that were asked at once; infinite if nothing is known of it."""
        own = self.usual(place, asked[place])
        if not self.factor or own is None:
            return math.inf
        others = [time for each, kinds in asked.items() if (time := self.usual(each, kinds)) is not None]
        return max(LEAST, self.factor * max(own, *others))

    def answered(self, place: int, kinds: Sequence[str], seconds: float) -> None:
        """Take note of an answer in time."""
        self.times[place].setdefault(tuple(kinds), deque(maxlen=KEPT)).append(seconds)
        self.strikes[place] = max(0, self.strikes[place] - 1)

    def strike(self, place: int) -> None:
        """Take note that a node is late."""
        self.strikes[place] = min(self.strikes[place] + 1, MOST)
        self.late.add(place)

    def back(self, place: int) -> None:
        """Take note that a node which was late has said who it is."""
        if place in self.late:
            self.late.discard(place)
            self.rests[place] = 2 ** (self.strikes[place] - 1) - 1

    def next_round(self, there: Iterable[int]) -> set[int]:
        """Begin a round, and return which of the nodes that are there sit it out."""
        resting = {place for place in there if self.rests[place] > 0}
        self.rests.subtract(resting)
        return resting
