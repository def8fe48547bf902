"""``protea export``: every number of real runs, once, where it belongs."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typed import Command
from wanted import extra

import protea
from protea import Data, Experiment
from protea.config.families import Models
from protea.config.sections import Engine
from protea.core.errors import ConfigError
from protea.core.shell import install_hint
from protea.core.training import Training
from protea.data.sources.spiral import Spiral
from protea.methods.fedproto import FedProto
from protea.runs.export import COLUMNS, ExportRow, entries, numbers, write_csv, write_parquet

SMALL = Experiment(
    rounds=2,
    clients=3,
    method=FedProto(pull=1),
    data=Data(source=Spiral(classes=3, points=60)),
    models=Models(family="tiny_mlp", dim=16),
    training=Training(batch=64),
    engine=Engine("inline"),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two settings of one method; the second has not ended."""
    folder = tmp_path_factory.mktemp("runs")
    protea.run(SMALL, folder / "a")
    protea.run(replace(SMALL, method=FedProto(pull=2), seed=5), folder / "b")
    (folder / "b" / "summary.json").unlink()
    return folder


def values(found: list[ExportRow], run: Path, round: int, client: int | None) -> dict[str, float]:
    chosen = [entry for entry in found if entry[0] == str(run) and entry[3:5] == (round, client)]
    assert len({entry[5] for entry in chosen}) == len(chosen)
    return {name: value for *_, name, value in chosen}


def test_a_line_s_numbers_are_named_by_their_path_in_it():
    line = {
        "kind": "round", "round": 4, "accuracy": 0.5, "loss": None, "participants": [7, 9],
        "test": {"head": {"weighted": 0.25}}, "geometry": {"margins": [1.5, 2]}, "failures": {"3": "its loss is nan"},
    }  # fmt: skip
    assert dict(numbers(line)) == {
        "accuracy": 0.5,
        "participants": 2.0,
        "test/head/weighted": 0.25,
        "geometry/margins/0": 1.5,
        "geometry/margins/1": 2.0,
        "failures": 1.0,
    }
    line = {"kind": "client", "round": 4, "client": 2, "up": 120, "test/classes": {"8": [3, 5]}}
    assert dict(numbers(line)) == {"up": 120.0, "test/classes/8/0": 3.0, "test/classes/8/1": 5.0}


def test_all_rounds_and_clients_of_all_runs_are_there(runs: Path):
    found = list(entries([runs]))
    assert {entry[:3] for entry in found} == {
        (str(runs / "a"), "fedproto pull=1", 1),
        (str(runs / "b"), "fedproto pull=2", 5),
    }
    assert {entry[3:5] for entry in found} == {(round, client) for round in (1, 2) for client in (None, 0, 1, 2)}
    lines = [json.loads(line) for line in (runs / "b" / "metrics.jsonl").read_text().splitlines()]
    last = next(line for line in lines if line["kind"] == "round" and line["round"] == 2)
    whole = values(found, runs / "b", 2, None)
    assert whole["accuracy"] == last["accuracy"] and whole["bytes_up"] == last["bytes_up"]
    assert whole["test/head/macro_f1"] == last["test"]["head"]["macro_f1"] and whole["participants"] == 3
    clients = [values(found, runs / "b", 2, client) for client in range(3)]
    hits, samples = (sum(client[name] for client in clients) for name in ("test/method", "test/samples"))
    assert hits / samples == whole["accuracy"]
    assert sum(client["up"] for client in clients) == whole["bytes_up"]


def test_csv_reads_back_as_it_was(runs: Path, tmp_path: Path):
    write_csv(tmp_path / "all.csv", entries([runs]))
    with (tmp_path / "all.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == COLUMNS
    read = [(a, b, int(c), int(d), int(e) if e else None, f, float(g)) for a, b, c, d, e, f, g in rows]
    assert read == list(entries([runs]))
    assert [file.name for file in tmp_path.iterdir()] == ["all.csv"]


def test_parquet_reads_back_as_it_was(runs: Path, tmp_path: Path):
    extra("parquet")
    import pyarrow.parquet as parquet

    write_parquet(tmp_path / "all.parquet", entries([runs]), group=100)  # a last group that is not full
    table = parquet.read_table(tmp_path / "all.parquet")
    assert [(field.name, str(field.type)) for field in table.schema] == [
        ("run", "string"), ("method", "string"), ("seed", "int64"), ("round", "int64"), ("client", "int64"),
        ("name", "string"), ("value", "double"),
    ]  # fmt: skip
    assert [tuple(row.values()) for row in table.to_pylist()] == list(entries([runs]))


def test_what_fails_midway_leaves_the_old_file_and_nothing_else(runs: Path, tmp_path: Path):
    (tmp_path / "all.csv").write_text("old")

    def broken():
        yield next(entries([runs]))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_csv(tmp_path / "all.csv", broken())
    assert (tmp_path / "all.csv").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_without_pyarrow_the_error_says_what_adds_it(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=re.escape(f"{install_hint('parquet')}.  Or write --csv")):
        write_parquet(tmp_path / "all.parquet", entries([runs]))
    assert not list(tmp_path.iterdir())


def test_the_command(runs: Path, tmp_path: Path, typed: Command):
    def call(*words: str | Path) -> tuple[int, str]:
        said = typed("export", *words)
        return said.code, said.err

    count = len(list(entries([runs / "a"])))
    assert call(runs / "a", "--csv", tmp_path / "a.csv") == (0, f"Written: {tmp_path / 'a.csv'}, {count:,} numbers\n")
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 1 + count
    assert call(runs) == (2, "ConfigError: There is nothing to write.  Add --csv FILE or --parquet FILE.\n")
    code, error = call(runs, "--csv", tmp_path / "no" / "a.csv")
    assert code == 2 and "cannot be written: No such file or directory.  Choose another file." in error
    code, error = call(tmp_path / "none", "--csv", tmp_path / "b.csv")
    assert code == 2 and "none is not a folder" in error and not (tmp_path / "b.csv").exists()
