"""Every method with protected clients: what is federated stays as it was, and what stands beside it is Local."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from contract import Short, builder, holding_out, play, resumed, watched, workers
from every import METHODS, every_method, parameters

from protea.clients.worker import Worker
from protea.core.errors import ConfigError
from protea.core.method import Method
from protea.core.server import Server
from protea.federation.alone import Alone
from protea.federation.protect import OWN, Protect, Unfederated, Unprotected, quality
from protea.federation.record import Record
from protea.methods.local import Local

few_methods = parameters({name: METHODS[name] for name in ("fedproto", "fedtgp", "fedpkd", "fedgen", "fedavg")})


alike = partial(toy.build_holding_out, same_architecture=True)


def protected(method: Method[Any, Any]) -> tuple[list[Record], Worker, Server]:
    """What its protected clients leave, evaluated also by what they would answer otherwise."""
    return holding_out(Protect(method), rules=(Unprotected(method), Unfederated()))


def without_own_rule(record: Record) -> Record:
    """A record without what the method's own rule answered, which is part of the blend too, or the rules beside it."""
    own = ("method", "blend", "unprotected", "unfederated")

    def others(scores: dict[str, Any]) -> dict[str, Any]:
        return {rule: score for rule, score in scores.items() if rule not in own}

    clients = [
        replace(
            each,
            parts={name: replace(part, classes={}, hits=others(part.hits)) for name, part in each.parts.items()},
            shared=others(each.shared),
        )
        for each in record.clients
    ]
    return replace(
        record, test=others(record.test), validation=others(record.validation), shared=others(record.shared),
        classes={}, clients=clients,
    )  # fmt: skip


@every_method
def test_what_is_federated_stays_as_it_was(method: Method[Any, Any]) -> None:
    plain, worker, server = holding_out(method)
    records, own_worker, own_server = protected(method)
    assert toy.same_models(worker, own_worker)
    assert toy.same(server.memory.flat()[0], own_server.memory.flat()[0])
    assert [without_own_rule(record) for record in records] == [without_own_rule(record) for record in plain]


@every_method
def test_the_model_beside_it_is_that_of_local(method: Method[Any, Any]) -> None:
    _, worker, _ = protected(method)
    _, alone, _ = holding_out(Local(), alike if method.needs.same_architecture else None)
    for id, client in alone.clients.items():
        assert toy.same(client.model.state_dict(), worker.clients[id].memory[OWN].state_dict())


@every_method
def test_nobody_is_worse_off_on_held_out_samples(method: Method[Any, Any]) -> None:
    records, _, _ = protected(method)
    for record in records:
        for client in record.clients:
            hits = client.parts["validation"].hits
            assert hits["method"] >= max(hits["unprotected"], hits["unfederated"])


def test_the_rules_beside_it_are_what_the_others_would_answer() -> None:
    method = METHODS["fedproto"]
    plain, _, _ = holding_out(method)
    by_itself, _, _ = holding_out(Local())
    records, _, _ = protected(method)
    for record, other, alone in zip(records, plain, by_itself, strict=True):
        assert record.test["unprotected"] == other.test["method"]
        assert record.test["unfederated"] == alone.test["method"]


@few_methods
def test_a_client_may_be_alone_and_protected(method: Method[Any, Any]) -> None:
    _, worker, _ = holding_out(Alone(method))
    _, own_worker, _ = holding_out(Protect(Alone(method)))
    assert toy.same_models(worker, own_worker)


@few_methods
def test_engines_and_resumed_runs_agree_and_clients_may_wait_on_disk(
    method: Method[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, build = Protect(method), builder(method, toy.build_holding_out)
    run = watched(method, build=build)
    assert play(method, workers(2), build=build) == run.left
    assert resumed(run, method, tmp_path, build=build) == run.left

    monkeypatch.setattr("protea.clients.mapped_tensors.LARGE", 0)
    assert play(method, Short, build=build) == run.left


def test_without_held_out_samples_a_client_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"client 0 holds out no samples.*data\.split\.validation"):
        Protect(Local()).start_client(toy.ready())


def test_right_answers_come_first_then_likelihood_and_a_model_that_diverged_is_last() -> None:
    labels = torch.tensor([0, 1])
    right = torch.tensor([[0.1, 0.0], [0.0, 0.1]])
    surer, wrong = 10 * right, -right
    assert quality(surer, labels) > quality(right, labels) > quality(wrong, labels)
    assert quality(wrong, labels) > quality(right * torch.nan, labels)
    no_answer = torch.full((2, 2), -torch.inf)
    assert quality(no_answer, labels) == (0, -torch.inf)


def test_equal_answers_are_given_by_the_model_trained_alone() -> None:
    client, method = toy.build_holding_out(0, toy.Streams(1)), Protect(Local())
    client.begin(1, client.rng)
    method.start_client(client)  # both models are as they began
    assert method.choice(client, None) == "alone"
    with torch.no_grad():
        client.memory[OWN].head.bias.fill_(torch.nan)
    assert method.choice(client, None) == "federated"
