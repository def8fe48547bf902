"""Clients pinned to hosts, which are processes or actors, and what happens when a host is gone.

A client stays with the host that first worked for it, and so does its state.  In the first
round clients go, largest first, to whichever host is free; later each host takes its own,
longest first.

A host that is gone is replaced.  Its clients begin at what was last saved of them, wherever a
host is free, and repeat the training since: every draw has a name, so they end where they were,
to the bit.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

from protea.clients.state_files import carry_clients
from protea.clients.worker import Worker
from protea.config.sections import Engine
from protea.core.errors import CheckpointError
from protea.core.payload import nbytes
from protea.engines.messages import job_to_bytes, reply_from_bytes
from protea.federation.jobs import Job, Reply, Watch, ignore

KEPT = 256 * 2**20  # bytes of jobs that are kept to be repeated; then all clients are saved


class Host(Protocol):
    """Where clients live, seen from outside."""

    dead: bool

    def alive(self) -> bool: ...

    def give(self, job: bytes) -> None:
        """Have it begin a job.  That it is gone is noticed when it should answer."""
        ...

    def hear(self) -> bytes | None:
        """The answer to a job; ``None`` if the host is gone."""
        ...

    def save(self, directory: Path) -> None:
        """Write the clients that live there; :class:`CheckpointError` if it cannot."""
        ...

    def load(self, directory: Path) -> None:
        """Forget all clients, which go on from what was saved."""
        ...

    def bury(self) -> str:
        """How it ended, in words that can follow its name."""
        ...

    def stop(self) -> None: ...


H = TypeVar("H", bound=Host)


class Pinned(ABC, Generic[H]):
    """An engine with hosts.  What these are is for subclasses to say."""

    called: ClassVar[str]  # a host, in messages

    def __init__(self, worker: Worker, settings: Engine) -> None:
        self.settings = settings
        self.pool: list[H] = []
        self.folder = tempfile.TemporaryDirectory(prefix="protea-", ignore_cleanup_errors=True)
        self.home: dict[int, H] = {}  # where each client lives
        self.saved: Path | None = None  # where clients were last saved
        self.done: dict[int, list[Job]] = {}  # each client's training since then
        self.behind: set[int] = set()  # clients whose host is gone
        self.due: dict[H, float] = {}  # when a host must have answered
        self.seconds: dict[tuple[str, int], float] = {}  # what a task of a client took last time
        self.size = getattr(worker.build, "size", lambda client: 1)

    @abstractmethod
    def _new(self) -> H | None:
        """One more host, ready for jobs; ``None`` if there is no room for it, and others are left."""

    @abstractmethod
    def _answered(self, hosts: Collection[H]) -> Collection[H]:
        """Wait a second at most; those that have an answer, or are gone."""

    @abstractmethod
    def _bring(self, host: H, client: int, jobs: list[bytes]) -> None:
        """Let a client begin there at what was saved of it, and repeat the jobs."""

    @abstractmethod
    def close(self) -> None: ...

    def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
        replies = []
        try:
            for reply in self._play(jobs):
                replies.append(reply)
                watch(reply)
        except BaseException:
            for host in self.pool:
                host.stop()  # it is in the middle of something that nobody waits for
            raise
        kept = {id(job.down): job.down for done in self.done.values() for job in done}  # many clients may share one
        if sum(map(nbytes, kept.values())) > KEPT:
            self._keep()
        return sorted(replies, key=lambda reply: reply.client)  # float sums depend on order; arrival is luck

    def _play(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Keep every host busy with its own clients, longest first, then with clients that have no home."""
        queues: dict[H, deque[Job]] = {host: deque() for host in self.pool}
        unclaimed: deque[Job] = deque()
        for job in sorted(jobs, key=self._expected, reverse=True):
            queue = queues[self.home[job.client]] if job.client in self.home else unclaimed
            queue.append(job)
        working: dict[H, Job] = {}
        deaths: Counter[int] = Counter()
        while True:
            for host, own in queues.items():
                if host not in working and (queue := own or unclaimed):
                    working[host] = self._give(host, queue.popleft())
            if not working:
                break
            ready = self._answered(working)
            for host in list(working):
                late = host not in ready and time.perf_counter() > self.due[host]
                if host not in ready and not late:
                    continue
                job, answer = working.pop(host), None if late else host.hear()
                if answer is not None:
                    if queue := queues[host] or unclaimed:  # before the answer is looked at: nobody waits for that
                        working[host] = self._give(host, queue.popleft())
                    yield self._take(job, answer)
                    continue
                how = self._end(host, late)
                deaths[job.client] += late or self._to_blame(host)
                unclaimed.extendleft(reversed(queues.pop(host)))
                if (new := self._replace(host)) is not None:
                    queues[new] = deque()
                if deaths[job.client] <= self.settings.retries:
                    unclaimed.appendleft(job)
                else:
                    yield Reply(job.client, job.round, error=f"client {job.client}, round {job.round}: {how}")

    def _give(self, host: H, job: Job) -> Job:
        repeated = 0 if job.client in self.home else self._settle(job.client, host)
        limit = self.settings.limit or float("inf")
        self.due[host] = time.perf_counter() + limit * (1 + repeated)
        host.give(job_to_bytes(job))
        return job

    def _take(self, job: Job, answer: bytes) -> Reply:
        reply = reply_from_bytes(answer)
        self.seconds[job.task, job.client] = reply.seconds
        if job.task == "train" and reply.error is None:
            self.done.setdefault(job.client, []).append(job)
        return reply

    def _expected(self, job: Job) -> tuple[float, float]:
        return self.seconds.get((job.task, job.client), 0.0), self.size(job.client)

    # A host that is gone

    def _end(self, host: H, late: bool) -> str:
        """How a host ended, in words; one that takes too long is ended here."""
        if late:
            host.stop()
            return f"it took longer than engine.limit, {self.settings.limit:g} s."
        return f"its {self.called} {host.bury()}.  If the system ran out of memory, use fewer engine.workers."

    def _to_blame(self, host: H) -> bool:
        """Whether the job may be why its host is gone."""
        return True

    def _replace(self, host: H) -> H | None:
        """A new host, if there is room for one; the clients of the old one have no home now."""
        host.dead = True
        self.due.pop(host, None)
        for client in [client for client, home in self.home.items() if home is host]:
            del self.home[client]
            self.behind.add(client)
        at = self.pool.index(host)
        self.pool.remove(host)
        if (new := self._new()) is not None:
            self.pool.insert(at, new)
        return new

    def _settle(self, client: int, host: H) -> int:
        """Have a client live there, as it was elsewhere; how many jobs it repeats for that."""
        self.home[client] = host
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

    def _keep(self) -> None:
        """Save all clients for ourselves, so that there is little to repeat."""
        before, here = self.saved, Path(self.folder.name) / f"kept-{time.monotonic_ns()}"
        here.mkdir()
        self.save(here)
        if before is not None:
            carry_clients(before, here)
            if before.parent == here.parent:
                shutil.rmtree(before)

    def load(self, directory: Path) -> None:
        self.home.clear()
        self.done.clear()
        self.behind.clear()
        self.saved = directory.absolute()
        for host in self.pool:
            host.load(self.saved)
