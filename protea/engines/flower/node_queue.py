"""The jobs of one call of ``map``, for nodes that answer over a network."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from protea.federation.jobs import Job


@dataclass(frozen=True)
class SentJobs:
    """Jobs on their way to one node, all in one message."""

    jobs: list[Job]
    place: int  # the name of the node
    node: int  # its id
    since: str  # when it was started
    at: float = 0.0  # when they were sent, by the clock that only goes forward


class NodeQueue:
    """Which jobs wait for their node, which were sent to it, and how often a node was lost with its jobs.

    All jobs of one node (``place(client)``) go in one message.  A node that was lost more than ``retries`` times is
    given up; after ``seconds`` all are.
    """

    def __init__(self, jobs: Sequence[Job], place: Callable[[int], int], retries: int, seconds: float) -> None:
        self.retries = retries
        self.begun = time.monotonic()
        self.end = self.begun + seconds
        self.waits: dict[int, float] = {}  # by place, since when its jobs wait for a node that was lost
        self.waiting: dict[int, list[Job]] = {}  # by place
        self.sent: dict[str, SentJobs] = {}  # by the id of the message
        self.losses: Counter[int] = Counter()  # by place
        for job in sorted(jobs, key=lambda job: job.client):
            self.waiting.setdefault(place(job.client), []).append(job)

    def __bool__(self) -> bool:
        """Whether anything is left to wait for."""
        return bool(self.waiting or self.sent)

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.end - time.monotonic()

    def due(self, online: Mapping[int, int]) -> Iterator[tuple[int, int, list[Job]]]:
        """Give place, node and jobs of what can be sent now; ``online`` has the nodes that are there, by place."""
        for place, node in online.items():
            if place in self.waiting:
                yield place, node, self.waiting[place]

    def send(self, message: str, place: int, node: int, since: str) -> None:
        """Take note that the jobs of a place are on their way."""
        self.sent[message] = SentJobs(self.waiting.pop(place), place, node, since, time.monotonic())

    def answer(self, message: str) -> SentJobs | None:
        """Take note of an answer; give what it answers, or ``None`` if nobody waits for it."""
        return self.sent.pop(message, None)

    def lose(self, lost: SentJobs) -> None:
        """Let jobs wait again that were lost with their node."""
        self.waiting[lost.place] = lost.jobs
        self.waits[lost.place] = time.monotonic()
        self.losses[lost.place] += 1

    def lose_restarted(self, started: Mapping[int, str]) -> None:
        """Let jobs wait again whose node was started anew; ``started`` says when each node that is there was."""
        for message, sent in list(self.sent.items()):
            if started.get(sent.node, sent.since) != sent.since:
                self.lose(self.sent.pop(message))

    def send_again(self) -> None:
        """Let all wait again that is on its way; the connection was lost, which is no fault of a node's."""
        self.waiting |= {sent.place: sent.jobs for sent in self.sent.values()}
        self.waits |= {sent.place: time.monotonic() for sent in self.sent.values()}
        self.sent.clear()

    def give_up(self) -> Iterator[tuple[Job, int]]:
        """Give the jobs of nodes that were lost too often, each with how often, and wait for them no longer."""
        for place in [place for place in self.waiting if self.losses[place] > self.retries]:
            yield from ((job, self.losses[place]) for job in self.waiting.pop(place))

    def waited(self) -> dict[int, float]:
        """Give for each place without an answer the seconds since its jobs were sent, or began to wait for it."""
        now = time.monotonic()
        found = {place: now - self.waits.get(place, self.begun) for place in self.waiting}
        return found | {sent.place: now - sent.at for sent in self.sent.values()}

    def drop(self, place: int) -> list[Job]:
        """Give the jobs of a place, and wait for them no longer."""
        found = self.waiting.pop(place, [])
        for message, sent in list(self.sent.items()):
            if sent.place == place:
                found = self.sent.pop(message).jobs
        return found

    def expire(self) -> list[Job]:
        """Give all jobs that are left once the deadline is over, and wait for them no longer."""
        if self.left >= 0:
            return []
        late = [job for jobs in (*self.waiting.values(), *(sent.jobs for sent in self.sent.values())) for job in jobs]
        self.waiting.clear()
        self.sent.clear()
        return late
