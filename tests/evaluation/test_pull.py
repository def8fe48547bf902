"""How hard a method pulls, beside cross entropy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import toy
from torch import nn

from protea import Method, Prototypes
from protea.core.errors import PayloadError
from protea.core.payload import pack
from protea.core.wrapping import Wrapper
from protea.engines.inline import Inline
from protea.evaluation.client_side import examine
from protea.evaluation.examination import Examination
from protea.evaluation.pull import pull_strength
from protea.evaluation.server_side import Judged
from protea.federation.alone import Alone
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.federation.record import Record
from protea.methods.fedproto import FedProto
from protea.methods.fedsa import FedSA
from protea.methods.fedtgp import FedTGP
from protea.methods.local import Local
from protea.methods.protonorm import ProtoNorm


def records(method: Any, rounds: int = 2, single: bool = True) -> list[Record]:
    plan = FederationPlan(clients=toy.CLIENTS, rounds=rounds, single_answers=single)
    return list(Federation(method, Inline(toy.worker(method, single_answers=single)), toy.server(), plan).run())


def pulls(record: Record) -> list[float]:
    return [each.pull for each in record.clients if each.pull is not None]


def test_both_gradients_are_those_by_hand():
    """One sample at (3, 4), pulled to the origin by 2 * mse: its gradient has length 2 * 5.

    Scores are the features, so that the gradient of cross entropy is softmax minus the true class.
    """
    client = toy.ready()
    client.model.head = nn.Identity()
    z, y = torch.tensor([[3.0, 4.0]]), torch.tensor([0])
    origin = Prototypes(torch.zeros(2, 2), torch.ones(2))
    chance = torch.sigmoid(torch.tensor(1.0))
    found = pull_strength(FedProto(pull=2.0), client, origin, z, y)
    assert found is not None
    torch.testing.assert_close(found, 10 / (2**0.5 * chance))


def test_nothing_is_told_where_nothing_pulls():
    client = toy.ready()
    z, y = torch.zeros(1, client.dim), torch.tensor([0])
    assert pull_strength(Local(), client, None, z, y) is None  # nor is a method asked before there is a broadcast
    assert pull_strength(FedProto(), client, None, z, y) is None
    assert pulls(records(Local())[-1]) == []


@pytest.mark.parametrize("method", [FedProto(), FedTGP(server_epochs=1), ProtoNorm(), FedSA()])
def test_a_simulation_records_it_in_proportion_to_the_weight(method: Any):
    """What clients are evaluated with after the first round is the same for every weight, if nothing pulled before."""
    strong = pulls(records(method, rounds=1)[-1])
    assert strong and all(value > 0 for value in strong)
    if not isinstance(method, FedSA):  # whose anchors pull from the first round on
        weak = pulls(records(replace(method, pull=method.pull / 8), rounds=1)[-1])
        assert weak == pytest.approx([value / 8 for value in strong])


def test_a_method_that_is_played_differently_pulls_as_it_does():
    """Alone, protected or attacked: what a wrapper does not hand on would be the default of all methods."""
    hooks = {name for name, each in vars(Method).items() if callable(each) and not name.startswith("__")}
    assert hooks <= vars(Wrapper).keys()
    assert pulls(records(Alone(FedProto()))[-1])


def test_a_record_keeps_it():
    record = records(FedProto())[-1]
    lines = record.lines()
    assert Record.read(lines) == [record]
    assert [line["pull"] for line in lines if "pull" in line] == pulls(record)


def test_a_site_does_not_tell_it():
    assert pulls(records(FedProto(), single=False)[-1]) == []
    client = toy.ready()
    down = Prototypes(torch.zeros(client.classes, client.dim), torch.ones(client.classes))
    told = examine(FedProto(), client, down, single=True)
    assert told.pull is not None
    with pytest.raises(PayloadError, match="how hard features are pulled arrived; a site does not tell that"):
        Judged(client.classes, client.dim).read(pack(Examination(told.rules, told.tallies, told.space, pull=told.pull)))
    for wrong in (torch.tensor(-1.0), torch.tensor(1), torch.ones(2)):
        with pytest.raises(PayloadError, match="not how hard features are pulled"):
            replace(told, pull=wrong).check(client.classes, client.dim, single=True)
