"""What a worker needs to know, in one value that can be sent to other processes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from protea.clients.builder import Builder
from protea.clients.privacy import noise_filter
from protea.clients.release import Release
from protea.core.client import Client
from protea.core.method import Method
from protea.core.rng import Streams
from protea.filters.base import Filter
from protea.filters.secure.vouching import Voucher


@dataclass(frozen=True)
class WorkerPlan:
    """The method, the clients, and the settings of every worker of a run."""

    method: Method[Any, Any]
    builder: Builder
    seed: int | bytes  # of the run; every draw of every client comes from it.  Bytes: a site's own, which is secret
    threads: int = 1  # of torch, while a job runs
    local_prototypes: bool = True  # evaluate by the client's own prototypes too
    rules: tuple[Any, ...] = ()  # further rules of prediction, for evaluation
    metrics: tuple[Any, ...] = ()  # further metrics, for evaluation
    answer: str = "method"  # the rule that counts as the method's own
    single_answers: bool = False  # tell which test samples were answered right; in simulations only
    train_accuracy: bool = False  # evaluate on training samples too; in simulations only
    filters: tuple[Filter, ...] = ()  # applied in order to every upload before it leaves its client
    release: Release = field(default_factory=Release)  # the client's own last word on what leaves it
    system_randomness: bool = False  # noise and secrets come from the operating system: at sites; else from the seed
    voucher: Voucher = field(default_factory=Voucher)  # for the clients and keys of a secure sum
    unguarded: str = ""  # why records were not prepared one by one, so that no guarantee can hold; empty: they were
    careful: bool = False  # a client whose training fails is put back to what it was before
    memory: int | None = None  # bytes of this process; clients beyond it wait on disk
    folder: Path | None = None  # for clients that wait on disk; None for the system's temporary one

    def streams(self, client: int) -> Streams:
        """Give the random streams of a client."""
        return Streams(self.seed).at("client", client)

    def make_client(self, id: int) -> Client:
        """Build a client, let the method prepare it, and give it the first weights that it should have."""
        streams = self.streams(id)
        client = self.builder(id, streams)
        noise = noise_filter(self.filters)
        client.longest, client.system_randomness = None if noise is None else noise.clip, self.system_randomness
        with streams.default("start"):
            self.method.start_client(client)
        self.builder.started(client)
        return client

    def for_processes(self, folder: Path, count: int) -> WorkerPlan:
        """Give the plan of each of ``count`` other processes on this machine, who share memory and data.

        ``folder`` is for the data, which all of them map, and for clients that wait on disk.
        """
        memory = None if self.memory is None else self.memory // count
        return replace(self, builder=self.builder.lend(folder), memory=memory, folder=folder)

    def moved(self, folder: Path) -> WorkerPlan:
        """Give the same plan for a machine that has the data in another folder."""
        return replace(self, builder=self.builder.moved(folder), folder=folder)
