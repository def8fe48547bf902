"""Notices between the front door and the coordinator, which are threads of one process.

Without them every site would ask again and again whether there is a message for it, and the coordinator whether there
is a reply; each question costs the SuperLink some milliseconds.  Here a site's question is held at the door until the
coordinator has sent it something, and the coordinator asks when a reply has passed the door.

Nothing depends on a notice that is lost: a question is held for ``HOLD`` seconds at most, and then passed on.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress

from protea.engines.flower.replies import ExpectedReplies

HOLD = 20.0  # seconds that a question for messages is held; less than the client's own limit, and than proxies'
LOOK = 1.0  # seconds between looks whether who asked has gone

Bell = tuple[asyncio.AbstractEventLoop, asyncio.Event]


class Notices:
    """Who has something waiting: sites, known by their public keys, and the coordinator."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.replies = ExpectedReplies()
        self.due: Counter[bytes] = Counter()  # messages that were sent and not asked for yet, by key
        self.asking: dict[bytes, Bell] = {}  # held questions, by key
        self.replied = threading.Event()  # whether a reply has come since this was last looked at

    def message_for(self, key: bytes) -> None:
        """Say that a message waits for the site of this key."""
        with self.lock:
            self.due[key] += 1
            bell = self.asking.get(key)
        if bell is not None:
            ring(bell)

    def wake(self) -> None:
        """Let all questions pass: the server behind the door is another one now."""
        with self.lock:
            bells = list(self.asking.values())
            self.due.update(self.asking.keys())
        for bell in bells:
            ring(bell)

    def dismiss_others(self, keys: Collection[bytes]) -> None:
        """Let the questions of all but these keys pass, so that the door can tell them that they are let in no more."""
        with self.lock:
            bells = [bell for key, bell in self.asking.items() if key not in keys]
        for bell in bells:
            ring(bell)

    async def until_message(self, key: bytes, gone: Callable[[], bool], seconds: float = HOLD) -> bool:
        """Wait until there is a message for the site of this key, or ``seconds`` are over.

        False if nobody waits for the answer any more: the other side is ``gone``, or has asked again meanwhile.  A
        question that is passed on then could take a message with it to nowhere.
        """
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        bell = (loop, event)
        with self.lock:
            former = self.asking.get(key)
            self.asking[key] = bell
            if self.due[key]:
                event.set()
        if former is not None:
            ring(former)
        end = loop.time() + seconds
        try:
            while not event.is_set() and loop.time() < end and not gone():
                with suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), min(LOOK, max(0.0, end - loop.time())))
            with self.lock:
                if self.asking.get(key) is not bell or gone():
                    return False
                self.due[key] -= 1
                self.due += Counter()  # without those at zero
                return True
        finally:
            with self.lock:
                if self.asking.get(key) is bell:
                    del self.asking[key]

    def reply_came(self) -> None:
        """Say that a part of a reply has passed the door."""
        self.replied.set()

    def until_reply(self, seconds: float) -> bool:
        """Wait for a reply, but not longer than this; return whether one has come."""
        if not self.replied.wait(seconds):
            return False
        self.replied.clear()
        return True


def ring(bell: Bell) -> None:
    """Wake who waits for an event of another thread's loop."""
    loop, event = bell
    with suppress(RuntimeError):  # the door was closed
        loop.call_soon_threadsafe(event.set)
