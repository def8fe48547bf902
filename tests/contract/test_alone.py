"""Every method with each client in a federation of its own: the oracles, and the contract of all methods."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import test_methods
import torch
from contract import Watched, resumed, watched
from every import METHODS, every_method, parameters

from protea.core.method import Method
from protea.federation.alone import Alone
from protea.federation.record import Cost
from protea.methods.local import Local

few_methods = parameters({name: METHODS[name] for name in ("fedproto", "fedtgp", "fedpkd", "fedgen", "fedavg")})


@cache
def played(method: Method[Any, Any], clients: int) -> Watched:
    """Two rounds in which all take part, made once; but for what they cost."""
    run = watched(method, clients=clients, rounds=2, fraction=1.0)
    return replace(run, records=[replace(record, cost=Cost({}, 0)) for record in run.records])


def states(run: Watched) -> dict[str, bytes]:
    """The state of every client at its end."""
    return {name: content for name, content in run.left.items() if name.startswith("client")}


@every_method
def test_one_client_only(method: Method[Any, Any]) -> None:
    run = played(method, clients=1)
    assert [record.participants for record in run.records] == [[0]] * 2
    for values in run.left["server"].values():
        assert torch.isfinite(torch.tensor(values, dtype=torch.float64)).all()


@every_method
def test_a_client_alone_is_a_federation_of_one_whoever_else_is_there(method: Method[Any, Any]) -> None:
    """The first of four that play alone does what it does in a federation of which it is the only member."""
    plain, alone = played(method, clients=1), played(Alone(method), clients=4)
    assert len(states(plain)) == 1 and states(plain).items() <= states(alone).items() and len(states(alone)) == 4
    mine = {name: values for name, values in alone.left["server"].items() if name.startswith("0/")}
    assert mine == {f"0/{name}": values for name, values in plain.left["server"].items()}
    for record, other in zip(alone.records, plain.records, strict=True):
        assert not record.server and (record.geometry is None or not record.geometry.margins)  # nothing in common
        assert record.clients[:1] == other.clients and len(record.clients) == 4


@few_methods
def test_one_client_alone_has_the_records_of_a_federation_of_one(method: Method[Any, Any]) -> None:
    plain, alone = played(method, clients=1), played(Alone(method), clients=1)
    assert states(alone) == states(plain)
    for record, other in zip(alone.records, plain.records, strict=True):
        assert record == replace(other, server=record.server, geometry=record.geometry)


def test_local_alone_is_local() -> None:
    alone, plain = played(Alone(Local()), clients=4), played(Local(), clients=4)
    assert alone.records == plain.records and alone.left["server"] == plain.left["server"]
    assert states(alone) == states(plain) and len(states(plain)) == 4


@few_methods
def test_nobody_depends_on_who_else_is_there(method: Method[Any, Any]) -> None:
    all, some = played(Alone(method), clients=4), played(Alone(method), clients=2)
    assert len(states(some)) == 2 and states(some).items() <= states(all).items()
    assert some.left["server"].items() <= all.left["server"].items()
    for record, other in zip(all.records, some.records, strict=True):
        assert record.clients[:2] == other.clients


@few_methods
def test_others_do_change_a_client_that_is_not_alone(method: Method[Any, Any]) -> None:
    """So that the tests above test something."""
    one, two = (states(played(method, clients=clients))["client-000.safetensors"] for clients in (1, 2))
    assert one != two


@few_methods
def test_it_is_the_same_in_other_processes(method: Method[Any, Any]) -> None:
    test_methods.test_it_is_the_same_in_other_processes(Alone(method))


@every_method
def test_it_resumes_exactly(method: Method[Any, Any], tmp_path: Path) -> None:
    run = played(Alone(method), clients=4)
    assert resumed(run, Alone(method), tmp_path, rounds=2, fraction=1.0) == run.left


@few_methods
def test_it_keeps_the_contract_of_methods(
    method: Method[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_methods.test_it_resumes_exactly(Alone(method), tmp_path)
    test_methods.test_it_survives_a_missing_reply(Alone(method))
    test_methods.test_it_survives_clients_with_next_to_nothing(Alone(method))
    test_methods.test_clients_may_finish_in_any_order_and_wait_on_disk(Alone(method), monkeypatch)
    test_methods.test_bytes_counted_are_the_bytes_of_what_travels(Alone(method))
