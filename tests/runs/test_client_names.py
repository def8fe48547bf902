"""Clients that are called by names: by settings, in records, and in tables of gains."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typed import Command

import protea
from protea import Data, Evaluation, Experiment, Models
from protea.cli import gain_tables
from protea.core.errors import ConfigError
from protea.data import Iid
from protea.data.sources.spiral import Spiral
from protea.methods.fedproto import FedProto
from protea.methods.local import Local
from protea.runs.compare import compare
from protea.runs.prepare import prepare
from protea.runs.reader import client_number

SPIRAL = Experiment(
    rounds=1,
    clients=3,
    method=FedProto(),
    data=Data(source=Spiral(points=60), partition=Iid(), names=("north", "south", "coast")),
    models=Models(family="tiny_mlp", dim=16),
    evaluation=Evaluation(protocol="final"),
    engine=protea.Engine("inline"),
)


def test_clients_have_the_names_that_the_settings_give_them():
    models = Models("tiny_mlp", dim=16, clients={"coast": {"name": "tiny_mlp", "head": [8]}})
    factory = prepare(replace(SPIRAL, models=models))
    assert factory.data.client_names() == ["north", "south", "coast"]
    assert [client["site"] for client in factory.describe()["clients"]] == ["north", "south", "coast"]
    assert [member.head for member in factory.members] == [(), (), (8,)]


@pytest.mark.parametrize(
    ("names", "clients", "message"),
    [
        (("a", "b"), {}, "as many different names as there are clients, 3"),
        (("a", "b", "b"), {}, "as many different names"),
        (("a", "b", " "), {}, "' ' is no name"),
        (
            ("a", "bee", "c"),
            {"be": "tiny_mlp"},
            "has 'be', and no client is called so.  Did you mean bee",
        ),
        (None, {"a": "tiny_mlp"}, "They have none: set data.names, or deal out by-key"),
    ],
)
def test_names_that_fit_no_client_are_refused(names: tuple[str, ...] | None, clients: dict[str, str], message: str):
    experiment = replace(
        SPIRAL, data=replace(SPIRAL.data, names=names), models=Models("tiny_mlp", dim=16, clients=clients or None)
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        prepare(experiment)


def test_tables_of_gains_call_them_so(tmp_path: Path):
    for name, method in (("fed", FedProto()), ("local", Local())):
        protea.run(replace(SPIRAL, method=method), tmp_path / name)
    found = compare([tmp_path / "fed", tmp_path / "local"], clients=True)
    assert sorted(gain_tables.client_columns(found)["client"]) == ["coast", "north", "south"]
    assert {row["name"] for row in gain_tables.plain_clients(found)} == {"coast", "north", "south"}
    gain = protea.load(tmp_path / "fed").result.gain_over(protea.load(tmp_path / "local").result)
    assert [client.name for client in gain.clients] == ["north", "south", "coast"]


def test_a_run_that_goes_on_keeps_them(tmp_path: Path):
    run = protea.Run(replace(SPIRAL, rounds=2, checkpoint=protea.Checkpoint(every=1)), tmp_path / "run")
    next(iter(run))
    run.close()
    result = protea.resume(tmp_path / "run")
    assert result.summary["rounds"] == 2
    first = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0]
    assert '"site": "coast"' in first


def test_commands_take_a_client_by_its_name(tmp_path: Path, typed: Command):
    protea.Run(SPIRAL, tmp_path / "run").finish()
    assert client_number(tmp_path / "run", "coast") == 2 == client_number(tmp_path / "run", "2")
    said = typed("export-model", tmp_path / "run", "--client", "south", "--to", tmp_path / "model")
    assert said.code == 0 and said.lines[0].startswith("Client south (1) of run ")
    data = Spiral(points=60).load()
    np.savez(tmp_path / "new.npz", x=data.x.numpy())
    answers = [
        typed(
            "predict", tmp_path / "run", tmp_path / "new.npz", "--client", client, "--out", tmp_path / f"{client}.csv"
        )
        for client in ("1", "south")
    ]
    assert [each.code for each in answers] == [0, 0]
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "south.csv").read_bytes()
    said = typed("predict", tmp_path / "run", tmp_path / "new.npz", "--client", "suoth")
    assert said.code == 2 and "no client is called so. Did you mean south?" in " ".join(said.err.split())
    said = typed("predict", tmp_path / "run", tmp_path / "new.npz")
    assert said.code == 2 and "--client 2, or by name: north, south, coast." in " ".join(said.err.split())
