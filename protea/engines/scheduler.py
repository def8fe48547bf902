"""Clients pinned to hosts, which are processes or actors, and what happens when a host is gone.

A client stays with the host that first worked for it, and so does its state.  In the first
round clients go, largest first, to whichever host is free; later each host takes its own,
longest first.

A host that is gone is replaced.  Its clients begin at what was last saved of them, wherever a
host is free, and repeat the training since: every draw has a name, so they end where they were,
to the bit.
"""

from __future__ import annotations

import math
import shutil
import time
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

from protea.clients.plan import WorkerPlan
from protea.clients.state_files import carry_clients
from protea.config.sections import Engine
from protea.core.errors import CheckpointError
from protea.core.message import nbytes
from protea.core.scratch import ScratchFolder
from protea.engines.base import EngineBase
from protea.engines.host_queue import HostQueue
from protea.engines.messages import job_to_bytes, reply_from_bytes
from protea.federation.jobs import CHANGING, Job, Reply, Watch, ignore

KEPT = 256 * 2**20  # bytes of jobs that are kept to be repeated; then all clients are saved


class Host(Protocol):
    """A process or actor in which clients live, as the engine sees it."""

    dead: bool  # it is known to be gone

    def alive(self) -> bool:
        """Whether it is there; it may be gone without our knowing."""
        ...

    def give(self, job: bytes) -> None:
        """Have it begin a job.  That it is gone is noticed when it should answer."""
        ...

    def hear(self) -> bytes | None:
        """Give the answer to a job; ``None`` if the host is gone."""
        ...

    def save(self, directory: Path) -> None:
        """Write the clients that live there; :class:`CheckpointError` if it cannot."""
        ...

    def load(self, directory: Path) -> None:
        """Forget all clients, which go on from what was saved."""
        ...

    def bury(self) -> str:
        """Tidy up after a host that is gone; say how it ended, in words that can follow its name."""
        ...

    def stop(self) -> None:
        """End it at once."""
        ...


H = TypeVar("H", bound=Host)


