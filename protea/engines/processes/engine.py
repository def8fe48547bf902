"""Many processes on one machine, one thread each.

Processes are started once and serve run after run.  Clients stay in theirs, and a process that is
killed is replaced: see :mod:`protea.engines.scheduler`.

What crosses a pipe between our own processes: jobs and replies as safetensors bytes, and
once per run the plan by which clients are built.  The data lie in one file that all map.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

from protea.clients.plan import WorkerPlan
from protea.config.sections import Engine
from protea.core.errors import CheckpointError
from protea.engines.processes.forkserver import start_forkserver
from protea.engines.processes.pool import WorkerProcess, cores, pool, sendable
from protea.engines.scheduler import PinnedEngine


class Processes(PinnedEngine[WorkerProcess]):
    """Many processes on this machine, clients pinned to them."""

    host_name = "worker process"

    @classmethod
    def warm(cls) -> None:
        start_forkserver()

    def __init__(self, plan: WorkerPlan, settings: Engine | None = None) -> None:
        settings = settings or Engine()
        self.check(settings)
        super().__init__(plan, settings)
        self.pool = pool(self.settings.workers or cores())
        try:
            with sendable(plan):
                self.sent = plan.for_processes(Path(self.folder.name), len(self.pool))
                for process in self.pool:
                    self._open(process)
        except BaseException:
            self.close()
            raise

    def _new(self) -> WorkerProcess:
        (new,) = pool(1)
        self._open(new)
        return new

    def _open(self, process: WorkerProcess) -> None:
        """Have a process ready for the jobs of this run."""
        process.ask("move", (Path.cwd(), sys.path))  # it may have been started elsewhere
        process.ask("open", self.sent)
        if self.saved is not None:
            process.load(self.saved)

    def _answered(self, hosts: Collection[WorkerProcess]) -> Collection[WorkerProcess]:
        # A Ctrl-C that comes just before the system waits is noticed only when that ends: wait in short turns.
        ready = wait([process.pipe for process in hosts], timeout=1)
        return {process for process in hosts if process.pipe in ready}

    def _bring(self, host: WorkerProcess, client: int, jobs: list[bytes]) -> None:
        host.tell("repeat", (client, jobs))

    def close(self) -> None:
        for process in self.pool:
            with suppress(CheckpointError):  # it died meanwhile
                process.ask("close", None)
            process.give_back()
        self.folder.cleanup()
