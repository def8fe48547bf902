"""Clients that wait on disk.  That they come back as they were, for every method: contract/test_methods.py."""

from __future__ import annotations

import resource
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toy
from torch import nn

from protea import Client, SplitModel
from protea.clients.offload import OffloadedStore
from protea.clients.worker import Worker
from protea.core.errors import ClientError, ConfigError
from protea.core.files import FileSum
from protea.core.process_memory import current_memory, return_free_memory
from protea.core.rng import Streams
from protea.engines.inline import Inline
from protea.federation.jobs import Job, Watch, ignore
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.federation.record import Cost, Record
from protea.methods.fedproto import FedProto
from protea.methods.local import Local

MB = 10**6
WIDE = 1000  # so that a client has 4 MB of weights
CLIENTS = 15
FULL = 1.0  # byte, which any process has


def wide(id: int, streams: Streams) -> Client:
    client = toy.build(id % toy.CLIENTS, streams)
    with streams.default("model"):
        body = nn.Sequential(nn.Linear(8, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, toy.DIM))
        model = SplitModel(body, nn.Identity(), nn.Linear(toy.DIM, toy.CLASSES))
    return replace(client, id=id, model=model)


@pytest.fixture
def two_away(tmp_path: Path) -> OffloadedStore:
    """Two clients in files, a third in memory."""
    worker, store = toy.offloading(FedProto(), wide, folder=tmp_path)
    for id in range(3):
        worker.run(Job("train", 1, id))
    for id in range(2):
        store.offload(id)
    return store


def play(worker: Worker, clients: int, folder: Path, watch: Watch = ignore) -> tuple[list[Record], dict[str, FileSum]]:
    """What a run leaves: its records, and checksums of its clients."""
    records = list(
        Federation(
            FedProto(),
            Inline(worker),
            toy.server(),
            FederationPlan(clients=clients, rounds=2),
            watch=watch,
        ).run()
    )
    folder.mkdir()
    worker.save(folder)
    states = {path.name: FileSum.of(path) for path in folder.iterdir()}
    return [replace(record, cost=Cost()) for record in records], states


def test_memory_stays_below_the_limit_and_the_end_is_the_same(tmp_path: Path):
    expected = play(toy.worker(FedProto(), wide, seed=7), CLIENTS, tmp_path / "all")
    return_free_memory()  # what that run had
    full = current_memory() + 18 * MB  # of 60
    worker, store = toy.offloading(FedProto(), wide, full, tmp_path)
    had: list[int] = []
    found = play(worker, CLIENTS, tmp_path / "some", lambda reply: had.append(current_memory()))
    assert found == expected and len(found[1]) == CLIENTS
    assert 6 <= len(store.offloaded) < CLIENTS == len(worker.clients)
    assert max(had) < full + 20 * MB


def test_clients_whose_tensors_are_not_the_trouble_are_saved_and_built_anew(tmp_path: Path):
    expected = play(toy.worker(FedProto(), toy.build, seed=7), toy.CLIENTS, tmp_path / "all")
    worker, _ = toy.offloading(FedProto(), toy.build, FULL, tmp_path)
    assert play(worker, toy.CLIENTS, tmp_path / "one") == expected and len(expected[1]) == toy.CLIENTS
    assert len(worker.clients) == 1


def test_a_client_that_is_away_takes_no_memory_until_it_is_used(two_away: OffloadedStore):
    before = current_memory()
    client = two_away.get(0)
    assert 0 not in two_away.offloaded and 1 in two_away.offloaded
    assert sum(p.sum().item() for p in client.model.parameters())
    assert current_memory() - before > 3 * MB
    two_away.offload(0)
    assert current_memory() - before < MB


def test_what_is_trained_after_a_return_is_kept(two_away: OffloadedStore):
    client = two_away.get(0)
    weight = client.model.body[2].weight
    with torch.no_grad():
        weight.fill_(3)
    two_away.offload(0)
    assert weight.eq(3).all() and weight.is_leaf and weight.requires_grad and weight.grad is None


