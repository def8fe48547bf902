"""The table of results, and the leaderboard that is made from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typed import Command
from wanted import extra

import protea
from protea import Data, Experiment
from protea.config.experiment import load_experiment, method_label
from protea.config.families import Models
from protea.config.sections import Engine
from protea.config.toml import to_table
from protea.core.errors import ConfigError
from protea.data.sources.digits import Digits
from protea.federation.played import method_of as played
from protea.federation.record import DataRecord
from protea.runs.reader import RunReader
from protea.studies.leaderboard import Board, boards, markdown, overview
from protea.studies.result_rows import ResultRow, merged, method_of, read_rows, rows_of, write_rows


def rows() -> list[ResultRow]:
    """Two settings: in one a method is better than Local on every seed, in the other worse."""
    found = []
    for setting, gain in (("easy", 3.0), ("hard", -5.0)):
        for seed, base in ((1, 80.0), (2, 84.0), (3, 81.0)):
            noise = 0.2 * seed
            found.append(ResultRow(setting, "local", seed, 10, own=base, bytes=0, seconds=2.0))
            found.append(
                ResultRow(setting, "fedproto", seed, 10, own=base + gain + noise, bytes=2_000_000, seconds=3.0)
            )
            found.append(ResultRow(setting, "fedproto alone", seed, 10, own=base - 1, bytes=0, seconds=3.0))
    return found


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("digits") / "run"
    data = Data(source=Digits(), samples=200)
    models = Models(family="tiny_mlp", dim=8)
    protea.run(Experiment(rounds=2, clients=3, data=data, models=models, engine=Engine("inline")), place)
    return place


def test_a_later_round_counts_and_rows_are_there_once():
    first = ResultRow("easy", "fedproto", 1, 5, own=10.0)
    again = replace(first, own=20.0)
    assert merged([first], [again]) == [again]
    [board] = boards([*merged([first]), replace(first, round=10, own=90.0)])
    assert board.entries[0].mean("own") == 90.0


def test_places_and_differences_are_those_of_the_numbers():
    easy, hard = boards(rows())
    assert [entry.method for entry in easy.entries] == ["fedproto", "local", "fedproto alone"]
    assert [entry.method for entry in hard.entries] == ["local", "fedproto alone", "fedproto"]
    head, lines = easy.table()
    line = dict(zip(head, lines[0], strict=True))
    assert line["minus Local"] == "**+3.4 [2.9, 3.9]**" and line["MB"] == "2.00" and line["time"] == "1.5"
    assert "server" not in head and "steps" not in head  # nobody has them
    assert overview([easy, hard]) == [["fedproto", "1.5", "2", "1", "1"], ["local", "1.5", "2", "-", "-"]]


def test_without_local_there_is_no_difference():
    [board] = boards([row for row in rows() if row.method != "local" and row.setting == "easy"])
    assert isinstance(board, Board) and board.local is None and "minus Local" not in board.table()[0]


def test_a_file_gives_back_what_was_written(tmp_path: Path):
    extra("parquet")
    write_rows(tmp_path / "runs.parquet", rows())
    assert read_rows(tmp_path / "runs.parquet") == rows()
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no table")
    with pytest.raises(ConfigError, match=r"bad\.parquet cannot be read as a table of results"):
        read_rows(tmp_path / "bad.parquet")


def test_rows_of_real_runs_say_what_their_records_say(digits_run: Path):
    run = RunReader.read(digits_run)
    found = rows_of([digits_run])
    assert [row.round for row in found] == [record.round for record in run.scored]
    last = found[-1]
    assert last.own == pytest.approx(100 * (run.scored[-1].accuracy or 0), abs=0.01)
    assert last.bytes == run.scored[-1].total_up + run.scored[-1].total_down
    sizes = [sum(client.train) for client in run.data.clients]
    batch = run.config["training"]["batch"]
    steps = sum(-(-size // batch) for size in sizes) / len(sizes) * last.round * run.config["training"]["epochs"]
    assert last.steps == pytest.approx(steps, abs=0.5)
    assert last.setting.startswith("digits, ")


def test_the_command_writes_both_pages_and_adds_to_the_file(digits_run: Path, tmp_path: Path, typed: Command):
    extra("parquet")
    out, data = tmp_path / "board.md", tmp_path / "runs.parquet"
    write_rows(data, rows())
    said = typed("reproduce", "--leaderboard", digits_run, "--data", data, "--out", out)
    assert "3 settings" in said.out and said.code == 0
    assert len(read_rows(data)) > len(rows())
    assert out.read_text("utf-8").count("## ") == 4 and "Leaderboard" in out.with_suffix(".html").read_text("utf-8")
    assert markdown(boards(read_rows(data)), "x").partition("## ")[2] == out.read_text("utf-8").partition("## ")[2]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--leaderboard", "--data", "none.parquet"], "there is no such file"),
        (["--leaderboard"], "no run was named"),
        (["--leaderboard", "--out", "page.html"], "does not end in .md"),
        (["--data", "x.parquet", "fedtgp/table1"], "belongs to --leaderboard"),
        ([], "protea list tables"),
    ],
)
def test_mistakes_are_named(
    words: list[str], expected: str, tmp_path: Path, typed: Command, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    said = typed("reproduce", *words)
    assert said.code != 0 and expected in said.err.replace("\n", " ")


def test_the_overview_counts_a_method_as_one_whatever_was_chosen_for_it():
    found = rows() + [
        ResultRow(setting, f"fedsa pull={pull}", 1, 10, own=own)
        for setting, pull, own in (("easy", 1, 99.0), ("hard", 10, 98.0), ("wide", 1, 97.0), ("wide", 10, 96.0))
    ]
    lines = {line[0]: line for line in overview(boards(found))}
    assert lines["fedsa"][1:3] == ["1.0", "2"]
    assert lines["fedsa pull=1"][1:3] == ["1.0", "1"] and lines["fedsa pull=10"][1:3] == ["2.0", "1"]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (["method.name=fedprotokd@zeta", "method.public_epochs=1"], "fedprotokd@zeta public_epochs=1"),
        (["method.name=fedprotokd", "method.public_epochs=1"], "fedprotokd public_epochs=1"),
        (["method.name=local@smoothing"], "local@smoothing"),
        (["method.name=fedtgp@code", "method.pull=3"], "fedtgp@code pull=3"),
        (["method.name=fedsa", "method.contrast=0"], "fedsa contrast=0"),
        (["method.name=fedpagr", "alone=true"], "fedpagr alone"),
    ],
)
def test_a_method_is_named_by_its_variant_and_by_what_else_was_changed(changes: list[str], name: str):
    experiment = load_experiment(Path(__file__).parents[2] / "examples" / "long" / "distil-cifar10.toml", changes)
    label = method_label(played(experiment))
    run = RunReader(Path("x"), to_table(experiment), DataRecord(), [], {"method": label})
    assert method_of(run) == name
