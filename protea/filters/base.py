"""What a filter is: a change of uploads that neither the method nor the engine needs to know of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from protea.core.message import Named
from protea.core.method import Method
from protea.core.prototypes import Prototypes
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
    system_randomness: bool = False  # noise must come from the operating system: at a site, where nobody may know it


@dataclass(frozen=True)
class Received:
    """An upload that has passed all checks, in its flat form."""

    client: int
    up: Named


@dataclass(frozen=True)
class Gathering:
    """What the server knows of a round whose uploads it looks at together."""

    round: int
    kind: type[Any]  # the payload that the method declares for its uploads
    classes: int
    dim: int
    last: Callable[[], Prototypes | None]  # the global prototypes before this round; None where there are none
    memory: MutableMapping[str, Any]  # what this filter keeps from round to round, saved with the run
    rng: Streams  # draws of this round and filter


class Filter:
    """A change of every upload on its way, and its undoing.

    Subclasses are frozen dataclasses, and like a method they never store anything on themselves.  All hooks get and
    give named tensors, the flat form of a payload, and leave alone what they do not know.

    >>> @dataclass(frozen=True)
    ... class Halve(Filter):
    ...     def leave(self, up, at):
    ...         return {name: tensor / 2 for name, tensor in up.items()}
    ...     def arrive(self, up, at):
    ...         return {name: tensor * 2 for name, tensor in up.items()}
    """

    summable: ClassVar[bool] = False  # uploads can be added up as it leaves them; arrive need not see single ones

    def check(self, method: Method[Any, Any], name: str, filters: Sequence[Filter], participants: int) -> None:
        """Raise :class:`ConfigError` if it cannot work with a method, called ``name``, or with all filters together.

        So many ``participants`` take part in a round.
        """

    def leave(self, up: Named, at: Passage) -> Named:
        """Change an upload at the client, before it is sent and its bytes are counted."""
        return up

    def arrive(self, up: Named, at: Passage) -> Named:
        """Undo, at the server, what :meth:`leave` did; :class:`PayloadError` for what it cannot have given."""
        return up

    def together(self, uploads: Sequence[Received], at: Gathering) -> Sequence[Received]:
        """Look at all uploads of a round side by side, on the server, after all checks and before ``aggregate``.

        What is returned has the same clients in the same order.  An upload that is returned as the very object that
        was given stays what it is, to the bit.
        """
        return uploads


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


def together_all(filters: Sequence[Filter], uploads: Sequence[Received], at: Gathering) -> Sequence[Received]:
    """Let all filters look at the uploads of a round, in the order in which they are listed."""
    for number, each in enumerate(filters):
        memory = FilterMemory(at.memory, f"filter{number}.")
        uploads = each.together(uploads, replace(at, memory=memory, rng=at.rng.at("filter", number)))
    return uploads


class FilterMemory(MutableMapping[str, Any]):
    """The part of the server's memory that is one filter's: its names have a prefix there.

    >>> from protea.core.memory import Memory
    >>> whole = Memory()
    >>> FilterMemory(whole, "filter0.")["seen"] = 3
    >>> dict(whole), dict(FilterMemory(whole, "filter0."))
    ({'filter0.seen': 3}, {'seen': 3})
    """

    def __init__(self, whole: MutableMapping[str, Any], prefix: str) -> None:
        self.whole, self.prefix = whole, prefix

    def __getitem__(self, name: str) -> Any:
        return self.whole[self.prefix + name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.whole[self.prefix + name] = value

    def __delitem__(self, name: str) -> None:
        del self.whole[self.prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self.prefix) for name in list(self.whole) if name.startswith(self.prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _draws(at: Passage, number: int) -> Passage:
    """The same passage with the random streams of one filter: two of a kind do not draw the same."""
    return replace(at, rng=at.rng.at("filter", number))
