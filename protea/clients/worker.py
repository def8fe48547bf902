"""Run one job on one client.  Every engine ends up here, and only here."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from protea.clients.offload import Shelf
from protea.clients.state_files import load_client, save_client, undone_if_it_fails
from protea.core.client import Client
from protea.core.devices import torch_threads
from protea.core.errors import ProteaError
from protea.core.method import Method
from protea.core.payload import pack, unpack
from protea.core.process_memory import peak_memory
from protea.core.rng import Streams
from protea.evaluation.client_side import examine, shared_answers, snapshot
from protea.federation.jobs import Job, Reply

Build = Callable[[int, Streams], Client]


class Worker:
    """A method together with the clients that live in this process.

    With ``careful``, a client that fails in training is as it was before.  With ``memory``, a number of bytes for this
    process, the clients that were used least recently wait on disk, in ``spill``.
    """

    def __init__(
        self,
        method: Method[Any, Any],
        build: Build,
        seed: int,
        threads: int = 1,
        local_prototypes: bool = True,
        *,
        careful: bool = False,
        memory: int | None = None,
        spill: Path | None = None,
    ) -> None:
        self.method, self.build, self.rng, self.threads = method, build, Streams(seed), threads
        self.local_prototypes = local_prototypes  # as one more rule in evaluation
        self.careful, self.memory = careful, memory
        self.clients: dict[int, Client] = {}  # the one used last is last
        self.saved: Path | None = None  # where clients not met yet may have left their state
        self.shelf = Shelf(memory, spill)

    def plan(self, folder: Path, processes: int) -> dict[str, Any]:
        """By what to make such a worker in other processes; ``folder`` is for data that all of them map, and spills."""
        lend = getattr(self.build, "lend", None)
        return {
            "method": self.method,
            "build": lend(folder) if lend else self.build,
            "seed": self.rng.root,
            "threads": self.threads,
            "local_prototypes": self.local_prototypes,
            "careful": self.careful,
            "memory": None if self.memory is None else self.memory // processes,
            "spill": folder,
        }

    def client(self, id: int) -> Client:
        """The client, built on first use: one that is never chosen costs nothing."""
        client = self.clients.pop(id, None)
        if client is None:
            streams = self.rng.at("client", id)
            client = self.build(id, streams)
            with streams.default("start"):
                self.method.start_client(client)
            if (where := self.shelf.place(id) or self.saved) is not None:
                load_client(client, where)
            self.shelf.forget(id)
        self.shelf.away.discard(id)
        self.clients[id] = client
        return client

    def forget(self, id: int) -> None:
        """Have the client built anew when it is next needed."""
        self.clients.pop(id, None)
        self.shelf.forget(id)

    def run(self, job: Job) -> Reply:
        started = time.perf_counter()
        try:
            with torch_threads(self.threads):
                reply = self._run(job)
            self.shelf.make_room(self.clients)
        except ProteaError as problem:
            reply = Reply(job.client, job.round, error=str(problem))
        except Exception:  # whatever a method or model raises is this client's failure, not the engine's
            error = f"client {job.client}, round {job.round}:\n{traceback.format_exc()}"
            reply = Reply(job.client, job.round, error=error)
        seconds = time.perf_counter() - started
        return replace(reply, seconds=seconds, process=os.getpid(), memory=peak_memory())

    def repeat(self, client: int, jobs: Sequence[Job]) -> None:
        """Bring a client that this process has not met to where it was in another one, which is gone."""
        with torch_threads(self.threads):
            self.client(client)
            for job in jobs:
                self._run(job)

    def _run(self, job: Job) -> Reply:
        client = self.client(job.client)
        client.begin(job.round, self.rng.at("client", job.client, "round", job.round))
        down = unpack(self.method.down, {name: t.to(client.device) for name, t in job.down.items()})
        if down is not None:
            down.check(client.classes, client.dim)
        with client.rng.default(job.task):
            if job.task == "evaluate":
                return Reply(job.client, job.round, pack(examine(self.method, client, down, self.local_prototypes)))
            if job.task == "answer":
                return Reply(job.client, job.round, shared_answers(self.method, client, down, self.local_prototypes))
            if job.task == "look":
                return Reply(job.client, job.round, pack(snapshot(client)))
            with undone_if_it_fails(client) if self.careful else nullcontext():
                up = self.method.local_update(client, down)
            loss = {"loss": sum(client.losses) / len(client.losses)} if client.losses else {}
            return Reply(job.client, job.round, pack(up), len(client.train), loss)

    def save(self, directory: Path) -> None:
        """Write the clients met here; whoever asks takes over the others from where they were."""
        for id, client in self.clients.items():
            save_client(client, directory)
            self.shelf.let_go(id)
        self.shelf.carry(directory)
        self.saved = directory

    def load(self, directory: Path) -> None:
        self.clients.clear()
        self.shelf.clear()
        self.saved = directory