def test_tensors_that_share_memory_still_share_it():
    _, store = toy.offloading(FedProto(), wide)
    client = store.get(0)
    weight = client.model.body[2].weight
    client.memory["rows"] = weight.detach()[10:20]
    client.memory["columns"] = weight.detach().T
    store.offload(0)
    with torch.no_grad():
        weight.fill_(7)
    assert client.memory["rows"].shape == (10, WIDE) and client.memory["rows"].eq(7).all()
    assert client.memory["columns"].stride() == (1, WIDE) and client.memory["columns"].eq(7).all()


def test_the_files_are_gone_when_nobody_uses_them(two_away: OffloadedStore, tmp_path: Path):
    assert not list(tmp_path.iterdir())  # they have no name from the start
    (pages,) = two_away.mapped.pages(0)
    alive = weakref.ref(pages)
    del pages
    assert alive() is not None
    two_away.forget(0)
    assert alive() is None


def test_a_client_that_is_forgotten_leaves_nothing(tmp_path: Path):
    worker, store = toy.offloading(FedProto(), toy.build, FULL, tmp_path)
    for id in range(3):
        worker.run(Job("train", 1, id))
    assert store.evicted == {0, 1}
    worker.forget(0)
    folder = tmp_path / "saved"
    folder.mkdir()
    worker.save(folder)
    assert sorted(path.stem for path in folder.iterdir()) == ["client-001", "client-002"]


def test_files_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "client-000.safetensors"
    mine.write_text("mine")
    worker, store = toy.offloading(Local())
    worker.run(Job("train", 1, 0))
    worker.forget(0)
    store.clear()
    assert mine.read_text() == "mine"


@pytest.fixture
def small_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_room_on_disk_is_said_and_the_client_stays_in_memory(tmp_path: Path, small_files: None):
    worker, store = toy.offloading(Local(), wide, FULL, tmp_path)
    assert worker.run(Job("train", 1, 0)).error is None
    said = worker.run(Job("train", 1, 1)).error
    assert said is not None and said.startswith(f"client 0 cannot wait on disk, in {tmp_path}: File too large.")
    assert worker.clients.keys() == {0} and not store.offloaded


def test_no_room_on_disk_for_one_client_does_not_undo_the_training_of_another(tmp_path: Path, small_files: None):
    """Room is made before a job: what was trained is answered, and what is refused was not begun."""
    worker, _ = toy.offloading(Local(), wide, FULL, tmp_path)
    assert worker.run(Job("train", 1, 0)).error is None
    assert worker.run(Job("train", 1, 1)).error is not None
    assert worker.run(Job("train", 2, 0)).error is None  # there is nobody else to make room
    alone = toy.worker(Local(), wide)
    for round in (1, 2):
        alone.run(Job("train", round, 0))
    assert toy.same_models(worker, alone)


def test_a_client_is_not_moved_to_disk_while_it_is_in_use(tmp_path: Path):
    _, store = toy.offloading(Local(), toy.build, FULL, tmp_path)
    store.get(0)
    store.get(1)
    assert store.clients.keys() == {0, 1} and not store.offloaded
    store.put_back(0)
    store.get(2)
    assert store.clients.keys() == {1, 2} and store.evicted == {0}


def test_a_client_that_cannot_be_saved_is_not_forgotten(tmp_path: Path, small_files: None):
    worker, store = toy.offloading(Local(), wide, folder=tmp_path)
    worker.run(Job("train", 1, 0))
    before = worker.clients[0]
    with pytest.raises(ClientError, match=rf"^client 0 cannot wait on disk, in {tmp_path}: File too large\."):
        store.evict(0)
    assert worker.client(0) is before and not store.evicted


def test_a_budget_below_what_the_process_has_already_is_refused():
    with pytest.raises(ConfigError, match=r"engine.memory leaves 1,000 bytes to a process that has [\d,]+ before"):
        toy.worker(Local(), toy.build, seed=1, memory=1000)
