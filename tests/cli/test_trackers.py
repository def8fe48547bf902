"""TensorBoard and MLflow get every round's numbers: what they kept is read back by their own readers."""

from __future__ import annotations

import json
import re
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import warm
from typed import DIGITS, Command
from waiting import until
from wanted import extra

from protea.cli import trackers
from protea.core.errors import ConfigError
from protea.core.shell import install_hint
from protea.methods.local import Local

SMALL = f"{DIGITS}\n[evaluation]\nevery = 2\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "exp.toml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(typed: Command, *words: str) -> int:
    return typed("run", "exp.toml", "--quiet", *words).code


def rounds(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "round"]


@dataclass(frozen=True)
class Broken(Local):
    """Fails in round 2."""

    def aggregate(self, server, uploads):
        if server.round == 2:
            raise RuntimeError("out of order")


def test_nested_tables_become_one():
    assert trackers.flat({"a": {"b": 1, "c": {"d": [2]}}, "e": None}, ".") == {"a.b": 1, "a.c.d": [2], "e": None}


def test_tensorboard_has_every_number_of_every_round(folder: Path, typed: Command):
    extra("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert run(typed, "--log", "tensorboard", "--out", "here", "--beside", "local") == 0
    events = EventAccumulator(str(folder / "here" / "tensorboard")).Reload()
    first, second, third = rounds(folder / "here")
    assert first["test"] == {}  # rounds without evaluation have no accuracy
    found = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    for tag, number in {
        "test/head/weighted": lambda line: line["test"]["head"]["weighted"],
        "validation/method/uniform": lambda line: line["validation"]["method"]["uniform"],
        "geometry/shrinkage": lambda line: line["geometry"]["shrinkage"],
    }.items():
        assert found[tag] == [(2, pytest.approx(number(second))), (3, pytest.approx(number(third)))]
    assert found["bytes_up"] == [(line["round"], line["bytes_up"]) for line in (first, second, third)]
    assert found["shared/method/ensemble"] == [(3, pytest.approx(third["shared"]["method"]["ensemble"]))]
    summary = json.loads((folder / "here" / "summary.json").read_text())
    assert found["headline"] == [(3, pytest.approx(summary["accuracy"]))]
    assert "round" not in found and not any(tag.startswith(("participants", "classes")) for tag in found)
    text = events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| data.samples | 300 |" in text and "| method.name | fedproto |" in text
    assert (folder / "here-local" / "tensorboard").is_dir()


def test_a_run_that_fails_keeps_what_was_logged(folder: Path, typed: Command):
    extra("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(RuntimeError):
        run(typed, "--log", "tensorboard", "--out", "here", "method=test_trackers:Broken")
    events = EventAccumulator(str(folder / "here" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1] and "headline" not in events.Tags()["scalars"]


@pytest.mark.filterwarnings("ignore")  # of MLflow and what it imports
@pytest.mark.nightly  # it takes long to import
def test_mlflow_has_settings_and_every_number(folder: Path, typed: Command):
    extra("mlflow")
    from mlflow.tracking import MlflowClient

    assert run(typed, "--log", "mlflow", "--out", "runs/good") == 0
    with pytest.raises(RuntimeError):
        run(typed, "--log", "mlflow", "--out", "runs/bad", "method=test_trackers:Broken")
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'runs' / 'mlflow.db'}")
    group = client.get_experiment_by_name("protea")
    found = {each.info.run_name: each for each in client.search_runs([group.experiment_id])}
    good, bad = found["good"], found["bad"]
    assert (good.info.status, bad.info.status) == ("FINISHED", "FAILED")
    assert good.data.params["method.name"] == "fedproto" and good.data.params["data.samples"] == "300"
    assert good.data.tags["method"] == "fedproto" and "headline" not in bad.data.metrics
    lines = rounds(folder / "runs" / "good")
    history = client.get_metric_history(good.info.run_id, "test/head/weighted")
    assert [(m.step, m.value) for m in history] == [(n, lines[n - 1]["test"]["head"]["weighted"]) for n in (2, 3)]
    assert good.data.metrics["headline"] == json.loads((folder / "runs/good/summary.json").read_text())["accuracy"]


def kept_by_wandb(path: Path) -> list[Any]:
    """The records of the one offline run in a folder: a log in blocks of 32 KiB, whose entries may be in parts."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = path.glob("wandb/offline-run-*/run-*.wandb")
    content, at, part, found = file.read_bytes(), 7, b"", []
    assert content.startswith(b":W&B")
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        part += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(part))
            part = b""
    return found


def test_weights_and_biases_has_settings_and_every_number_in_a_file_of_the_run(
    folder: Path, typed: Command, monkeypatch: pytest.MonkeyPatch
):
    """Nobody is asked for anything: there is no key, and the program is told to be offline."""
    extra("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # where nobody is, should it ask all the same
    assert run(typed, "--log", "wandb", "--out", "here") == 0
    with pytest.raises(RuntimeError):
        run(typed, "--log", "wandb", "--out", "bad", "method=test_trackers:Broken")
    records = kept_by_wandb(folder / "here")
    found: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for name, value in items.items():
            found.setdefault(name, []).append((items["_step"], value))
    lines = rounds(folder / "here")
    assert found["test/head/weighted"] == [(n, lines[n - 1]["test"]["head"]["weighted"]) for n in (2, 3)]
    assert found["bytes_up"] == [(line["round"], line["bytes_up"]) for line in lines] and "round" not in found
    settings = {
        "/".join(item.nested_key) or item.key: json.loads(item.value_json)
        for record in records
        for item in record.run.config.update
    }
    assert settings["data.samples"] == 300 and settings["method.name"] == "fedproto"
    summaries = {item.key: item.value_json for record in records for item in record.summary.update}
    accuracy = json.loads((folder / "here" / "summary.json").read_text())["accuracy"]
    assert json.loads(summaries["headline"]) == accuracy
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [0]
    # The program of wandb that writes the file may end after the call that tells it to.
    until(lambda: any(record.HasField("exit") for record in kept_by_wandb(folder / "bad")))
    assert [record.exit.exit_code for record in kept_by_wandb(folder / "bad") if record.HasField("exit")] == [1]


def test_a_tracker_that_there_is_not_is_refused_before_any_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch, typed: Command
):
    with pytest.raises(ConfigError, match=r"--log tensorbord: there is no such tracker.  Did you mean tensorboard\?"):
        trackers.make_trackers(["tensorbord"])
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match=re.escape(f"Install it: {install_hint('tensorboard')}")):
        trackers.make_trackers(["tensorboard"])
    assert run(typed, "--log", "tensorboard", "--out", "here") == 2 and not (folder / "here").exists()


def test_nothing_is_imported_that_was_not_asked_for(tmp_path: Path):
    names = ("tensorboard", "mlflow", "wandb", "optuna")
    code = f"import sys, protea.cli.app; print([name for name in {names} if name in sys.modules])"
    (tmp_path / "look.py").write_text(code)
    assert warm.script(tmp_path / "look.py", tmp_path, tmp_path) == warm.Ended(0, "[]\n", "")
