"""Where numbers degenerate or clients are missing: every method goes on with finite numbers, or says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import toy
from every import FULL, METHODS, every_method, parameters
from torch import nn

from protea import Client, SplitModel
from protea.config.sections import Evaluation, Faults
from protea.core.errors import ProteaError
from protea.core.method import Method
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.data.partition.split import Share
from protea.engines.inline import Inline
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.federation.record import Record
from protea.methods.fednh import FedNH

Build = Callable[[int, Streams], Client]


def loop(method: Method[Any, Any], build: Build | None = None, rounds: int = 3, **options: Any) -> Federation:
    build = build or partial(toy.build, same_architecture=method.needs.same_architecture)
    test = options.pop("test", Samples(toy.BLOBS, toy.TEST))
    plan = FederationPlan(**{"clients": toy.CLIENTS, "rounds": rounds} | options)
    worker = toy.worker(method, build, seed=7, careful=plan.failures == "skip")
    return Federation(method, Inline(worker), toy.server(), plan, test=test)


def finite(federation: Federation) -> bool:
    """Whether all that the server remembers is."""
    tensors, _ = federation.server.memory.flat()
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())


def play(federation: Federation) -> list[Record] | str:
    """The records, or what Protea said against going on; any other error is a failure of the test."""
    try:
        return list(federation.run())
    except ProteaError as error:
        return str(error)


class Constant(nn.Module):
    """Features that are the same for every sample and never change."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.register_buffer("value", torch.full((toy.DIM,), value))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value.expand(len(x), -1)


@pytest.mark.parametrize("value", [0.0, 1.0], ids=["zero", "one point"])
@parameters({name: method for name, method in METHODS.items() if not method.needs.same_architecture})
def test_prototypes_without_length_or_at_one_point(method: Method[Any, Any], value: float) -> None:
    """Not of methods that average whole models, which start different."""

    def build(id: int, streams: Streams) -> Client:
        client = toy.build(id, streams)
        client.model = SplitModel(Constant(value), nn.Identity(), nn.Linear(toy.DIM, toy.CLASSES))
        return client

    federation = loop(method, build, rounds=2)
    found = play(federation)
    if isinstance(found, str):
        # in whose work, and what is wrong with it; or that nothing of this model could be trained
        assert ("round 1" in found and "zero" in found.lower()) or "it has no weights" in found
    else:
        assert finite(federation) and len(found) == 2 and found[-1].accuracy is not None


@parameters(FULL)
def test_a_class_that_nobody_reports(method: Method[Any, Any]) -> None:
    rows = [(toy.BLOBS.y == c).nonzero().squeeze(1) for c in range(toy.CLASSES)]

    def build(id: int, streams: Streams) -> Client:
        """Nobody has the last class, client 0 has one class alone."""
        mine = torch.cat([rows[c][id::4] for c in ([0] if id == 0 else range(toy.CLASSES - 1))])
        share = Share(mine[::2], mine[:0], mine[1::2])
        return toy.build(id, streams, same_architecture=method.needs.same_architecture, share=share)

    rounds = 6 if method == FedNH() else 3  # whose scale has to grow first
    federation = loop(method, build, rounds=rounds, evaluation=Evaluation(every=rounds))
    records = list(federation.run())
    assert finite(federation) and records[-1].accuracy is not None and records[-1].accuracy > 1 / 3


@every_method
def test_a_round_in_which_nobody_answers_leaves_the_server_as_it_was(method: Method[Any, Any]) -> None:
    broken = loop(method, failures="skip", min_replies=0)
    steps = broken.run()
    next(steps)
    before, _ = broken.server.memory.flat()
    broken.plan = replace(broken.plan, faults=Faults(dropout=1.0))
    second = next(steps)
    after, _ = broken.server.memory.flat()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert set(second.absent.values()) == {"dropped out"} and second.bytes_up == 0 and second.accuracy is not None
    broken.plan = replace(broken.plan, faults=Faults())
    assert next(steps).absent == {} and finite(broken) and list(steps) == []


@every_method
def test_a_client_that_is_not_finite_is_named_and_left_out(method: Method[Any, Any]) -> None:
    def build(id: int, streams: Streams) -> Client:
        client = toy.build(id, streams, same_architecture=method.needs.same_architecture)
        if id == 2:
            with torch.no_grad():
                next(client.model.parameters()).fill_(torch.nan)
        return client

    federation = loop(method, build, rounds=2, failures="skip")
    records = list(federation.run())
    healed = method.needs.same_architecture  # by the whole model that comes down
    assert list(records[0].failures) == ([] if healed else [2]) and finite(federation)
    for record in records:
        assert all(client == 2 and "client 2, round" in why and "nan" in why for client, why in record.failures.items())
