"""Those who are told what goes on in a run: displays, trackers, a live page, a user's own callback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Literal, TypeAlias

from protea.core.errors import ConfigError
from protea.federation.jobs import Reply
from protea.federation.record import Record

if TYPE_CHECKING:
    from protea.runs.run import Run


class _Stop(Enum):
    """The type of :data:`STOP`."""

    STOP = "stop"

    def __repr__(self) -> str:
        return "protea.STOP"


STOP = _Stop.STOP  # returned by an observer's ``round``: end the run here, cleanly
Verdict: TypeAlias = Literal[_Stop.STOP] | None


class Observer:
    """Is told what goes on in a run.  Subclasses override what they want to know; nothing they do changes a number.

    >>> class Print(Observer):
    ...     def round(self, record):
    ...         print(record.round, record.accuracy)
    """

    def started(self, run: Run) -> None:
        """The run begins, or goes on: its directory, if it has one, is there."""

    def replied(self, reply: Reply) -> None:
        """A client has answered a job: to train, or to be evaluated."""

    def round(self, record: Record) -> Verdict:
        """A round is over and written down.  Return ``protea.STOP`` to end the run with this round."""
        return None

    def ended(self, run: Run) -> None:
        """The run is over: it came to its end, was interrupted, or failed; ``run.ended`` tells."""


Callback = Callable[[Record], object]  # a function of a record is an observer of rounds


class _OfRounds(Observer):
    def __init__(self, callback: Callback) -> None:
        self.callback = callback

    def round(self, record: Record) -> Verdict:
        return STOP if self.callback(record) is STOP else None


class Observers(Observer):
    """Several observers as one.  Each is told, in order, also if one before it fails; the first failure is raised."""

    def __init__(self, observers: Sequence[Observer | Callback] = ()) -> None:
        for each in observers:
            if not isinstance(each, Observer) and not callable(each):
                raise ConfigError(
                    f"observers has {each!r}; expected are objects of protea.Observer, or functions of a record."
                )
        self.all = [each if isinstance(each, Observer) else _OfRounds(each) for each in observers]
        self._told: list[Observer] = []  # that the run began; only these are told that it ended

    def started(self, run: Run) -> None:
        def begin(each: Observer) -> None:
            self._told.append(each)
            each.started(run)

        _tell(begin, self.all)

    def replied(self, reply: Reply) -> None:
        _tell(lambda each: each.replied(reply), self.all)

    def round(self, record: Record) -> Verdict:
        return STOP if STOP in _tell(lambda each: each.round(record), self.all) else None

    def ended(self, run: Run) -> None:
        told, self._told = self._told, []
        _tell(lambda each: each.ended(run), told)


def _tell(tell: Callable[[Observer], object], observers: Sequence[Observer]) -> list[object]:
    """Tell all observers something; collect what they say, and raise the first failure at the end."""
    said, failed = list[object](), list[BaseException]()
    for each in observers:
        try:
            said.append(tell(each))
        except BaseException as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return said
