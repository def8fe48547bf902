"""Federations of texts: small models and a pretrained encoder together, on every engine."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from night import by_night
from wanted import encoder

import protea
from protea import Data, Experiment, Method
from protea.config.families import Models
from protea.config.sections import Engine
from protea.core.errors import ClientError, ConfigError
from protea.core.training import Training
from protea.data import Iid, Split
from protea.data.sources.csv_table import Csv
from protea.methods.fedavg import FedAvg
from protea.methods.fedloo import FedLOO
from protea.methods.fedpagr import FedPAGR
from protea.methods.fedpkd import FedPKD
from protea.methods.fedproto import FedProto
from protea.methods.fml import FML
from protea.runs.prepare import prepare

SMALL = tuple({"name": name, "buckets": 300, "width": 8, "length": 16} for name in ("bag", "textcnn", "bilstm"))
Pretrained = tuple[Experiment, int, dict[str, object]]  # what was run, workers of another engine, what it left
COMPLAINTS = {
    "heart": ("chest pain", "palpitations", "irregular pulse", "shortness of breath"),
    "bone": ("broken wrist", "swollen knee", "hip fracture", "sprained ankle"),
    "skin": ("itching rash", "red blisters", "dry eczema", "new mole"),
}


@pytest.fixture(autouse=True)
def views(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PROTEA_VIEWS", str(tmp_path / "views"))
    return tmp_path / "views"


@pytest.fixture
def notes(tmp_path: Path) -> str:
    return written_notes(tmp_path)


def written_notes(folder: Path) -> str:
    """Write 72 notes of 36 patients, three kinds of complaint."""
    rows = [
        (f"Patient {n} came with {what}, since {n % 9} days.", label, n // 2)
        for n, (label, what) in enumerate((k, c) for _ in range(6) for k, cs in COMPLAINTS.items() for c in cs)
    ]
    with (folder / "notes.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label", "patient"), *rows])
    return str(folder / "notes.csv")


def experiment(notes: str, method: Method[Any, Any] | None = None, members: Any = SMALL, **changes: Any) -> Experiment:
    base = Experiment(
        rounds=2,
        clients=len(members),
        method=method or FedProto(),
        data=Data(source=Csv(notes, "label", "patient", "text"), partition=Iid(), split=Split(0.25, 0.0), public=9),
        models=Models(members=members, dim=8, adapter="linear", server="bag"),
        training=Training(lr=0.1),
        engine=Engine("inline"),
    )
    return replace(base, **changes)


def clients(folder: Path) -> dict[str, bytes]:
    """Every client's file in the last checkpoint."""
    files = max((folder / "checkpoints").iterdir()).glob("client*")
    return {path.name: path.read_bytes() for path in files}


def left(found: Experiment, folder: Path) -> dict[str, object]:
    """What a run leaves: records without cost, and its clients."""
    result = protea.run(found, folder)
    records = [line for record in result.records for line in record.lines()]
    for line in records:
        line.pop("cost", None)
    assert clients(folder) and records
    return {"records": records, **clients(folder)}


class StoppedError(Exception):
    pass


def resumes(found: Experiment, folder: Path, whole: dict[str, object]) -> None:
    """A run that ends after its first round, and is resumed, leaves the same clients."""

    def stop(record: Any) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        protea.run(replace(found, checkpoint=replace(found.checkpoint, every=1)), folder / "broken", observers=[stop])
    protea.resume(folder / "broken")
    again = clients(folder / "broken")
    assert again == {name: content for name, content in whole.items() if name != "records"}


@pytest.mark.parametrize(
    "method", [FedProto(), FedPAGR(), FedPKD(server_epochs=1), FedLOO(least=2)], ids=lambda m: type(m).__name__
)
def test_clients_that_read_texts_in_different_ways_learn_together_on_every_engine(
    method: Method[Any, Any], notes: str, tmp_path: Path
):
    inline = left(experiment(notes, method), tmp_path / "inline")
    many = left(experiment(notes, method, engine=Engine("processes", 2)), tmp_path / "many")
    assert inline == many


