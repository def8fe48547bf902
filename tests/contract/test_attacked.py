"""Attacks and defences: the same on every engine and after an interruption, and what they do to honest clients."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from contract import federation, left, play, workers
from night import by_night

import protea
from protea import Method
from protea.config.attack import AttackKind
from protea.config.experiment import Experiment, experiment_from_table
from protea.config.sections import Limits
from protea.engines.inline import Inline
from protea.federation.alone import Alone
from protea.federation.attack import Attacked
from protea.filters.base import Filter
from protea.filters.centres import GeometricMedian
from protea.filters.cosine import Cosine
from protea.methods.fedloo import FedLOO
from protea.methods.fedproto import FedProto
from protea.methods.fedtgp import FedTGP
from protea.runs import checkpoint
from protea.runs.result import Result

KINDS: list[AttackKind] = ["scale", "labels", "backdoor", "collude"]


@pytest.mark.parametrize("kind", KINDS)
def test_engines_agree_on_attacks(kind: AttackKind):
    method = Attacked(FedProto(), kind, (0, 2), factor=2.0)
    assert play(method, workers(2), attackers=(0, 2)) == play(method, Inline, attackers=(0, 2))


@pytest.mark.parametrize("method", [FedTGP(server_epochs=3), FedLOO()], ids=lambda m: type(m).__name__)
def test_engines_agree_on_defences(method: Method[Any, Any]):
    filters: tuple[Filter, ...] = (GeometricMedian(), Cosine())
    assert play(method, workers(2), filters=filters) == play(method, Inline, filters=filters)


def test_what_a_defence_remembers_is_in_the_checkpoint(tmp_path: Path):
    make = partial(federation, FedProto(), filters=(Cosine(least=0.5),), fraction=1.0)
    whole = make()
    through = left(whole, list(whole.run()))
    first, second = make(), make()
    records = [first.play_round()]
    checkpoint.save(tmp_path, first)
    (place,) = checkpoint.complete(tmp_path)
    checkpoint.load(place, second)
    again = left(second, [*records, *second.run()])
    assert any(name.startswith("filter1.") for name in through["server"])  # bound, by default, is the first
    assert {name: again[name] for name in ("server", "server.safetensors") if name in again} == {
        name: through[name] for name in ("server", "server.safetensors") if name in through
    }


def test_clients_that_play_alone_are_not_compared():
    method = Alone(Attacked(FedProto(), "random", (0,), factor=50.0))
    assert play(method, rounds=2) == play(method, rounds=2, limits=Limits(bound=False))


def test_the_default_bound_changes_nothing_for_honest_clients():
    bounded = play(FedProto(), fraction=1.0)
    assert bounded == play(FedProto(), fraction=1.0, limits=Limits(bound=False))


def experiment(method: str, attack: str, size: str) -> Experiment:
    """Five clients; by day four rounds of one small architecture, by night 15 of five.

    Client 0 is the bad one, whose last round is looked at.  With ``other`` it is client 3, and the last five rounds
    count: one round differs from the next by some points, with and without an attack.
    """
    rounds = 4 if size == "small" else 15
    small: dict[str, Any] = {"models": {"family": "tiny_mlp"}, "training": {"lr": 0.05, "batch": 10}}
    fields = {"server_batch": 50, "server_epochs": 30} if size == "small" and method == "fedtgp" else {}
    return experiment_from_table(
        {
            "rounds": rounds,
            "clients": 5,
            "method": {"name": method, **fields},
            "data": {"partition": {"kind": "dirichlet", "alpha": 0.5}},
            "attack": {"kind": attack, "clients": [3 if size == "other" else 0], "factor": 10.0},
            "engine": {"name": "inline"},
            "evaluation": {
                "every": 1 if size == "other" else rounds,
                "protocol": "last5" if size == "other" else "final",
                "shared": "never",
                "snapshots": 0,
                "local_prototypes": False,
            },
        }
        | (small if size == "small" else {})
    )


@cache
def played(method: str, attack: str, size: str) -> Result:
    """What a run of these comes to; made once."""
    return protea.run(experiment(method, attack, size))


@pytest.mark.parametrize("size", ["small", *by_night("whole", "other")])
@pytest.mark.parametrize("method", ["fedproto", *by_night("fedtgp")])
def test_one_of_five_that_sends_ten_times_as_long_vectors_does_not_harm_the_others(method: str, size: str):
    alone, attacked = (played(method, kind, size) for kind in ("none", "scale"))
    assert alone.honest is not None and attacked.honest is not None
    assert alone.honest > 0.85
    assert attacked.honest > alone.honest - 0.03
    assert attacked.method == f"{method} attacked" and "honest" in attacked.summary


def test_without_a_bound_the_same_client_ruins_the_others():
    short = replace(experiment("fedproto", "scale", "small"), failures="skip", limits=Limits(bound=False))
    ruined, kept = protea.run(short).honest, played("fedproto", "scale", "small").honest
    assert ruined is not None and kept is not None and ruined < kept - 0.1
