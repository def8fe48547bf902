"""A whole deployment on this machine: a SuperLink, and nodes that are processes with clients.

For testing: an experiment's messages take every step that they would take over a network.
"""

from __future__ import annotations

import math
import multiprocessing as mp
import os
import shutil
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from protea.clients.durable import DurableWorker, save_newest
from protea.clients.plan import WorkerPlan
from protea.config.sections import Engine
from protea.core.errors import PayloadError
from protea.core.message import to_bytes
from protea.core.scratch import ScratchFolder
from protea.engines.base import EngineBase
from protea.engines.flower.grid import Network, NodeInfo
from protea.engines.flower.link import Link
from protea.engines.flower.node import Node
from protea.engines.flower.programs import free_port
from protea.engines.messages import job_from_bytes, joined, parted, reply_to_bytes
from protea.engines.processes.forkserver import processes
from protea.engines.processes.pool import cores, sendable
from protea.federation.jobs import Job, Reply, Watch, ignore


class Deployment:
    """A SuperLink on this machine, and what nodes need to connect to it."""

    def __init__(self, count: int) -> None:
        self.scratch = ScratchFolder()
        self.folder = self.scratch.path
        self.link = Link(self.folder / "link", "127.0.0.1", free_port())
        self.nodes: list[Node] = []
        try:
            self.link.open()
            for k in range(count):
                self.nodes.append(Node(self.folder / f"node-{k}", self.link.address))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.link.close()
        self.scratch.cleanup()


class Flower(EngineBase):
    """A Flower deployment on this machine, for testing; client *i* is at node *i* modulo ``workers``."""

    several_jobs = True

    def __init__(self, plan: WorkerPlan, settings: Engine | None = None, deployment: Deployment | None = None) -> None:
        self.settings = settings or Engine()
        self.check(self.settings)
        self.scratch = ScratchFolder()
        self.folder = self.scratch.path
        self.first: Path | None = None  # where clients were saved by an earlier run
        self.hosts: list[BaseProcess] = []
        self.lent = deployment is not None  # it is not ours to close
        self.deployment = deployment or Deployment(self.settings.workers or cores())
        self.count = len(self.deployment.nodes)
        try:
            limit = self.settings.limit or math.inf
            self.network = Network(
                self.deployment.link, self._node_of, _name, limit, self.settings.retries, sys.maxsize
            )
            self.network.meanwhile = self._revive
            with sendable(plan):
                self.sent = plan.for_processes(self.folder, self.count)
                self._start()
        except BaseException:
            self.close()
            raise

    def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
        return self.network.map(jobs, watch)

    def _revive(self) -> None:
        """Start those client processes anew that were killed."""
        for k, host in enumerate(self.hosts):
            if not host.is_alive():
                self.hosts[k] = self._host(k)

    def save(self, directory: Path) -> None:
        for clients in sorted(self.folder.glob("clients-*")):
            save_newest(clients, directory)

    def load(self, directory: Path) -> None:
        self._stop()
        for clients in self.folder.glob("clients-*"):
            shutil.rmtree(clients)
        self.first = directory.absolute()
        self._start()

    def close(self) -> None:
        self._stop()
        if not self.lent:
            self.deployment.close()
        self.scratch.cleanup()

    def _node_of(self, client: int) -> int:
        return client % self.count

    def _start(self) -> None:
        self.hosts = [self._host(k) for k in range(self.count)]

    def _host(self, k: int) -> BaseProcess:
        node = self.deployment.nodes[k]
        given = (self.sent, k, node, self.folder / f"clients-{k}", self.first)
        process: BaseProcess = processes().Process(target=host, args=given, daemon=True, name=f"protea-{k}")
        process.start()
        return process

    def _stop(self) -> None:
        for process in self.hosts:
            process.kill()
            process.join(timeout=5)
        self.hosts = []


def host(plan: WorkerPlan, number: int, node: Node, clients: Path, first: Path | None) -> None:
    """Be a node, and answer its messages, for ever.  This is the whole life of a client process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends us
    threading.Thread(target=end_with_parent, daemon=True).start()
    worker = DurableWorker(plan, clients, reply_to_bytes, first)
    worker.store.tidy()

    def handle(kind: str, message: bytes) -> bytes:
        if kind == "hello":
            return to_bytes({}, node=number)
        return joined([worker.answer(job_from_bytes(part), part) for part in parted(message)])

    node.attend(handle)


def end_with_parent() -> None:
    """Wait for the end of the process that started this one, and end as well."""
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)


def _name(node: NodeInfo, about: Mapping[str, Any]) -> int:
    """Give the number that a node says it has."""
    number = about.get("node")
    if not isinstance(number, int):
        raise PayloadError(f"a node says that it is {number!r}.")
    return number