def test_they_learn_what_words_mean(notes: str):
    *_, last = protea.Run(experiment(notes, rounds=12, training=Training(lr=0.02, optimizer="adam", epochs=3)))
    assert last.accuracy is not None and last.accuracy > 0.6  # three kinds: 1/3 by chance


def test_each_client_s_texts_are_looked_at_once(notes: str, views: Path):
    list(protea.Run(experiment(notes)))
    made = {path: path.stat().st_mtime_ns for path in views.iterdir()}
    list(protea.Run(experiment(notes)))
    assert made and {path: path.stat().st_mtime_ns for path in views.iterdir()} == made


def test_one_architecture_for_all_can_be_averaged(notes: str):
    records = list(protea.Run(experiment(notes, FedAvg(), (SMALL[0],) * 3)))
    assert records[-1].server["head"] > 0  # the average answers the shared test set


def test_a_second_model_must_read_texts_as_the_first(notes: str):
    assert list(protea.Run(experiment(notes, FML(), (SMALL[0],) * 2)))
    other = ({**SMALL[0], "length": 4}, SMALL[1])
    with pytest.raises(ClientError, match="reads texts in another way"):
        list(protea.Run(experiment(notes, FML(), other)))


def test_models_that_do_not_fit_are_refused_before_any_work(notes: str, tmp_path: Path):
    with pytest.raises(ConfigError, match="the samples are texts"):
        protea.run(experiment(notes, members=("tiny_mlp",)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="this model reads texts"):
        prepare(Experiment(models=Models(family="bag")))


def test_no_word_of_a_text_is_written_anywhere(notes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """But into views, which hold numbers; words of class names and settings are no texts."""
    protea.run(experiment(notes), tmp_path / "run")
    said = capsys.readouterr()
    for path in [*(tmp_path / "run").rglob("*"), *(tmp_path / "views").iterdir()]:
        content = path.read_bytes() if path.is_file() else b""
        assert b"palpitations" not in content and b"came with" not in content, path
    assert "palpitations" not in said.out + said.err


@pytest.fixture(
    scope="module",
    params=[((0, 1), 1), *by_night((((0, 2, 4), 2),))],  # each process has to import transformers
    ids=["two depths", "three depths"],
)
def pretrained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pretrained:
    encoder()
    layers, workers = request.param
    folder = tmp_path_factory.mktemp("pretrained")
    depths = [{"name": "hf:minilm", "train_layers": count, "length": 16} for count in layers]
    given = experiment(written_notes(folder), FedPAGR(), (*depths, SMALL[1]), training=Training(lr=0.01), rounds=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROTEA_VIEWS", str(folder / "views"))
        return given, workers, left(given, folder / "inline")


@pytest.mark.xdist_group("test_hf")  # whose process has imported transformers
@pytest.mark.nightly  # each process has to import transformers
def test_a_pretrained_encoder_and_a_small_model_are_the_same_in_other_processes(pretrained: Pretrained, tmp_path: Path):
    given, workers, inline = pretrained
    assert left(replace(given, engine=Engine("processes", workers)), tmp_path / "many") == inline


@pytest.mark.xdist_group("test_hf")
def test_a_pretrained_encoder_and_a_small_model_resume_to_the_bit(pretrained: Pretrained, tmp_path: Path):
    given, _, inline = pretrained
    resumes(given, tmp_path, inline)


def test_a_run_of_texts_resumes_to_the_bit(notes: str, tmp_path: Path):
    found = experiment(notes, rounds=4)
    resumes(found, tmp_path, left(found, tmp_path / "whole"))


def test_tokens_are_whole_numbers_and_stay_so(notes: str):
    factory = prepare(experiment(notes))
    model = factory.make(factory.members[0])
    x, _ = factory.samples(torch.arange(3), model.view).batch(torch.arange(3))
    assert x.dtype == torch.int64 and x.shape == (3, 16)
