"""Worker processes: started once from a forkserver that has torch in place, and lent to run after run."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from pickle import PicklingError
from typing import Any

import torch

from protea.clients.plan import WorkerPlan
from protea.clients.worker import Worker
from protea.core.errors import CheckpointError, ConfigError
from protea.engines.messages import job_from_bytes, reply_to_bytes
from protea.engines.processes.forkserver import processes


class WorkerProcess:
    """One worker process, as the engine sees it."""

    def __init__(self, context: Any) -> None:
        theirs: Connection
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=serve, args=(theirs,), daemon=True, name="protea-worker")
        self.process.start()
        theirs.close()
        self.dead = False
        self.taken = True  # an engine uses it

    def alive(self) -> bool:
        return self.process.is_alive()

    def lend(self) -> None:
        """Let an engine use it, and no other."""
        self.taken = True

    def give_back(self) -> None:
        """Let another engine use it."""
        self.taken = False

    def tell(self, verb: str, what: object) -> None:
        """Send an order, and do not wait."""
        with suppress(BrokenPipeError, ConnectionResetError):  # a dead process is noticed when it should answer
            self.pipe.send((verb, what))

    def hear(self) -> bytes | None:
        """Give the next answer; ``None`` if the process is gone."""
        try:
            return self.pipe.recv_bytes()
        except (EOFError, ConnectionResetError):
            return None

    def ask(self, verb: str, what: object) -> None:
        """Send an order, and wait until it is done."""
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

    def give(self, job: bytes) -> None:
        self.tell("job", job)

    def save(self, directory: Path) -> None:
        self.ask("save", directory)

    def load(self, directory: Path) -> None:
        self.ask("load", directory)

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
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def sendable(plan: WorkerPlan) -> Iterator[None]:
    """Within, a plan is sent to other processes; what cannot be sent is an error that says what to do."""
    try:
        yield
    except (PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{type(plan.method).__name__} and its clients cannot be sent to other processes: {error}\n"
            f"  Define the class at the top of a file, not in a function or a notebook; or set engine.name=inline."
        ) from error


_all: list[WorkerProcess] = []


def pool(workers: int) -> list[WorkerProcess]:
    """Give ``workers`` processes that no other engine uses: those that are there, and new ones where needed."""
    _all[:] = [process for process in _all if not process.dead and process.process.is_alive()]
    free = [process for process in _all if not process.taken][:workers]
    new = [WorkerProcess(processes()) for _ in range(workers - len(free))]
    _all.extend(new)
    for process in free:
        process.lend()
    return free + new


@atexit.register
def shutdown() -> None:
    """End all worker processes."""
    for process in _all:
        process.stop()


def serve(pipe: Connection) -> None:
    """Do what the engine orders, for as long as it is there.  This is the whole life of a worker process."""
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
        if verb in ("job", "repeat"):
            assert worker is not None
            if verb == "repeat":
                worker.repeat(what[0], [job_from_bytes(each) for each in what[1]])
                continue
            pipe.send_bytes(reply_to_bytes(worker.run(job_from_bytes(what))))
            continue
        try:
            match verb:
                case "move":
                    folder, sys.path[:] = what
                    os.chdir(folder)
                case "open":
                    worker = Worker(what)
                case "close":
                    worker = None
                case "save" if worker is not None:
                    worker.save(what)
                case "load" if worker is not None:
                    worker.load(what)
            pipe.send_bytes(b"")
        except Exception as error:
            pipe.send_bytes(f"{type(error).__name__}: {error}".encode())
