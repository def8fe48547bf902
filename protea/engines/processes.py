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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from pickle import PicklingError
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
                process.ask("open", (worker.method, build, worker.rng.root, worker.threads))
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
            ready = wait([process.pipe for process in working])
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
        self.taken = True  # by an engine

    def tell(self, verb: str, what: object) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # a dead process is noticed when it should answer
            self.pipe.send((verb, what))

    def hear(self) -> bytes | None:
        """The next answer; ``None`` if the process is gone."""
        try:
            return self.pipe.recv_bytes()
        except (EOFError, ConnectionResetError):
            return None

    def ask(self, verb: str, what: object) -> None:
        """Tell, and wait until it is done."""
        if self.dead:
            return
        self.tell(verb, what)
        try:
            answer = self.hear()
        except BaseException:
            self.stop()  # nobody waits for its answer any more
            raise
        if answer is None and verb == "move":
            raise ConfigError(
                f"A worker process {self.bury()} before it had any work; what it wrote is above.\n"
                f'  A script must be a file and run under `if __name__ == "__main__":`; or set engine.name=inline.'
            )
        if answer != b"":
            found = f"a worker process {self.bury()}" if answer is None else answer.decode()
            raise (ConfigError if verb == "open" else CheckpointError)(f"{verb}: {found}")

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


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_all: list[Process] = []


def pool(workers: int) -> list[Process]:
    """``workers`` processes that no other engine has: those that are there, and new ones where needed."""
    _all[:] = [process for process in _all if not process.dead and process.process.is_alive()]
    free = [process for process in _all if not process.taken][:workers]
    context = mp.get_context("spawn" if sys.platform == "win32" else "forkserver")
    if sys.platform != "win32":
        context.set_forkserver_preload(["protea.engines.preload"])
    new = [Process(context) for _ in range(workers - len(free))]
    _all.extend(new)
    for process in free:
        process.taken = True
    return free + new


@atexit.register
def shutdown() -> None:
    """End all worker processes."""
    for process in _all:
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
        except Exception as error:  # what was sent needs a module that is not to be found here
            pipe.send_bytes(f"{type(error).__name__}: {error}".encode())
            continue
        if verb == "job":
            assert worker is not None
            down, about = from_bytes(what)
            reply = worker.run(Job(down=down, **about))
            about = {k: getattr(reply, k) for k in ("client", "samples", "metrics", "seconds", "error")}
            pipe.send_bytes(to_bytes(reply.up, **about))
            continue
        try:
            if verb == "move":
                folder, sys.path[:] = what
                os.chdir(folder)
            elif verb == "open":
                method, build, seed, threads = what
                worker = Worker(method, build, seed, threads)
            elif verb == "close":
                worker = None
            elif worker is not None:
                getattr(worker, verb)(what)  # save, load
            pipe.send_bytes(b"")
        except Exception as error:
            pipe.send_bytes(f"{type(error).__name__}: {error}".encode())
