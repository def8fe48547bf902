"""The real thing in small: five architectures on handwritten digits."""

from __future__ import annotations

from pathlib import Path

import pytest
from night import by_night

import protea
from protea.config import registry
from protea.config.experiment import load_experiment

DIGITS = Path(__file__).parents[2] / "examples" / "digits.toml"
SETTINGS = {  # that they need to learn in a few rounds
    "fedhp": ["training.optimizer=adam", "training.lr=0.005"],  # as its authors have it
    "protonorm": ["training.batch=10", "training.lr=0.02"],
    "fedtsp": ["method.encoder=words"],  # in a plain clone
    "fedtgp": ["training.batch=10"],
    "fednh": ["method.scale=30.0", "method.scale_learns=false"],  # the learned scale takes its time
}


@pytest.mark.parametrize("changes", [("rounds=5", "data.samples=900"), *by_night((("rounds=6",),))], ids="-".join)
def test_fedproto_clearly_beats_its_own_first_round_and_the_majority_class(changes: tuple[str, ...]) -> None:
    result = protea.run(load_experiment(DIGITS, changes))
    first, last = result.records[0].accuracy, result.records[-1].accuracy
    assert first is not None and last is not None
    assert last > first + 0.2
    assert last > result.summary["majority"] + 0.2
    assert result.records[-1].test["global_prototypes"].weighted == last  # its own rule


@pytest.mark.parametrize("size", ["half", *by_night("whole")])
@pytest.mark.parametrize("method", registry.table("methods"))
def test_every_method_learns_digits(method: str, size: str) -> None:
    changes = [f"method.name={method}", "data.partition.alpha=1", "engine=inline"]
    changes += ["training.batch=20", "training.lr=0.05"]
    if size == "whole":
        changes += ["rounds=4", "clients=4"]
    else:
        changes += ["rounds=3", "clients=3", "data.samples=900", "evaluation.every=3"]
    needs = registry.find("methods", method)().needs
    if needs.public_data:
        changes += ["data.public=200", "models.server=tiny_cnn"]
    if needs.same_architecture:
        changes += ["models.family=tiny_cnn"]
    elif size == "half":
        changes += ['models.members=["tiny_mlp", "tiny_cnn"]']
    changes += SETTINGS.get(method, [])
    accuracies = [record.accuracy for record in protea.Run(load_experiment(DIGITS, changes))]
    assert accuracies[-1] is not None and accuracies[-1] > (0.75 if size == "whole" else 0.5)  # ten digits


def test_the_same_experiment_gives_the_same_numbers() -> None:
    experiment = load_experiment(DIGITS, ["rounds=1", "clients=3", "data.samples=600", "engine=inline"])
    a, b = (next(iter(protea.Run(experiment))) for _ in range(2))
    assert a.clients == b.clients and a.loss == b.loss
