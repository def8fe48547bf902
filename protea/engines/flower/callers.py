"""Who is connected to the front door, and how often each may ask.

A connection is a stranger's until a request on it was signed by an invited key.  Where there is no room left, the
oldest stranger goes: who has a key is not kept out by those who have none.  One key has so many connections, of which
the oldest go too, and its requests have a pace: a site can slow down itself, and nobody else.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

NAMES = 4096  # whose pace is kept, before those that no longer matter are dropped


@dataclass(eq=False)
class Caller:
    """One connection: where it comes from, how to end it, and whose it is once that is known."""

    address: str
    end: Callable[[], object]
    key: bytes | None = None


class Callers:
    """The connections of a door: so many of one address, of one key, of all strangers together, and in all."""

    def __init__(self, per_address: int, per_key: int, strangers: int, most: int) -> None:
        self.per_address, self.per_key, self.most_strangers, self.most = per_address, per_key, strangers, most
        self.here: Counter[str] = Counter()  # connections by address
        self.strangers: dict[Caller, None] = {}  # oldest first
        self.known: defaultdict[bytes, dict[Caller, None]] = defaultdict(dict)  # by key, oldest first

    def room(self, address: str) -> bool:
        """Return whether there is room for a connection from this address; if need be, the oldest stranger goes."""
        if self.here[address] >= self.per_address:
            return False
        if self.here.total() < self.most and len(self.strangers) < self.most_strangers:
            return True
        if not self.strangers:
            return False
        self._end(next(iter(self.strangers)))
        return True

    def came(self, caller: Caller) -> None:
        """Take note of a new connection."""
        self.here[caller.address] += 1
        self.strangers[caller] = None

    def recognise(self, caller: Caller, key: bytes) -> None:
        """Take note whose connection it is; if that key has too many, its oldest goes.

        Through a proxy many sites may use one connection: then it is that of the last of them.
        """
        if caller.key == key or caller not in self._own(caller):
            return
        self._remove(caller)
        caller.key, own = key, self.known[key]
        own[caller] = None
        if len(own) > self.per_key:
            self._end(next(iter(own)))

    def left(self, caller: Caller) -> None:
        """Take note that a connection is over; what was noted before does no harm."""
        if caller in self._own(caller):
            self._remove(caller)
            self.here[caller.address] -= 1
            self.here += Counter()  # without those at zero

    def _own(self, caller: Caller) -> dict[Caller, None]:
        """Give the connections of the same key, or those of strangers."""
        return self.strangers if caller.key is None else self.known.get(caller.key, {})

    def _remove(self, caller: Caller) -> None:
        del self._own(caller)[caller]
        if caller.key is not None and not self.known[caller.key]:
            del self.known[caller.key]

    def _end(self, caller: Caller) -> None:
        self.left(caller)
        caller.end()


class Pace:
    """So many a second for each name, and ``burst`` of them at once.

    >>> pace = Pace(2.0, burst=20)
    >>> [pace.wait("north", now=100.0) for _ in range(22)][-3:]
    [0.0, 0.5, 1.0]
    >>> pace.wait("north", now=100.5), pace.wait("south", now=100.5)
    (1.0, 0.0)
    """

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.ahead = rate, burst / rate
        self.turn: dict[Hashable, float] = {}  # when the last one was due, if they had come evenly
        self.room = NAMES  # of these, before some are dropped

    def wait(self, name: Hashable, now: float) -> float:
        """Return the seconds that the next one of this name has to wait, and count it."""
        if len(self.turn) > self.room:
            self.turn = {each: due for each, due in self.turn.items() if due > now - self.ahead}
            self.room = max(NAMES, 2 * len(self.turn))  # not again for each one of a crowd
        due = max(self.turn.get(name, 0.0), now - self.ahead) + 1 / self.rate
        self.turn[name] = due
        return max(0.0, due - now)

    def allows(self, name: Hashable, now: float) -> bool:
        """Return whether one more of this name may come now; if so, count it."""
        if max(self.turn.get(name, 0.0), now - self.ahead) + 1 / self.rate > now:
            return False
        self.wait(name, now)
        return True


def place_of(host: str) -> str:
    """Give what counts as one address: of IPv6 a whole network of 64 bits, which is what one customer has.

    >>> place_of("192.0.2.7"), place_of("2001:db8::1:2:3:4"), place_of("::ffff:192.0.2.7")
    ('192.0.2.7', '2001:db8::/64', '192.0.2.7')
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


def at_once(count: int) -> defaultdict[bytes, asyncio.Semaphore]:
    """Make places for so many requests of each key at a time."""
    return defaultdict(lambda: asyncio.Semaphore(count))
