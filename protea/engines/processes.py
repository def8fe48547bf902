"""Many processes on one machine, one thread each.

A client stays in the process that first worked for it, and so does its state.  In the
first round clients go, largest first, to whichever process is free; later each process
takes its own, longest first.  Processes are started once and serve run after run.

What crosses a pipe between our own processes: jobs and replies as safetensors bytes, and
once per run the recipe by which clients are built.  The data lie in one file that all map.
"""

from __future__ import annotations

import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from pickle import PicklingError

from protea.engines import EngineSettings, Job, Reply, Watch, ignore
from protea.engines.pool import Process, cores, pool
from protea.errors import CheckpointError, ClientError, ConfigError
from protea.payload import from_bytes, to_bytes
from protea.worker import Worker


class Processes:
    """Many processes on this machine, clients pinned to them."""

    def __init__(self, worker: Worker, settings: EngineSettings | None = None) -> None:
        settings = settings or EngineSettings()
        self.pool = pool(settings.workers or cores())
        self.folder = tempfile.TemporaryDirectory(prefix="protea-", ignore_cleanup_errors=True)
        self.home: dict[int, Process] = {}  # where each client lives
        self.lost: dict[int, str] = {}  # clients whose process died, and how
        self.seconds: dict[tuple[str, int], float] = {}  # what a task of a client took last time
        self.size = getattr(worker.build, "size", lambda client: 1)
        lend = getattr(worker.build, "lend", None)
        try:
            build = lend(Path(self.folder.name)) if lend else worker.build
            for process in self.pool:
                process.ask("move", (Path.cwd(), sys.path))  # it may have been started elsewhere
                process.ask("open", (worker.method, build, worker.rng.root, worker.threads, worker.local_prototypes))
        except (PicklingError, AttributeError, TypeError) as error:
            self.close()
            raise ConfigError(
                f"{type(worker.method).__name__} and its clients cannot be sent to worker processes: {error}\n"
                f"  Define the class at the top of a file, not in a function or a notebook; or set engine.name=inline."
            ) from error
        except BaseException:
            self.close()
            raise

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
        return sorted(replies, key=lambda reply: reply.client)  # float sums depend on order; arrival is luck

    def _play(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Keep every process busy with its own clients, longest first, then with clients that have no home yet."""
        queues: dict[Process, deque[Job]] = {process: deque() for process in self.pool}
        unclaimed: deque[Job] = deque()
        for job in sorted(jobs, key=self._expected, reverse=True):
            if job.client in self.lost:
                yield Reply(job.client, error=self.lost[job.client])
            elif job.client in self.home:
                queues[self.home[job.client]].append(job)
            else:
                unclaimed.append(job)
        working: dict[Process, Job] = {}
        while True:
            for process, own in queues.items():
                if process not in working and not process.dead and (queue := own or unclaimed):
                    working[process] = self._give(process, queue.popleft())
            if not working:
                break
            # A Ctrl-C that comes just before the system waits is noticed only when that ends: wait in short turns.
            ready = wait([process.pipe for process in working], timeout=1)
            for process in [process for process in working if process.pipe in ready]:
                yield self._take(process, working.pop(process))
                while process.dead and queues[process]:
                    yield Reply(client := queues[process].popleft().client, error=self.lost[client])
        if unclaimed:
            raise ClientError("No worker process is left: all were killed.  Use fewer engine.workers, or more memory.")

    def _give(self, process: Process, job: Job) -> Job:
        self.home[job.client] = process
        process.tell("job", to_bytes(job.down, task=job.task, round=job.round, client=job.client))
        return job

    def _take(self, process: Process, job: Job) -> Reply:
        answer = process.hear()
        if answer is None:
            self._bury(process)
            return Reply(job.client, error=self.lost[job.client])
        up, about = from_bytes(answer)
        reply = Reply(up=up, **about)
        self.seconds[job.task, job.client] = reply.seconds
        return reply

    def _expected(self, job: Job) -> tuple[float, float]:
        return self.seconds.get((job.task, job.client), 0.0), self.size(job.client)

    def _bury(self, process: Process) -> None:
        how = process.bury()
        for client in [c for c, p in self.home.items() if p is process]:
            self.lost[client] = (
                f"client {client}: its worker process {how}, and the client's state with it.  If the system ran out "
                f"of memory, use fewer engine.workers."
            )

    def save(self, directory: Path) -> None:
        for process in self.pool:
            process.ask("save", directory.absolute())

    def load(self, directory: Path) -> None:
        self.home.clear()
        for process in self.pool:
            process.ask("load", directory.absolute())

    def close(self) -> None:
        for process in self.pool:
            with suppress(CheckpointError):  # it died meanwhile
                process.ask("close", None)
            process.taken = False
        self.folder.cleanup()
