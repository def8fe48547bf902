"""What ``protea show`` says of a run is what the run then does."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
import torch
from every import METHODS, parameters
from rich.console import Console

import protea
from protea import Data, Experiment, Method
from protea.cli.show import show_experiment
from protea.config.experiment import experiment_to_toml
from protea.config.families import Models
from protea.config.sections import Engine
from protea.core.lowrank import LowRank
from protea.core.training import Training
from protea.data import Arrays, Iid, Pathological, Split
from protea.data.sources.spiral import Spiral
from protea.methods.fedplvm import ClustersAndModel
from protea.runs.prepare import prepare
from protea.studies import preview

TINY = Experiment(
    rounds=2,
    clients=3,
    data=Data(source=Spiral(classes=4, points=30), partition=Pathological(classes_per_client=2), public=10),
    models=Models(family="tiny_mlp", server="tiny_mlp", dim=16),
    training=Training(batch=32),
    engine=Engine("inline"),
)


@parameters({name: method for name, method in METHODS.items() if name != "consensus"})
def test_the_bytes_foretold_are_those_of_a_second_round(method: Method[Any, Any]):
    experiment = replace(TINY, method=method)
    *_, second = protea.Run(experiment)
    foretold = preview.traffic(experiment, prepare(experiment))
    found = (foretold.up, foretold.down)
    if method.up is LowRank:  # whose size depends on the weights
        found = pytest.approx(found, rel=0.02)  # type: ignore[assignment]
    if method.up is ClustersAndModel:  # whose rows depend on the features
        found = pytest.approx(found, rel=0.2)  # type: ignore[assignment]
    assert (second.bytes_up, second.bytes_down) == found


def test_prototypes_of_two_classes_each_are_the_bytes_one_can_count():
    """Up: 3 clients send 2 prototypes of 16 numbers and 4 counts.  Down: all that are known, to each of the three."""
    factory = prepare(TINY)
    known = len({int(c) for client in range(3) for c in factory.data.dataset.y[factory.data.rows(client)]})
    foretold = preview.traffic(TINY, factory)
    assert foretold.up == 3 * 4 * (2 * 16 + 4)
    assert foretold.down == 3 * 4 * (known * 16 + 4)


def test_a_part_of_the_clients_sends_that_part_of_the_bytes():
    experiment = replace(TINY, fraction=1 / 3)
    whole, third = preview.traffic(TINY, prepare(TINY)), preview.traffic(experiment, prepare(experiment))
    assert (3 * third.up, 3 * third.down) == pytest.approx((whole.up, whole.down))


def test_foretelling_changes_nothing_of_what_follows():
    factory = prepare(TINY)
    before = [record.test for record in protea.Run(TINY)]
    state = torch.get_rng_state()
    preview.traffic(TINY, factory)
    assert torch.equal(torch.get_rng_state(), state)
    assert [record.test for record in protea.Run(TINY)] == before


def test_a_client_in_small_has_few_samples_of_each_of_its_classes():
    data = prepare(TINY).data
    small = preview.miniature(data)
    for client in range(3):
        rows = small.rows(client, "train")
        assert set(rows.tolist()) <= set(data.rows(client, "train").tolist())
        whole, few = (data.dataset.y[part].bincount(minlength=4) for part in (data.rows(client, "train"), rows))
        assert few.tolist() == whole.clamp(max=preview.FEW).tolist()
        assert len(small.rows(client, "test")) == 0


def shown(experiment: Experiment, width: int = 100) -> str:
    console = Console(file=StringIO(), width=width)
    show_experiment(console, experiment)
    return console.file.getvalue()


def test_majority_is_the_accuracy_of_the_commonest_class_of_each_client():
    """One client with 60 samples of one class and 20 of another: of its 16 test samples, 12 are of the first."""
    x, y = torch.randn(80, 3, generator=torch.Generator().manual_seed(0)), [0] * 60 + [1] * 20
    data = Data(source=Arrays(x, y), partition=Iid(), split=Split(test=0.2, validation=0.0))
    experiment = replace(TINY, clients=1, data=data)
    assert prepare(experiment).data.majority() == 0.75
    assert "Always answering a client's commonest class: 75.0 % accuracy." in shown(experiment)
    assert protea.run(replace(experiment, rounds=1)).summary["majority"] == 0.75


def test_tables_say_who_has_which_data_and_which_model():
    members = ("tiny_mlp", {"name": "mlp", "hidden": [5], "head": [7]})
    experiment = replace(TINY, clients=3, models=Models(members=members, dim=4))
    text = shown(experiment)
    assert experiment_to_toml(experiment).strip() in "\n".join(line.rstrip() for line in text.splitlines())
    rows = {tuple(line.split()[:2]): line.split() for line in text.splitlines() if line.startswith(" ")}
    data = prepare(experiment).data
    for client, name in enumerate(("tiny_mlp", "mlp", "tiny_mlp")):
        parts = [str(len(data.rows(client, part))) for part in ("train", "validation", "test")]
        counts = [str(n) for n in data.class_counts()[client].tolist() if n]
        assert rows[str(client), name] == [str(client), name, *parts, *counts]
    # a body from 2 to 5 numbers, pooled to 4 by no weights, a head from 4 by 7 to 4 classes; one client has it
    assert rows["mlp", "15"] == ["mlp", str(2 * 5 + 5), "0", str(4 * 7 + 7 + 7 * 4 + 4), "1"]
    assert "fedproto: about " in text and " up and " in text


def test_many_clients_and_classes_are_summed_up():
    source = Spiral(classes=22, points=12)
    text = shown(replace(TINY, clients=22, data=Data(source=source, partition=Iid())))
    assert "... 2 more" in text and "largest class" in text
