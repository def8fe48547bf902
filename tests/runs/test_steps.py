"""SGD steps of clients, beside rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import protea
from protea import Data, Experiment
from protea.config.families import Models
from protea.config.sections import Engine, Faults
from protea.core.client import Client
from protea.core.training import Training, batches
from protea.data.sources.spiral import Spiral
from protea.methods.local import Local
from protea.runs.steps import epoch_steps, mean_steps


@given(st.integers(1, 60), st.integers(1, 12), st.sampled_from(["keep", "drop"]))
def test_an_epoch_has_as_many_steps_as_batches(samples: int, batch: int, last: str):
    assert epoch_steps(samples, batch, last) == len(list(batches(torch.arange(samples), batch, last)))


def test_the_summary_counts_the_steps_that_clients_made(monkeypatch: pytest.MonkeyPatch):
    made: list[int] = []

    class Counting(Local):
        def local_update(self, client: Client, down: None) -> None:
            def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                made.append(client.id)
                return torch.nn.functional.cross_entropy(client.model(x), y)

            client.fit(loss)

    experiment = Experiment(
        method=Counting(), rounds=4, clients=5, fraction=0.6, faults=Faults(dropout=0.3), engine=Engine("inline"),
        data=Data(source=Spiral(points=30)), models=Models(family="tiny_mlp", dim=4),
        training=Training(epochs=2, batch=7),
    )  # fmt: skip
    result = protea.run(experiment)
    assert made and result.steps == int(len(made) / 5 + 0.5)
    assert f"{result.steps} steps a client" in repr(result)
    assert any(record.absent for record in result.records)  # some dropped out


def test_nobody_knows_the_steps_of_sites():
    assert mean_steps({}, []) is None
    result = protea.Result(None, [], {"method": "local", "steps": None})
    assert result.steps is None and replace(result, summary={"method": "local"}).steps is None
