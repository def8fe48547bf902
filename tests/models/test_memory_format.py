"""Channels last: asked once, kept with the machine and with the run, and no matter to what is learned."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from night import by_night

import protea
from protea import Data, Experiment
from protea.config import registry
from protea.config.families import Models
from protea.config.sections import Checkpoint, Engine
from protea.core.errors import ConfigError
from protea.core.method import Method
from protea.core.steps.memory_format import CHANNELS_LAST
from protea.core.training import Training
from protea.data.sources.arrays import Arrays
from protea.federation.record import Cost, Record
from protea.methods.fedproto import FedProto
from protea.models.maker import ModelMaker
from protea.runs.prepare import prepare

BOTH = ("htcnn1", "htcnn2")


@pytest.fixture(autouse=True)
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that was never asked."""
    monkeypatch.setenv("PROTEA_MEMORY_FORMATS", str(tmp_path / "answers"))
    return tmp_path / "answers"


def images(size: int = 28) -> Arrays:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(80) % 4
    x = torch.randn(4, 1, size, size, generator=g)[y] + torch.randn(80, 1, size, size, generator=g)
    return Arrays(x, y, names=("a", "b", "c", "d"))


def experiment(models: Models, method: Method[Any, Any] | None = None, **settings: Any) -> Experiment:
    return Experiment(
        rounds=2, clients=2, method=method or FedProto(), data=Data(source=images()), models=models,
        training=Training(batch=8), engine=Engine("inline"), **settings,
    )  # fmt: skip


def models(*last: str) -> Models:
    return Models(members=BOTH, dim=64, channels_last=last)


def test_what_is_given_is_not_asked(answers: Path):
    assert ModelMaker(models("htcnn2"), (1, 28, 28), 4).channels_last(8) == ("htcnn2",)
    assert not answers.exists()


def test_the_default_is_a_table_and_asks_no_clock(answers: Path):
    maker = ModelMaker(Models(members=(*BOTH, "resnet18", "mlp"), server="googlenet"), (3, 32, 32), 4)
    assert maker.channels_last(8) == tuple(sorted({*BOTH, "resnet18", "mlp", "googlenet"} & CHANNELS_LAST))
    assert not answers.exists()


@pytest.mark.parametrize("shape", [(8,), (1, 8, 8)])
def test_small_samples_are_not_worth_asking(shape: tuple[int, ...], answers: Path):
    assert ModelMaker(Models(family="tiny5"), shape, 4).channels_last(8) == ()
    assert not answers.exists()


def test_the_machine_answers_once(answers: Path):
    maker = ModelMaker(Models(members=(*BOTH, "mlp"), dim=64, channels_last="measure"), (1, 28, 28), 4)
    first = maker.channels_last(8)
    assert set(first) <= set(BOTH)  # what has no convolution is not among them
    said = {path: path.read_text() for path in answers.iterdir()}
    assert len(said) == 3 and set(said.values()) <= {"plain", "channels last"}
    for path, answer in said.items():
        path.write_text("plain" if answer == "channels last" else "channels last")
    assert set(maker.channels_last(8)) == {*BOTH, "mlp"} - set(first)  # it believes what is written, and asks no more
    maker.channels_last(16)
    assert len(list(answers.iterdir())) == 6  # another batch is another question


def test_asking_draws_nothing_from_the_run():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    ModelMaker(Models(members=BOTH, dim=64, channels_last="measure"), (1, 28, 28), 4).channels_last(8)
    assert torch.equal(before, torch.get_rng_state())


def test_an_unwritable_folder_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PROTEA_MEMORY_FORMATS", str(tmp_path / "file" / "below"))
    assert set(
        ModelMaker(Models(members=BOTH, dim=64, channels_last="measure"), (1, 28, 28), 4).channels_last(8)
    ) <= set(BOTH)


def test_weights_lie_as_they_should():
    factory = prepare(experiment(models("htcnn2")))
    strides = [
        {m.weight.stride() for m in factory.make(member).modules() if isinstance(m, torch.nn.Conv2d)}
        for member in factory.members
    ]
    make = ModelMaker(models(), (1, 28, 28), 4)
    plain = {m.weight.stride() for m in make("htcnn2").modules() if isinstance(m, torch.nn.Conv2d)}
    assert strides[1] != plain
    assert strides[0] == {m.weight.stride() for m in make("htcnn1").modules() if isinstance(m, torch.nn.Conv2d)}


@pytest.mark.parametrize("name", ["fedproto", *by_night("fml", "fedavg", "fedprox", "fednh", "fedkd", "lg_fedavg")])
def test_it_learns_the_same_and_engines_and_resumed_runs_agree_to_the_bit(name: str, tmp_path: Path):
    method = registry.find("methods", name)()
    members = ("htcnn2",) if method.needs.same_architecture else BOTH
    plain, last = (
        experiment(Models(members=members, dim=64, channels_last=c), method, checkpoint=Checkpoint(every=1))
        for c in ((), members)
    )
    one = protea.run(last, tmp_path / "inline")
    losses = [[record.loss for record in result.records] for result in (protea.run(plain), one)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    two = protea.run(replace(last, engine=Engine(workers=2)), tmp_path / "processes")
    with pytest.raises(KeyboardInterrupt):
        protea.run(last, tmp_path / "resumed", observers=[stop])
    three = protea.resume(tmp_path / "resumed", last)
    assert learned(one) == learned(two) == learned(three)
    for path in sorted((tmp_path / "inline").rglob("000002/*.safetensors")):
        for other in ("processes", "resumed"):
            assert path.read_bytes() == (tmp_path / other / path.relative_to(tmp_path / "inline")).read_bytes()


def test_what_was_settled_is_in_the_config_and_holds_for_good(tmp_path: Path, answers: Path):
    asked = experiment(Models(members=BOTH, dim=64, channels_last="measure"))
    run = protea.Run(asked, tmp_path / "full")
    full = run.finish()
    stored = tomllib.loads((tmp_path / "full" / "config.toml").read_text())["models"]["channels_last"]
    assert tuple(stored) == run.experiment.models.channels_last
    assert set(stored) <= set(BOTH)

    half = tmp_path / "half"
    with pytest.raises(KeyboardInterrupt):
        protea.run(replace(asked, checkpoint=replace(asked.checkpoint, every=1)), half, observers=[stop])
    for path in answers.iterdir():
        path.write_text("plain" if path.read_text() == "channels last" else "channels last")  # the machine thinks anew
    with pytest.raises(ConfigError, match="channels_last"):
        protea.resume(half, experiment(models("htcnn1") if tuple(stored) != ("htcnn1",) else models()))
    resumed = protea.resume(half, replace(asked, checkpoint=replace(asked.checkpoint, every=1)))
    assert learned(resumed) == learned(full)


def learned(result: protea.Result) -> list[Record]:
    return [replace(record, cost=Cost({}, 0)) for record in result.records]


def stop(record: Any) -> None:
    raise KeyboardInterrupt


def test_a_name_that_no_model_has_is_refused():
    with pytest.raises(ConfigError, match=r"channels_last has 'htcn1', which no model here is.  Did you mean htcnn1"):
        prepare(experiment(models("htcn1")))
