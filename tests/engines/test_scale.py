"""Many clients of whom few take part, and many classes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
import toy
from night import by_night
from toy import choose

import protea
from protea import Client, Data, Experiment
from protea.config import registry
from protea.config.families import Models
from protea.config.sections import Engine, Evaluation, Split
from protea.core.rng import Streams
from protea.core.training import Training
from protea.data.partition.schemes import Iid
from protea.data.sources.arrays import Arrays
from protea.engines.inline import Inline
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.methods.fedproto import FedProto

MANY = 100_000


def test_of_very_many_clients_only_those_who_take_part_are_ever_made():
    made: Counter[int] = Counter()

    def build(id: int, streams: Streams) -> Client:
        made[id] += 1
        return replace(toy.build(id % toy.CLIENTS, streams), id=id)

    engine = Inline(toy.worker(FedProto(), build, seed=7))
    loop = Federation(
        FedProto(),
        engine,
        toy.server(),
        FederationPlan(clients=MANY, rounds=3, fraction=5 / MANY, evaluation=Evaluation(clients="participants")),
    )
    records = list(loop.run())
    chosen = [client for record in records for client in record.participants]
    assert [len(record.participants) for record in records] == [5, 5, 5]
    assert made.keys() == set(chosen) and set(made.values()) == {1}
    assert max(chosen) > 1000  # they are from all over


def test_everyone_is_chosen_as_often():
    server, seen = toy.server(), Counter[int]()
    for round in range(1, 41):
        server.round = round
        seen.update(choose(range(200), 0.5, server))
    assert sum(seen.values()) == 40 * 100
    assert min(seen.values()) >= 8 and max(seen.values()) <= 32  # of 20 expected; four standard deviations are 12.6


@pytest.mark.parametrize(
    ("method", "least"),  # in two rounds; chance is 0.001
    [
        ("fedproto", 0.1),
        *by_night(("fedtgp", 0), ("fedsa", 0.1), ("protonorm", 0.01), ("fedpagr", 0), ("fedproc", 0)),
    ],
)
def test_a_thousand_classes(method: str, least: float):
    classes, dim = 1000, 32
    g = torch.Generator().manual_seed(0)
    y = torch.arange(4 * classes) % classes
    centres = torch.randn(classes, 16, generator=g)
    x = centres[y] + 0.05 * torch.randn(len(y), 16, generator=g)
    found = registry.find("methods", method)
    experiment = Experiment(
        rounds=2,
        clients=4,
        method=found(server_epochs=1) if method == "fedtgp" else found(),
        data=Data(source=Arrays(x, y), partition=Iid(), split=Split(test=0.25, validation=0.0, stratify=False)),
        models=Models(family="mlp", dim=dim),
        training=Training(batch=32),
        engine=Engine("inline"),
    )
    result = protea.run(experiment)
    assert [record.round for record in result.records] == [1, 2]
    assert result.records[-1].loss is not None and result.records[-1].loss > 0
    assert result.accuracy >= least
