"""Runs whose method is wrapped: each client alone, or protected, as an ordinary run with a directory of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import protea
from protea import Checkpoint, Data, Engine, Experiment, Models, Run
from protea.config.experiment import experiment_to_toml
from protea.core.errors import ConfigError
from protea.core.training import Training
from protea.data import PartitionFile, Split
from protea.federation.record import Cost, Record
from protea.methods.fedtgp import FedTGP
from protea.methods.local import Local
from protea.runs.compare import compare
from protea.runs.environment import run_path
from protea.runs.reader import RunReader
from protea.runs.simulation import Simulation

SMALL = Experiment(
    rounds=4,
    clients=3,
    method=FedTGP(server_epochs=2),
    data=Data(samples=400, split=Split(validation=0.2)),
    models=Models(family="tiny_mlp", dim=16),
    training=Training(batch=30),
    engine=Engine("inline"),
    checkpoint=Checkpoint(every=2),
)
PLAYED = {"alone": replace(SMALL, alone=True), "protected": replace(SMALL, protect=True)}
X = torch.rand(7, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def learned(run: Run) -> list[Record]:
    return [replace(record, cost=Cost()) for record in run.records]


@pytest.mark.parametrize("word", PLAYED)
def test_it_is_a_run_like_others(word: str, tmp_path: Path):
    experiment = PLAYED[word]
    whole = Run(experiment, tmp_path / "whole")
    assert whole.finish().method == f"fedtgp {word}"
    with Run(experiment, tmp_path / "parts") as run:
        for record in run:
            if record.round == 3:
                break  # the checkpoint is of round 2
    assert RunReader.read(tmp_path / "parts").method == f"fedtgp {word}"  # also before it has ended
    protea.resume(tmp_path / "parts")
    loaded = protea.load(tmp_path / "parts")
    assert learned(loaded) == learned(whole)
    for client in range(3):
        assert torch.equal(loaded.predict(X, client=client), whole.predict(X, client=client))
    assert (loaded.prototypes is None) == (word == "alone")
    assert run_path(tmp_path, experiment).name.startswith(f"digits-fedtgp-{word}-s1-")


def test_a_run_of_a_version_without_these_settings_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def config(setup: Simulation) -> str:
        return experiment_to_toml(setup.experiment).replace("alone = false\n", "").replace("protect = false\n", "")

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "config", config)
        with Run(SMALL, tmp_path / "run") as run:
            next(iter(run))
    assert "alone" not in (tmp_path / "run/config.toml").read_text()
    assert Run(SMALL, tmp_path / "run").finish().method == "fedtgp"
    with pytest.raises(ConfigError, match="alone is true, false there"):
        Run(PLAYED["alone"], tmp_path / "run")


def test_they_stand_in_one_table(tmp_path: Path):
    every = {"plain": SMALL, **PLAYED, "local": replace(SMALL, method=Local())}
    for name, experiment in every.items():
        Run(replace(experiment, rounds=1), tmp_path / name).finish()
    table = compare([tmp_path / name for name in every])
    assert {row.label for row in table.rows} == {"fedtgp", "fedtgp alone", "fedtgp protected", "local"}


def test_a_protected_run_has_the_answers_of_the_plain_run_and_of_local(tmp_path: Path):
    run, plain, local = (Run(experiment) for experiment in (PLAYED["protected"], SMALL, replace(SMALL, method=Local())))
    for each in (run, plain, local):
        each.finish()
    last = run.records[-1]
    assert last.test["unprotected"] == plain.records[-1].test["method"]
    assert last.test["unfederated"] == local.records[-1].test["method"]
    assert torch.equal(run.predict(X, 1, rule="unprotected"), plain.predict(X, 1))
    assert torch.equal(run.predict(X, 1, rule="unfederated"), local.predict(X, 1))
    for client in last.clients:
        hits = client.parts["validation"].hits
        assert hits["method"] >= max(hits["unprotected"], hits["unfederated"])


def test_a_client_that_holds_out_nothing_is_named_before_any_work(tmp_path: Path):
    Run(replace(SMALL, rounds=1), tmp_path / "plain").finish()
    partition = json.loads((tmp_path / "plain/partition.json").read_text())
    first = partition["clients"][0]
    first["train"], first["validation"] = first["train"] + first["validation"], []
    (tmp_path / "other.json").write_text(json.dumps(partition))
    data = replace(SMALL.data, partition=PartitionFile(str(tmp_path / "other.json")))
    with pytest.raises(ConfigError, match=r"each client holds out, and client 0.*1 of 3 clients"):
        Run(replace(PLAYED["protected"], data=data), tmp_path / "run").finish()
