"""Many processes on one machine, one thread each.

A client stays in the process that first worked for it, and so does its state.  In the
first round clients go, largest first, to whichever process is free; later each process
takes its own, longest first.  Processes are started once and serve run after run.

A process that is killed is replaced.  Its clients begin at what was last saved of them and
repeat the training since: every draw has a name, so they end where they were, to the bit.

What crosses a pipe between our own processes: jobs and replies as safetensors bytes, and
once per run the recipe by which clients are built.  The data lie in one file that all map.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

from protea.engines import EngineSettings, Job, Reply, Watch, ignore
from protea.engines.pool import Process, cores, pool, sendable
from protea.engines.wire import job_to_bytes, reply_from_bytes
from protea.errors import CheckpointError
from protea.launch import warm
from protea.payload import nbytes
from protea.state import carry_clients
from protea.worker import Worker

KEPT = 256 * 2**20  # bytes of jobs that are kept to be repeated; then all clients are saved


class Processes:
    """Many processes on this machine, clients pinned to them."""

    warm = staticmethod(warm)

    def __init__(self, worker: Worker, settings: EngineSettings | None = None) -> None:
        self.settings = settings or EngineSettings()
        self.pool = pool(self.settings.workers or cores())
        self.folder = tempfile.TemporaryDirectory(prefix="protea-", ignore_cleanup_errors=True)
        self.home: dict[int, Process] = {}  # where each client lives
        self.saved: Path | None = None  # where clients were last saved
        self.done: dict[int, list[Job]] = {}  # each client's training since then
        self.behind: set[int] = set()  # clients that have to repeat it, in a new process
        self.due: dict[Process, float] = {}  # when a process must have answered
        self.seconds: dict[tuple[str, int], float] = {}  # what a task of a client took last time
        self.size = getattr(worker.build, "size", lambda client: 1)
        try:
            with sendable(worker):
                self.plan = worker.plan(Path(self.folder.name), len(self.pool))
                for process in self.pool:
                    self._open(process)
        except BaseException:
            self.close()
            raise

    def _open(self, process: Process) -> None:
        process.ask("move", (Path.cwd(), sys.path))  # it may have been started elsewhere
        process.ask("open", self.plan)
        if self.saved is not None:
            process.ask("load", self.saved)

    def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
        replies = []
        try:
            for reply in self._play(jobs):
                replies.append(reply)
                watch(reply)
        except BaseException:
            for process in self.pool:
                process.stop()  # it is in the middle of something that nobody waits for
            raise
        if sum(nbytes(job.down) for done in self.done.values() for job in done) > KEPT:
            self._keep()
        return sorted(replies, key=lambda reply: reply.client)  # float sums depend on order; arrival is luck

    def _play(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Keep every process busy with its own clients, longest first, then with clients that have no home yet."""
        queues: dict[Process, deque[Job]] = {process: deque() for process in self.pool}
        unclaimed: deque[Job] = deque()
        for job in sorted(jobs, key=self._expected, reverse=True):
            queue = queues[self.home[job.client]] if job.client in self.home else unclaimed
            queue.append(job)
        working: dict[Process, Job] = {}
        deaths: Counter[int] = Counter()
        while True:
            for process, own in queues.items():
                if process not in working and (queue := own or unclaimed):
                    working[process] = self._give(process, queue.popleft())
            if not working:
                break
            # A Ctrl-C that comes just before the system waits is noticed only when that ends: wait in short turns.
            ready = wait([process.pipe for process in working], timeout=1)
            for process in list(working):
                late = process.pipe not in ready and time.perf_counter() > self.due[process]
                if process.pipe not in ready and not late:
                    continue
                job, answer = working.pop(process), None if late else process.hear()
                if answer is not None:
                    yield self._take(job, answer)
                    continue
                how = self._end(process, late)
                new = self._replace(process)
                queues[new] = queues.pop(process)
                deaths[job.client] += 1
                if deaths[job.client] <= self.settings.retries:
                    queues[new].appendleft(job)
                else:
                    yield Reply(job.client, job.round, error=f"client {job.client}, round {job.round}: {how}")

    def _give(self, process: Process, job: Job) -> Job:
        self.home[job.client] = process
        repeated = self._catch_up(job.client)
        limit = self.settings.limit or float("inf")
        self.due[process] = time.perf_counter() + limit * (1 + repeated)
        process.tell("job", job_to_bytes(job))
        return job

    def _take(self, job: Job, answer: bytes) -> Reply:
        reply = reply_from_bytes(answer)
        self.seconds[job.task, job.client] = reply.seconds
        if job.task == "train" and reply.error is None:
            self.done.setdefault(job.client, []).append(job)
        return reply

    def _expected(self, job: Job) -> tuple[float, float]:
        return self.seconds.get((job.task, job.client), 0.0), self.size(job.client)

    # A process that is gone

    def _end(self, process: Process, late: bool) -> str:
        """How a process ended, in words; one that takes too long is ended here."""
        if late:
            process.stop()
            return f"it took longer than engine.limit, {self.settings.limit:g} s."
        return f"its worker process {process.bury()}.  If the system ran out of memory, use fewer engine.workers."

    def _replace(self, process: Process) -> Process:
        """A new process, to which the clients of the old one go."""
        process.dead = True
        (new,) = pool(1)
        self.pool[self.pool.index(process)] = new
        self._open(new)
        for client in [client for client, home in self.home.items() if home is process]:
            self.home[client] = new
            self.behind.add(client)
        return new

    def _catch_up(self, client: int) -> int:
        """Let a client in a new process repeat its training since it was saved; how many jobs these are."""
        if client not in self.behind:
            return 0
        self.behind.discard(client)
        done = self.done.get(client, [])
        self.home[client].tell("repeat", (client, [job_to_bytes(job) for job in done]))
        return len(done)

    # State

    def save(self, directory: Path) -> None:
        for process in list(self.pool):
            self._save(process, directory.absolute())
        self.saved = directory.absolute()
        self.done.clear()

    def _save(self, process: Process, directory: Path, tries: int = 3) -> None:
        if process.dead or not process.process.is_alive():
            process = self._replace(process)
        for client in sorted(self.behind):
            self._catch_up(client)
        try:
            process.ask("save", directory)
        except CheckpointError:
            if not process.dead or tries == 1:
                raise
            self._save(process, directory, tries - 1)

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
        for process in self.pool:
            process.ask("load", self.saved)

    def close(self) -> None:
        for process in self.pool:
            with suppress(CheckpointError):  # it died meanwhile
                process.ask("close", None)
            process.taken = False
        self.folder.cleanup()
