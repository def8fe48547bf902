"""The jobs of one call of ``map``, for hosts that clients are pinned to."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from protea.federation.jobs import Job

H = TypeVar("H")


class HostQueue(Generic[H]):
    """Which jobs wait, which host works on what and until when, and which jobs were lost with their host.

    ``jobs`` come in the order in which they should begin.  A job goes to the host of its client (``host_of``), or to
    whichever host is free if the client has none yet.  A job that was lost more than ``retries`` times is given up.
    """

    def __init__(self, jobs: Sequence[Job], hosts: Sequence[H], host_of: Mapping[int, H], retries: int) -> None:
        self.retries = retries
        self.own: dict[H, deque[Job]] = {host: deque() for host in hosts}  # waiting for their client's host
        self.free: deque[Job] = deque()  # waiting for any host
        self.working: dict[H, Job] = {}
        self.due: dict[H, float] = {}  # when a working host must have answered, by time.perf_counter()
        self.losses: Counter[int] = Counter()  # hosts lost, by the client whose job they worked on
        for job in jobs:
            waiting = self.own[host_of[job.client]] if job.client in host_of else self.free
            waiting.append(job)

    def idle(self) -> list[H]:
        """Give the hosts that work on nothing."""
        return [host for host in self.own if host not in self.working]

    def begin(self, host: H) -> Job | None:
        """Give a host its next job, which it works on from now; ``None`` if there is none for it."""
        if not (waiting := self.own[host] or self.free):
            return None
        self.working[host] = waiting.popleft()
        self.due[host] = math.inf
        return self.working[host]

    def must_answer(self, host: H, seconds: float) -> None:
        """Set the time that a working host has from now."""
        self.due[host] = time.perf_counter() + seconds

    def late(self, host: H) -> bool:
        """Whether a working host should have answered by now."""
        return time.perf_counter() > self.due[host]

    def finish(self, host: H) -> Job:
        """Take note of a host's answer; give the job that it answers."""
        del self.due[host]
        return self.working.pop(host)

    def lose(self, host: H, to_blame: bool) -> Job | None:
        """Take note that a host is gone, and let its jobs wait for any host; give the job that is given up, if one is.

        With ``to_blame`` the job that it worked on may be why it is gone, and counts as lost once more.
        """
        job = self.finish(host)
        self.losses[job.client] += to_blame
        self.free.extendleft(reversed(self.own.pop(host)))
        if self.losses[job.client] > self.retries:
            return job
        self.free.appendleft(job)
        return None

    def add(self, host: H) -> None:
        """Let a new host take jobs."""
        self.own[host] = deque()
