"""What a filter is: a change of uploads that neither the method nor the engine needs to know of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from protea.core.method import Needs
from protea.core.payload import Named
from protea.core.rng import Streams


@dataclass(frozen=True)
class Passage:
    """Which upload is on its way: whose it is, of which round, and what it was declared to hold."""

    client: int
    round: int
    kind: type[Any]  # the payload that the method declares for its uploads
    classes: int
    dim: int
    rng: Streams  # draws of this client, round and end of the way


class Filter:
    """A change of every upload on its way, and its undoing.

    Subclasses are frozen dataclasses, and like a method they never store anything on themselves.  Both hooks get and
    give named tensors, the flat form of a payload, and leave alone what they do not know.

    >>> @dataclass(frozen=True)
    ... class Halve(Filter):
    ...     def leave(self, up, at):
    ...         return {name: tensor / 2 for name, tensor in up.items()}
    ...     def arrive(self, up, at):
    ...         return {name: tensor * 2 for name, tensor in up.items()}
    """

    summable: ClassVar[bool] = False  # uploads can be added up as it leaves them; arrive need not see single ones

    def check(self, filters: Sequence[Filter], needs: Needs, method: str, participants: int) -> None:
        """Raise :class:`ConfigError` if it cannot work with the method, the other filters, or so few participants."""

    def leave(self, up: Named, at: Passage) -> Named:
        """Change an upload at the client, before it is sent and its bytes are counted."""
        return up

    def arrive(self, up: Named, at: Passage) -> Named:
        """Undo, at the server, what :meth:`leave` did; :class:`PayloadError` for what it cannot have given."""
        return up


def leave_all(filters: Sequence[Filter], up: Named, at: Passage) -> Named:
    """Apply all filters to an upload that is about to leave its client, in the order in which they are listed."""
    for number, each in enumerate(filters):
        up = each.leave(up, _draws(at, number))
    return up


def arrive_all(filters: Sequence[Filter], up: Named, at: Passage) -> Named:
    """Undo all filters on an upload that has arrived, the last one first."""
    for number, each in reversed(list(enumerate(filters))):
        up = each.arrive(up, _draws(at, number))
    return up


def _draws(at: Passage, number: int) -> Passage:
    """The same passage with the random streams of one filter: two of a kind do not draw the same."""
    return Passage(at.client, at.round, at.kind, at.classes, at.dim, at.rng.at("filter", number))
