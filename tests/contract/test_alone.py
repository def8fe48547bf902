"""Every method with each client in a federation of its own: the oracles, and the contract of all methods."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_methods
import toy
from contract import builder
from every import METHODS, every_method, parameters

from protea.core.method import Method
from protea.core.samples import Samples
from protea.engines.inline import Inline
from protea.federation.alone import Alone
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.federation.record import Cost, Record
from protea.methods.local import Local

few_methods = parameters({name: METHODS[name] for name in ("fedproto", "fedtgp", "fedpkd", "fedgen", "fedavg")})


def played(
    method: Method[Any, Any], folder: Path, clients: int, rounds: int = 2
) -> tuple[list[Record], dict[str, bytes], dict[str, list[Any]]]:
    """The records but for their cost, every client's state, and the server's memory."""
    engine, server = Inline(toy.worker(method, builder(method), seed=7)), toy.server()
    plan = FederationPlan(clients=clients, rounds=rounds)
    loop = Federation(method, engine, server, plan, test=Samples(toy.BLOBS, toy.TEST))
    records = [replace(record, cost=Cost({}, 0)) for record in loop.run()]
    folder.mkdir()
    engine.save(folder)
    tensors, _ = server.memory.flat()
    states = {path.name: path.read_bytes() for path in folder.iterdir()}
    return records, states, {name: tensor.tolist() for name, tensor in tensors.items()}


@every_method
def test_one_client_alone_is_a_federation_of_one(method: Method[Any, Any], tmp_path: Path) -> None:
    plain, states, memory = played(method, tmp_path / "plain", clients=1)
    records, own_states, own_memory = played(Alone(method), tmp_path / "alone", clients=1)
    assert own_states == states and len(states) == 1
    assert own_memory == {f"0/{name}": values for name, values in memory.items()}
    for record, other in zip(records, plain, strict=True):
        assert not record.server and (record.geometry is None or not record.geometry.margins)  # nothing in common
        assert record == replace(other, server=record.server, geometry=record.geometry)


def test_local_alone_is_local(tmp_path: Path) -> None:
    assert played(Alone(Local()), tmp_path / "alone", 4) == played(Local(), tmp_path / "plain", 4)


@every_method
def test_nobody_depends_on_who_else_is_there(method: Method[Any, Any], tmp_path: Path) -> None:
    records, states, memory = played(Alone(method), tmp_path / "all", clients=4)
    fewer, some, less = played(Alone(method), tmp_path / "fewer", clients=3)
    assert len(some) == 3 and some == {name: states[name] for name in some}
    assert less.items() <= memory.items()
    for record, other in zip(records, fewer, strict=True):
        assert record.clients[:3] == other.clients


@few_methods
def test_others_do_change_a_client_that_is_not_alone(method: Method[Any, Any], tmp_path: Path) -> None:
    """So that the tests above test something."""
    _, states, _ = played(method, tmp_path / "all", clients=4, rounds=3)
    _, some, _ = played(method, tmp_path / "fewer", clients=3, rounds=3)
    assert some["client-000.safetensors"] != states["client-000.safetensors"]


@few_methods
def test_it_is_the_same_in_other_processes(method: Method[Any, Any]) -> None:
    test_methods.test_it_is_the_same_in_other_processes(Alone(method))


@every_method
def test_it_resumes_exactly(method: Method[Any, Any], tmp_path: Path) -> None:
    test_methods.test_it_resumes_exactly(Alone(method), tmp_path)


@few_methods
def test_it_keeps_the_contract_of_methods(method: Method[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    test_methods.test_it_repeats_itself_whoever_finishes_first(Alone(method))
    test_methods.test_it_survives_a_missing_reply(Alone(method))
    test_methods.test_it_survives_clients_with_next_to_nothing(Alone(method))
    test_methods.test_clients_may_wait_on_disk(Alone(method), monkeypatch)
    test_methods.test_bytes_counted_are_the_bytes_of_what_travels(Alone(method))
