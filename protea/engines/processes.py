"""Many processes on one machine, one thread each.

A client stays in the process that first worked for it, and so does its state.  In the
first round clients go, largest first, to whichever process is free; later each process
takes its own, longest first.  Processes are started once and serve run after run.

What crosses a pipe between our own processes: jobs and replies as safetensors bytes, and
once per run the recipe by which clients are built.  The data lie in one file that all map.
"""

from __future__ import annotations

import atexit
import multiprocessing as mp
import os
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from protea.engines import EngineSettings, Job, Reply, Watch, ignore
from protea.errors import CheckpointError, ClientError, ConfigError
from protea.payload import from_bytes, to_bytes
from protea.worker import Worker


class Processes:
    """Many processes on this machine, clients pinned to them."""

    def __init__(self, worker: Worker, settings: EngineSettings | None = None) -> None:
        settings = settings or EngineSettings()
        self.pool = pool(settings.workers or os.cpu_count() or 1)
        self.folder = tempfile.TemporaryDirectory(prefix="protea-", ignore_cleanup_errors=True)
        self.home: dict[int, Process] = {}  # where each client lives
        self.lost: dict[int, str] = {}  # clients whose process died, and how
        self.seconds: dict[tuple[str, int], float] = {}  # what a task of a client took last time
        self.size = getattr(worker.build, "size", lambda client: 1)
        lend = getattr(worker.build, "lend", None)
        build = lend(Path(self.folder.name)) if lend else worker.build
        for process in self.pool:
            process.ask("open", (worker.method, build, worker.rng.root, worker.threads))

    def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
        try:
            replies = self._map(jobs, watch)
        except BaseException:
            _discard(self.pool)  # they are in the middle of something that nobody waits for
            raise
        return sorted(replies, key=lambda reply: reply.client)  # float sums depend on order; arrival is luck

    def _map(self, jobs: Sequence[Job], watch: Watch) -> list[Reply]:
        ordered = sorted(jobs, key=self._expected, reverse=True)
        unclaimed = deque(job for job in ordered if job.client not in self.home)
        queues = {p: deque(job for job in ordered if self.home.get(job.client) is p) for p in self.pool}
        working: dict[Process, Job] = {}
        replies: list[Reply] = []

        def give_work(process: Process) -> None:
            queue = queues[process] or unclaimed
            while queue and not process.dead:
                job = queue.popleft()
                self.home[job.client] = process
                if process.tell("job", to_bytes(job.down, task=job.task, round=job.round, client=job.client)):
                    working[process] = job
                    return
                take(process, job)
                queue = queues[process] or unclaimed

        def take(process: Process, job: Job) -> None:
            working.pop(process, None)
            answer = process.hear()
            if answer is None:
                self._bury(process)
                stranded = [job, *queues[process]]
                queues[process].clear()
                found = [Reply(j.client, error=self.lost[j.client]) for j in stranded]
            else:
                up, about = from_bytes(answer)
                found = [Reply(up=up, **about)]
                self.seconds[job.task, job.client] = found[0].seconds
            for reply in found:
                replies.append(reply)
                watch(reply)

        for process in self.pool:
            for job in [j for j in queues[process] if process.dead or j.client in self.lost]:
                queues[process].remove(job)
                replies.append(Reply(job.client, error=self.lost[job.client]))
            give_work(process)
        while working:
            ready = wait([p.pipe for p in working])
            for process in [p for p in working if p.pipe in ready]:
                take(process, working[process])
                give_work(process)
        if unclaimed:
            raise ClientError("No worker process is left; see the errors above, and start the run again.")
        return replies

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
            process.ask("save", directory)

    def load(self, directory: Path) -> None:
        self.home.clear()
        for process in self.pool:
            process.ask("load", directory)

    def close(self) -> None:
        for process in self.pool:
            if not process.dead:
                process.ask("close", None)
        self.folder.cleanup()


class Process:
    """One worker process, seen from outside."""

    def __init__(self, context: Any) -> None:
        theirs: Connection
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=serve, args=(theirs,), daemon=True, name="protea-worker")
        self.process.start()
        theirs.close()
        self.dead = False

    def tell(self, verb: str, what: object) -> bool:
        try:
            self.pipe.send((verb, what))
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def hear(self) -> bytes | None:
        """The next answer; ``None`` if the process is gone."""
        try:
            return self.pipe.recv_bytes()
        except (EOFError, ConnectionResetError):
            return None

    def ask(self, verb: str, what: object) -> None:
        """Tell, and wait until it is done."""
        if self.dead or not self.tell(verb, what):
            return
        if answer := self.hear():
            raise (ConfigError if verb == "open" else CheckpointError)(answer.decode())

    def bury(self) -> str:
        self.dead = True
        self.process.join(timeout=5)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"was killed ({signal.Signals(-code).name})"
        return f"ended (exit code {code})"

    def stop(self) -> None:
        self.dead = True
        self.process.kill()
        self.process.join(timeout=5)
        self.pipe.close()


_pool: list[Process] = []


def pool(workers: int) -> list[Process]:
    """``workers`` running processes: those that are there, and new ones where needed."""
    _pool[:] = [process for process in _pool if not process.dead and process.process.is_alive()]
    if len(_pool) < workers:
        context = mp.get_context("spawn" if sys.platform == "win32" else "forkserver")
        if sys.platform != "win32":
            context.set_forkserver_preload(["protea.engines.preload"])
        _pool.extend(Process(context) for _ in range(workers - len(_pool)))
    return _pool[:workers]


@atexit.register
def shutdown() -> None:
    """End all worker processes."""
    _discard(list(_pool))


def _discard(processes: Sequence[Process]) -> None:
    for process in processes:
        process.stop()


def serve(pipe: Connection) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends us
    torch.set_num_threads(1)
    worker: Worker | None = None
    while True:
        try:
            verb, what = pipe.recv()
        except (EOFError, ConnectionResetError):
            return  # the parent is gone
        if verb == "job":
            assert worker is not None
            down, about = from_bytes(what)
            reply = worker.run(Job(down=down, **about))
            about = {k: getattr(reply, k) for k in ("client", "samples", "metrics", "seconds", "error")}
            pipe.send_bytes(to_bytes(reply.up, **about))
            continue
        try:
            if verb == "open":
                method, build, seed, threads = what
                worker = Worker(method, build, seed, threads)
            elif verb == "close":
                worker = None
            elif worker is not None:
                getattr(worker, verb)(what)  # save, load
            pipe.send_bytes(b"")
        except Exception as error:
            pipe.send_bytes(f"{type(error).__name__}: {error}".encode())