class PinnedEngine(EngineBase, Generic[H]):
    """An engine that pins clients to hosts.  What hosts are, and how they start, is for subclasses to say."""

    host_name: ClassVar[str]  # what a host is called in messages

    def __init__(self, plan: WorkerPlan, settings: Engine) -> None:
        self.plan, self.settings = plan, settings
        self.pool: list[H] = []
        self.folder = ScratchFolder()
        self.host_of: dict[int, H] = {}  # by client
        self.saved: Path | None = None  # where clients were last saved
        self.done: dict[int, list[Job]] = {}  # each client's trainings since then, and other jobs that change it
        self.behind: set[int] = set()  # clients whose host is gone
        self.seconds: dict[tuple[str, int], float] = {}  # what a task of a client took last time

    @abstractmethod
    def _new(self) -> H | None:
        """Start one more host, ready for jobs; ``None`` if there is no room for it, and others are left."""

    @abstractmethod
    def _answered(self, hosts: Collection[H]) -> Collection[H]:
        """Wait a second at most; give the hosts that have an answer, or are gone."""

    @abstractmethod
    def _bring(self, host: H, client: int, jobs: list[bytes]) -> None:
        """Let a client begin on a host at what was saved of it, and repeat the jobs."""

    def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
        replies = []
        try:
            for reply in self._replies(jobs):
                replies.append(reply)
                watch(reply)
        except BaseException:
            for host in self.pool:
                host.stop()  # it is in the middle of something that nobody waits for
            raise
        self._limit_repeats()
        return sorted(replies, key=lambda reply: reply.client)  # float sums depend on order; arrival is luck

    def _replies(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Keep every host busy until all jobs are done, longest first; give replies as they come."""
        ordered = sorted(jobs, key=self._expected, reverse=True)
        queue = HostQueue(ordered, self.pool, self.host_of, self.settings.retries)
        while True:
            for host in queue.idle():
                self._give(queue, host)
            if not queue.working:
                return
            ready = self._answered(queue.working)
            for host in list(queue.working):
                if host in ready:
                    yield from self._heard(queue, host)
                elif queue.late(host):
                    yield from self._lost(queue, host, late=True)

    def _give(self, queue: HostQueue[H], host: H) -> None:
        """Have a host begin its next job, if there is one."""
        job = queue.begin(host)
        if job is None:
            return
        repeated = 0 if job.client in self.host_of else self._settle(job.client, host)
        queue.must_answer(host, (self.settings.limit or math.inf) * (1 + repeated))
        host.give(job_to_bytes(job))

    def _heard(self, queue: HostQueue[H], host: H) -> Iterator[Reply]:
        """Take the answer of a host that has one, or is gone."""
        answer = host.hear()
        if answer is None:
            yield from self._lost(queue, host, late=False)
            return
        job = queue.finish(host)
        self._give(queue, host)  # before the answer is looked at: nobody waits for that
        reply = reply_from_bytes(answer)
        self.seconds[job.task, job.client] = reply.seconds
        if job.task in CHANGING and reply.error is None:
            self.done.setdefault(job.client, []).append(job)
        yield reply

    def _lost(self, queue: HostQueue[H], host: H, late: bool) -> Iterator[Reply]:
        """Replace a host that is gone or takes too long; a job that was lost too often is a reply that says so."""
        how = self._end(host, late)
        given_up = queue.lose(host, late or self._to_blame(host))
        if (new := self._replace(host)) is not None:
            queue.add(new)
        if given_up is not None:
            error = f"client {given_up.client}, round {given_up.round}: {how}"
            yield Reply(given_up.client, given_up.round, error=error)

    def _expected(self, job: Job) -> tuple[float, float]:
        """Give how long a job may take: the seconds of the last one of its kind, then the client's samples."""
        return self.seconds.get((job.task, job.client), 0.0), self.plan.builder.size(job.client)

    # A host that is gone

    def _end(self, host: H, late: bool) -> str:
        """End a host that takes too long, or tidy up after one that is gone; say in words how it ended."""
        if late:
            host.stop()
            return f"it took longer than engine.limit, {self.settings.limit:g} s."
        return f"its {self.host_name} {host.bury()}.  If the system ran out of memory, use fewer engine.workers."

    def _to_blame(self, host: H) -> bool:
        """Whether the job may be why its host is gone."""
        return True

    def _replace(self, host: H) -> H | None:
        """Start a new host, if there is room for one; the clients of the old one have none now."""
        host.dead = True
        for client in [client for client, its in self.host_of.items() if its is host]:
            del self.host_of[client]
            self.behind.add(client)
        at = self.pool.index(host)
        self.pool.remove(host)
        if (new := self._new()) is not None:
            self.pool.insert(at, new)
        return new

    def _settle(self, client: int, host: H) -> int:
        """Pin a client to a host, in the state it had elsewhere; give the number of jobs that it repeats for that."""
        self.host_of[client] = host
        if not self._absent(client):
            return 0
        self.behind.discard(client)
        done = self.done.get(client, [])
        self._bring(host, client, [job_to_bytes(job) for job in done])
        return len(done)

    def _absent(self, client: int) -> bool:
        """Whether a host that has not met the client lacks something of it."""
        return client in self.behind

    # State

    def save(self, directory: Path) -> None:
        for tries_left in (2, 1, 0):
            for host in [host for host in self.pool if host.dead or not host.alive()]:
                self._replace(host)
            for number, client in enumerate(sorted(self.behind)):
                self._settle(client, self.pool[number % len(self.pool)])
            try:
                for host in self.pool:
                    host.save(directory.absolute())
                break
            except CheckpointError:
                if not tries_left or not any(host.dead for host in self.pool):
                    raise
        self.saved = directory.absolute()
        self.done.clear()

    def _limit_repeats(self) -> None:
        """Save all clients for ourselves once the jobs that a new host would have to repeat take much memory."""
        kept = {id(job.down): job.down for done in self.done.values() for job in done}  # many clients may share one
        if sum(map(nbytes, kept.values())) <= KEPT:
            return
        before, here = self.saved, Path(self.folder.name) / f"kept-{time.monotonic_ns()}"
        here.mkdir()
        self.save(here)
        if before is not None:
            carry_clients(before, here)
            if before.parent == here.parent:
                shutil.rmtree(before)

    def load(self, directory: Path) -> None:
        self.host_of.clear()
        self.done.clear()
        self.behind.clear()
        self.saved = directory.absolute()
        for host in self.pool:
            host.load(self.saved)
