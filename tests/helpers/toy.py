"""A federation of Gaussian blobs, three architectures, some classes absent on each client: made in no time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from protea import Client, Method, SplitModel
from protea.clients.builder import Builder, FunctionBuilder
from protea.clients.offload import OffloadedStore
from protea.clients.plan import WorkerPlan
from protea.clients.worker import Worker
from protea.config.sections import participants
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.server import Server
from protea.core.training import Training
from protea.data.dataset import Dataset
from protea.data.partition.split import Share
from protea.engines.inline import Inline
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.federation.sampling import Uniform

CLASSES, DIM, CLIENTS = 6, 16, 4

Build = Callable[[int, Streams], Client]


def blobs(samples: int = 480, seed: int = 0) -> Dataset:
    g = torch.Generator().manual_seed(seed)
    centres = 1.5 * torch.randn(CLASSES, 8, generator=g)
    y = torch.randint(CLASSES, (samples,), generator=g)
    return Dataset(centres[y] + torch.randn(samples, 8, generator=g), y, tuple("abcdef"))


BLOBS = blobs()


def shares(dataset: Dataset = BLOBS, clients: int = CLIENTS) -> tuple[Share, ...]:
    """Client i has classes i, i + 1 and i + 2; client 0 only one sample of class 2; client 1 nothing to test."""
    found = []
    for client in range(clients):
        mine = torch.tensor([(client + k) % CLASSES for k in range(3)])
        rows = torch.isin(dataset.y, mine).nonzero().squeeze(1)
        rows = rows[rows % clients == client]
        if client == 0:
            rare = (dataset.y[rows] == 2).nonzero().squeeze(1)
            keep = torch.ones(len(rows), dtype=torch.bool)
            keep[rare[1:]] = False
            rows = rows[keep]
        cut = len(rows) if client == 1 else len(rows) * 3 // 4
        found.append(Share(rows[:cut], rows[:0], rows[cut:]))
    return tuple(found)


SHARES = shares()
PUBLIC = torch.arange(24)
TEST = torch.arange(400, 440)


def body(kind: int) -> nn.Module:
    return [
        nn.Sequential(nn.Linear(8, DIM), nn.ReLU()),
        nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, DIM)),
        nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, DIM)),
    ][kind % 3]


def make(architecture: str = "smallest") -> SplitModel:
    """Two layers with dropout, whatever is asked for."""
    layers = nn.Sequential(nn.Linear(8, DIM), nn.Dropout(0.2))
    return SplitModel(layers, nn.Identity(), nn.Linear(DIM, CLASSES))


def build(
    id: int,
    streams: Streams,
    *,
    training: Training | None = None,
    share: Share | None = None,
    same_architecture: bool = False,
) -> Client:
    """A client; ``same_architecture`` for methods whose clients must all have the one that ``make`` makes."""
    share = SHARES[id] if share is None else share
    with streams.default("model"):
        model = make() if same_architecture else SplitModel(body(id), nn.Identity(), nn.Linear(DIM, CLASSES))
    return Client(
        id=id,
        model=model,
        train=Samples(BLOBS, share.train),
        validation=Samples(BLOBS, share.validation),
        test=Samples(BLOBS, share.test),
        public=Samples(BLOBS, PUBLIC),
        shared_test=Samples(BLOBS, TEST),
        classes=CLASSES,
        dim=DIM,
        rng=streams,
        training=training or Training(epochs=2, batch=16, lr=0.05),
        make=make,
    )


def holding_out(share: Share) -> Share:
    """The same share with every third of its training samples held out, for validation."""
    held = torch.arange(len(share.train)) % 3 == 0
    return Share(share.train[~held], share.train[held], share.test)


def build_holding_out(id: int, streams: Streams, **options: Any) -> Client:
    """A client that holds samples out, as ``blend`` and ``protect = true`` need."""
    return build(id, streams, share=holding_out(SHARES[id]), **options)


def server(seed: int = 7) -> Server:
    return Server(CLASSES, DIM, Streams(seed).at("server"), public=Samples(BLOBS, PUBLIC), make=make, names=BLOBS.names)


def plan(method: Method[Any, Any], build: Build = build, seed: int = 7, **options: Any) -> WorkerPlan:
    """What a worker needs to know; ``build`` is a builder or a plain function."""
    return WorkerPlan(method, build if isinstance(build, Builder) else FunctionBuilder(build), seed, **options)


def worker(method: Method[Any, Any], build: Build = build, seed: int = 7, **options: Any) -> Worker:
    """A worker with all its clients in memory, unless the options say otherwise."""
    return Worker(plan(method, build, seed, **options))


def offloading(
    method: Method[Any, Any], build: Build = build, full: float = float("inf"), folder: Path | None = None
) -> tuple[Worker, OffloadedStore]:
    """A worker whose clients wait on disk once the process has ``full`` bytes, and the store of its clients."""
    made = plan(method, build)
    store = OffloadedStore(made.make_client, full, folder)
    return Worker(made, store), store


def play(
    method: Method[Any, Any], rounds: int = 3, clients: int = CLIENTS, build: Build = build
) -> tuple[Worker, Server]:
    """Some rounds in this process: all clients, and the server, as they are then."""
    own, centre = worker(method, build), server()
    list(Federation(method, Inline(own), centre, FederationPlan(clients=clients, rounds=rounds)).run())
    return own, centre


def models(worker: Worker) -> dict[str, Tensor]:
    """All tensors of all clients' models."""
    return {f"{id}/{k}": t for id, client in worker.clients.items() for k, t in client.model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """To the bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def same_models(a: Worker, b: Worker) -> bool:
    """Whether all clients have the same weights, to the bit."""
    return same(models(a), models(b))


def started(method: Method[Any, Any]) -> Server:
    """A server that is ready for the first round."""
    centre = server()
    with centre.rng.default("start"):
        method.start_server(centre)
    return centre


def ready(id: int = 0, round: int = 1, **options: Any) -> Client:
    """A client in the middle of a round."""
    client = build(id, Streams(1), **options)
    client.begin(round, Streams(1))
    return client


@torch.no_grad()
def accuracy(method: Method[Any, Any], worker: Worker, centre: Server) -> float:
    """On all clients' test samples, as the method answers."""
    down, hits = method.broadcast(centre, 0), []
    for client in worker.clients.values():
        client.set_evaluation()
        assert client.test is not None
        x, y = client.test.batch(torch.arange(len(client.test)))
        hits.append(method.predict(client, x, down).argmax(1) == y)
    return torch.cat(hits).float().mean().item()


def choose(clients: Sequence[int], fraction: float, server: Server) -> list[int]:
    """Who of these takes part in the server's round."""
    count = participants(len(clients), fraction)
    return sorted(Uniform()(clients, count, server.round, server.rng.at("round", server.round)))
