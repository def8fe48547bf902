"""Many processes on one machine, one thread each.

Processes are started once and serve run after run.  Clients stay in theirs, and one that is
killed is replaced: see :mod:`protea.engines.scheduler`.

What crosses a pipe between our own processes: jobs and replies as safetensors bytes, and
once per run the recipe by which clients are built.  The data lie in one file that all map.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

from protea.clients.worker import Worker
from protea.config.sections import Engine
from protea.core.errors import CheckpointError
from protea.engines.processes.forkserver import warm
from protea.engines.processes.pool import Process, cores, pool, sendable
from protea.engines.scheduler import Pinned


class Processes(Pinned[Process]):
    """Many processes on this machine, clients pinned to them."""

    warm = staticmethod(warm)
    called = "worker process"

    def __init__(self, worker: Worker, settings: Engine | None = None) -> None:
        settings = settings or Engine()
        settings.refuse_cluster()
        super().__init__(worker, settings)
        self.pool = pool(self.settings.workers or cores())
        try:
            with sendable(worker):
                self.plan = worker.plan(Path(self.folder.name), len(self.pool))
                for process in self.pool:
                    self._open(process)
        except BaseException:
            self.close()
            raise

    def _new(self) -> Process:
        (new,) = pool(1)
        self._open(new)
        return new

    def _open(self, process: Process) -> None:
        process.ask("move", (Path.cwd(), sys.path))  # it may have been started elsewhere
        process.ask("open", self.plan)
        if self.saved is not None:
            process.load(self.saved)

    def _answered(self, hosts: Collection[Process]) -> Collection[Process]:
        # A Ctrl-C that comes just before the system waits is noticed only when that ends: wait in short turns.
        ready = wait([process.pipe for process in hosts], timeout=1)
        return {process for process in hosts if process.pipe in ready}

    def _bring(self, host: Process, client: int, jobs: list[bytes]) -> None:
        host.tell("repeat", (client, jobs))

    def close(self) -> None:
        for process in self.pool:
            with suppress(CheckpointError):  # it died meanwhile
                process.ask("close", None)
            process.taken = False
        self.folder.cleanup()
