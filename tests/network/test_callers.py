"""Who has a connection to the front door, and who must go."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

from protea.engines.flower.callers import NAMES, Caller, Callers, Pace


class Book:
    """Callers, and the numbers of those that were sent away."""

    def __init__(self, per_address: int = 9, per_key: int = 2, strangers: int = 9, most: int = 4) -> None:
        self.callers = Callers(per_address, per_key, strangers, most)
        self.gone: list[int] = []
        self.count = 0

    def come(self, address: str) -> Caller | None:
        if not self.callers.room(address):
            return None
        number, self.count = self.count, self.count + 1
        caller = Caller(address, lambda: self.gone.append(number))
        self.callers.came(caller)
        return caller


def known(book: Book, address: str, key: bytes) -> Caller:
    caller = book.come(address)
    assert caller is not None
    book.callers.recognise(caller, key)
    return caller


def test_where_there_is_no_room_left_the_oldest_stranger_goes() -> None:
    book = Book()
    known(book, "a", b"north")
    for address in "bcd":
        assert book.come(address)
    assert book.come("e") and book.gone == [1]  # 0 is north's
    assert book.come("f") and book.gone == [1, 2]
    assert book.callers.here.total() == 4


def test_of_too_many_strangers_the_oldest_goes_though_there_is_room() -> None:
    book = Book(strangers=2, most=9)
    for address in "ab":
        assert book.come(address)
    known(book, "c", b"north")  # its own connection was a stranger's at first, and 0 had to go
    assert book.come("d") and book.gone == [0]
    assert book.come("e") and book.gone == [0, 1]


def test_nobody_goes_for_a_newcomer_where_all_have_keys() -> None:
    book = Book()
    for number in range(4):
        known(book, "a", bytes([number]))
    assert book.come("b") is None and not book.gone


def test_an_address_that_is_full_sends_nobody_away() -> None:
    book = Book(per_address=2)
    assert book.come("a") and book.come("b") and book.come("a")
    assert book.come("a") is None and not book.gone


def test_of_one_key_the_oldest_connection_goes() -> None:
    book = Book(most=9)
    for _ in range(3):
        known(book, "a", b"north")
    known(book, "a", b"south")
    assert book.gone == [0]


def test_a_connection_of_many_sites_is_that_of_the_last_one() -> None:
    """As through a proxy: two sites of two connections each, both of which began with north's request."""
    book = Book(most=9)
    first, second = known(book, "proxy", b"north"), known(book, "proxy", b"north")
    for caller in (first, second):
        book.callers.recognise(caller, b"south")
    known(book, "proxy", b"north")
    assert not book.gone and set(book.callers.known) == {b"north", b"south"}
    known(book, "proxy", b"south")
    assert book.gone == [0]


def test_what_is_over_leaves_no_trace_and_may_be_over_twice() -> None:
    book = Book()
    stranger, site = book.come("a"), known(book, "b", b"north")
    assert stranger is not None
    for caller in (stranger, site, stranger, site):
        book.callers.left(caller)
    assert not book.callers.here and not book.callers.strangers and not book.callers.known
    book.callers.recognise(stranger, b"north")  # it had gone when its request was looked at
    assert not book.callers.known


def test_a_crowd_of_many_networks_is_not_looked_through_for_each_one() -> None:
    """With 20,000 of them that took a millisecond of the door's one thread for every new connection."""
    pace = Pace(1.0, burst=10)
    for number in range(2 * NAMES):
        assert pace.allows(number, now=100.0)
    kept = pace.turn
    assert pace.allows("one more", now=100.0) and pace.turn is kept
    for number in range(4 * NAMES):
        pace.allows(-number, now=200.0)
    assert len(pace.turn) <= 4 * NAMES  # those of before are dropped
