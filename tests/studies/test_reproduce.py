"""Tables of papers: their numbers as printed, the experiments behind them, and running them again."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from answered import answered_run
from night import by_night
from typed import Command

from protea.cli.reproduce import side_by_side
from protea.config import registry
from protea.config.sections import Evaluation
from protea.core.errors import ConfigError
from protea.data.sources.cifar import CIFAR10
from protea.evaluation.scores import Shared
from protea.federation.record import Cost, Record
from protea.methods.fedproto import FedProto
from protea.methods.local import Local
from protea.runs.reader import RunReader
from protea.studies import papers
from protea.studies.papers import Number
from protea.studies.papers.plan import Scale, closer, directory, plan
from protea.studies.reproduce import OurNumber, TableResults, value

NAMES = papers.names()
LARGEST = "protea/robustness-full"  # thousands of experiments


def printed(name: str, row: str, cell: str, measure: str = "test") -> float:
    number = papers.find(name)[0].numbers[measure][row][cell].mean
    assert number is not None
    return number


def experiment(name: str, row: str, cell: str):
    return papers.find(name)[0].experiment(cell, row)


# The papers' numbers


@pytest.mark.parametrize("name", NAMES)
def test_every_table_is_whole(name: str):
    preset, cells = papers.find(name)
    assert list(preset.cells) == cells and len(set(cells)) == len(cells) > 0
    for by_row in preset.numbers.values():
        assert by_row and all(list(numbers) == cells for numbers in by_row.values())
        for numbers in by_row.values():
            assert all(0 < number.mean < 100 for number in numbers.values() if number.mean is not None)
            assert all(number.deviation is None or 0 < number.deviation < 2 for number in numbers.values())
    used = {word for words, _ in preset.changes for word in words} | preset.needs.keys()
    assert {*preset.rows, *(word for cell in cells for word in cell.split("/"))} <= used  # no word is misspelt


@pytest.mark.parametrize("name", [name for name in NAMES if name != LARGEST] + by_night(LARGEST))
def test_every_experiment_that_can_be_run_is_valid(name: str):
    preset, cells = papers.find(name)
    for cell in cells:
        for row in preset.rows:
            if preset.lacking(cell, row) is None:
                found = preset.experiment(cell, row)
                assert found.evaluation.protocol in ("best", "final", "last5") and found.data.split.validation == 0
                if "server" in preset.numbers and row in preset.numbers["server"]:
                    assert found.method.needs.server_model and found.models.server == "resnet34"
                if "ensemble" in preset.numbers:
                    assert found.evaluation.shared == found.evaluation.every == 20


@pytest.mark.parametrize(
    ("name", "row", "cell", "measure", "text"),
    [
        ("fedtgp/table1", "FedTGP", "pathological/flowers102", "test", "68.98±0.43"),
        ("fedtgp/table1", "FedProto", "practical/cifar10", "test", "82.07±1.64"),
        ("fedtgp/table2", "FedKD", "htfe8-htc4", "test", "40.59±0.51"),
        ("fedtgp/table2", "LG-FedAvg", "res34-htc4", "test", "-"),
        ("fedtgp/table5", "FML", "communication", "numbers", "36.99"),
        ("fedtgp/table10", "FedTGP", "practical/fashion-mnist", "test", "97.58±0.05"),
        ("protonorm/table1", "ProtoNorm", "practical/tiny-imagenet", "test", "31.20±0.38"),
        ("protonorm/table4", "Tiny ImageNet", "gamma-1000", "test", "diverged"),
        ("protonorm/table5", "CIFAR-100, FedTGP", "gamma-1.2", "test", "47.33"),
        ("fedsa/table2", "FedProto", "htfe8", "test", "16.31±0.32"),
        ("fedsa/table4", "R, ER, MCL", "htfe8", "test", "32.82"),
        ("fedpagr/table1", "FedPAGR", "cifar10", "ensemble", "40.76"),
        ("fedpagr/table1", "FedTGP", "mimic-iv", "test", "71.39"),
        ("fedpagr/table2", "T = 10", "cifar10", "ensemble", "40.19"),
        ("fedprotokd/table1", "FedPKD", "classes-5/cifar10", "server", "70.12"),
        ("fedprotokd/table3", "FedProtoKD", "tiny-imagenet/alpha-0.3/10-clients", "test", "27.71"),
        ("fedprotokd/table7", "FedProtoKD", "cifar100/share-0.2", "server", "21.10"),
    ],
)
def test_numbers_are_as_printed(name: str, row: str, cell: str, measure: str, text: str):
    assert papers.find(name)[0].numbers[measure][row][cell].text == text


def test_numbers_give_the_differences_that_the_papers_texts_speak_of():
    def gap(name: str, first: str, second: str, cell: str) -> float:
        return round(printed(name, first, cell) - printed(name, second, cell), 2)

    assert gap("fedtgp/table1", "FedTGP", "FedGen", "pathological/flowers102") == 9.08
    assert gap("fedtgp/table1", "FedTGP", "FedProto", "pathological/flowers102") == 13.85
    assert gap("fedtgp/table2", "FedTGP", "FedProto", "htfe8-htc4") == 18.96
    assert gap("fedtgp/table2", "FedTGP", "FedDistill", "50-clients") == 4.66
    assert gap("fedsa/table2", "FedSA", "FedProto", "htfe8") == 19.37
    assert gap("fedsa/table2", "FedSA", "FedTGP", "htfe3") == 3.78
    assert gap("fedsa/table1", "FedSA", "FML", "cross-device/cifar100") == 6.29
    assert gap("fedpagr/table1", "FedPAGR", "FedTGP", "mimic-iv") == 4.99
    assert gap("fedpagr/table1", "FedPAGR", "FedProto", "cifar10") == 5.94
    assert gap("fedprotokd/table3", "FedProtoKD", "FedPKD", "tiny-imagenet/alpha-0.3/10-clients") == 2.13


def test_what_a_paper_prints_twice_is_one_number_and_one_experiment():
    twice = [
        (("fedtgp/table6", "Cifar100", "fedtgp"), ("fedtgp/table1", "FedTGP", "practical/cifar100")),
        (("fedtgp/table6", "Flowers102", "fedproto"), ("fedtgp/table1", "FedProto", "practical/flowers102")),
        (("fedtgp/table7", "FedTGP", "tau-100"), ("fedtgp/table1", "FedTGP", "practical/cifar100")),
        (("fedtgp/table7", "FedTGP", "server-epochs-100"), ("fedtgp/table7", "FedTGP", "tau-100")),
        (("protonorm/table4", "CIFAR-100", "gamma-200"), ("protonorm/table1", "ProtoNorm", "practical/cifar100")),
        (
            ("protonorm/table4", "Tiny ImageNet", "gamma-400"),
            ("protonorm/table1", "ProtoNorm", "practical/tiny-imagenet"),
        ),
        (("protonorm/table5", "CIFAR-10, FedTGP", "gamma-1.0"), ("protonorm/table1", "FedTGP", "practical/cifar10")),
        (("fedsa/table3", "FedTGP", "epochs-1"), ("fedsa/table2", "FedTGP", "htfe8")),
        (("fedsa/table4", "R, ER, MCL, CC", "htfe8"), ("fedsa/table2", "FedSA", "htfe8")),
        (("fedsa/table5", "FedSA", "contrast-1"), ("fedsa/table5", "FedSA", "calibration-1")),
        (("fedpagr/table2", "default", "cifar10"), ("fedpagr/table1", "FedPAGR", "cifar10")),
        (("fedprotokd/table6", "FedTGP", "zeta-50"), ("fedprotokd/table2", "FedTGP", "alpha-0.1/cifar10")),
        (("fedprotokd/table9", "FedProtoKD", "dim-512"), ("fedprotokd/table2", "FedProtoKD", "alpha-0.3/cifar10")),
        (("fedprotokd/table10", "FedPKD", "epochs-5-10"), ("fedprotokd/table2", "FedPKD", "alpha-0.3/cifar10")),
    ]
    for first, second in twice:
        assert printed(*first) == printed(*second) and experiment(*first) == experiment(*second), (first, second)
        assert directory(experiment(*first)) == directory(experiment(*second))
    server = printed("fedprotokd/table11", "CIFAR-100, k = 20", "whole", "server")
    assert server == printed("fedprotokd/table1", "FedProtoKD", "classes-20/cifar100", "server")


# The papers' settings


def test_settings_are_the_papers():
    found = experiment("fedtgp/table1", "FedTGP", "pathological/tiny-imagenet")
    assert (found.rounds, found.clients, found.fraction, found.training.batch, found.training.lr) == (
        1000,
        20,
        1,
        10,
        0.01,
    )
    assert (found.data.partition.classes_per_client, found.data.split.test, found.models.family) == (20, 0.25, "htfe8")
    assert (found.method.threshold, found.method.server_epochs) == (100, 100)
    found = experiment("fedtgp/table2", "FML", "100-clients")
    assert (found.clients, found.fraction, found.data.partition.alpha) == (100, 0.5, 0.1)

    found = experiment("protonorm/table1", "ProtoNorm", "practical/cifar10")
    assert (found.rounds, found.training.batch, found.method.scale) == (300, 32, 100)
    assert experiment("protonorm/table2", "ProtoNorm", "alpha-0.01").method.scale == 200
    assert experiment("protonorm/table3", "ProtoNorm", "cnn4/tiny-imagenet").method.scale == 400

    found = experiment("fedsa/table1", "FedSA", "cross-device/cifar10")
    assert (found.clients, found.fraction, found.models.family, found.method.contrast) == (100, 0.1, "cnn4", 0.01)
    found = experiment("fedsa/table3", "FedSA", "epochs-10")
    assert (found.rounds, found.training.epochs, found.method.contrast, found.models.family) == (200, 10, 1.0, "htfe8")

    found = experiment("fedpagr/table1", "FedPAGR", "cifar100")
    assert (found.rounds, found.fraction, found.training.momentum) == (400, 0.5, 0.9)
    assert (found.method.margin, found.method.steps, found.method.temperature) == (0.1, 3, 0.1)
    assert experiment("fedpagr/table1", "FedPAGR", "cifar10").method.margin == 0.3

    found = experiment("fedprotokd/table4", "FedProtoKD", "classes-40/cifar100")
    assert (found.data.public, found.training.epochs, found.models.members) == (2500, 5, ("resnet34",))
    assert found.data.partition.classes_per_client == 40
    assert experiment("fedprotokd/table6", "FedTGP", "zeta-10").method.threshold == 10
    assert experiment("fedprotokd/table7", "FedTGP", "cifar10/share-0.2").fraction == 0.2


def test_what_cannot_be_run_says_what_it_needs():
    preset, _ = papers.find("fedpagr/table1")
    assert "PhysioNet" in (preset.lacking("mimic-iv", "FedPAGR") or "")
    assert preset.lacking("fashion-mnist", "FedPAGR") is None
    preset, _ = papers.find("fedtgp/table2")
    assert preset.lacking("res34-htc4", "LG-FedAvg") == "The paper has no number here."
    assert preset.lacking("res34-htc4", "FML") is None
    for row, method in (("FedGen", "fedgen"), ("FedTGP", "fedtgp")):
        assert (preset.lacking("htfe2", row) is None) == (method in registry.table("methods"))


def test_a_part_of_a_table_is_named_by_words_of_its_cells():
    assert papers.find("fedtgp/table1/cifar10")[1] == ["pathological/cifar10", "practical/cifar10"]
    assert papers.find("fedtgp/table1/practical/cifar10")[1] == ["practical/cifar10"]
    assert papers.find("fedtgp/table10/fashion-mnist")[1] == list(papers.find("fedtgp/table10")[0].cells)
    for wrong, message in (
        ("fedtpg/table1", "There is no paper 'fedtpg'.  Did you mean fedtgp?"),
        ("fedtgp/table9", "fedtgp has no table 'table9' here."),
        ("fedtgp/table1/mnist", "fedtgp/table1 has no cell 'mnist'."),
        ("none.toml/table1", "none.toml cannot be read as a file of tables"),
    ):
        with pytest.raises(ConfigError, match="^" + message.replace("?", r"\?")):
            papers.find(wrong)


def test_missing_data_are_named_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("protea.data.files.data_folders", lambda: [tmp_path])
    preset, cells = papers.find("fedtgp/table1")
    with pytest.raises(ConfigError) as error:
        plan(preset, cells, [], Scale(fraction=0.1), tmp_path / "out")
    for name in ("cifar10", "cifar100", "flowers102", "tiny-imagenet"):
        assert f"find('sources', '{name}').files.find()" in str(error.value)
    assert registry.find("sources", "cifar10") is CIFAR10 and not (tmp_path / "out").exists()


# Smaller


def test_scale_makes_an_experiment_smaller_and_says_so():
    preset, _ = papers.find("fedpagr/table1")
    full = preset.experiment("cifar10", "FedPAGR")
    small = Scale(rounds=40).of(full)
    assert (small.rounds, small.evaluation.every, small.evaluation.shared) == (40, 2, 2)  # still twenty evaluations
    assert Scale(rounds=999).of(full) == full and Scale(rounds=999, fraction=1.0, seeds=1).label(preset, [full]) == ""
    assert Scale(rounds=40, fraction=0.05).label(preset, [full]) == "40 of 400 rounds, 5 % of the data"
    preset, _ = papers.find("fedsa/table3")
    runs = [preset.experiment(cell, "FedSA") for cell in preset.cells]
    assert Scale(rounds=300, seeds=2).label(preset, runs) == "300 of 500 or 1000 rounds, 2 of 3 seeds"
    assert [Scale(rounds=300).of(each).rounds for each in runs] == [300, 300, 200]
    assert closer(Evaluation(every=3, shared="last"), 0.1) == Evaluation(every=1, shared="last")


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ({"fraction": 1.5}, "--fraction is 1.5"),
        ({"rounds": 0}, "--rounds is 0"),
        ({"seeds": -1}, "--seeds is -1"),
        ({"changes": ("method.pull=1",)}, "method.pull=1 would make all rows"),
    ],
)
def test_a_scale_that_makes_no_sense_is_refused(scale: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        Scale(**scale)


# From runs to numbers


def test_our_number_is_mean_and_population_deviation_over_seeds():
    ours = OurNumber([80.0, 84.0])  # mean 82, deviations 2 and 2
    assert str(ours) == "82.00±2.00" and ours.beside(Number.of("81.5±0.10")) == "+0.50"
    assert str(OurNumber([80.0])) == "80.00" and str(OurNumber([])) == "-"
    assert ours.beside(Number.of("diverged")) == OurNumber([]).beside(Number.of("81.5")) == "-"


def test_a_runs_number_follows_measure_and_protocol():
    ensembles = [0.1, 0.2, 0.9, 0.3, 0.4, 0.5, 0.4]
    empty = Record(
        round=1, participants=[], loss=None, test={}, validation={}, classes={}, shared={}, server={}, geometry=None,
        values={}, bytes_up=6_000_000, bytes_down=2_000_000, total_up=0, total_down=0, failures={}, refused=[],
        absent={}, cost=Cost(), clients=[],
    )  # fmt: skip
    rounds = [
        replace(empty, server={"head": score / 2}, shared={"method": Shared(ensemble=score, clients=0.0)})
        for score in ensembles
    ]
    rounds.insert(3, empty)  # a round without
    scores = {"method": {"weighted": 0.75}, "head": {"weighted": 0.5}}
    run = RunReader(Path(), {}, rounds=rounds, summary={"protocols": {"best": {"test": scores}}})
    assert value(run, "ensemble", "best") == 90 and value(run, "server", "best") == 45
    assert value(run, "ensemble", "final") == 40
    assert value(run, "ensemble", "last5") == pytest.approx(50)  # of 90, 30, 40, 50, 40
    assert value(run, "numbers", "final") == 2.0  # 8 million bytes, 4 to a number
    assert (value(run, "test", "best"), value(run, "test", "best", "head")) == (75, 50)
    assert value(run, "test", "final") is None and value(run, "test", "best", "local_prototypes") is None


# The command

OWN = """
title = "Digits"
source = "Nobody, 2026"
seeds = 2
choices = ["The number of clients."]
notes = ["Seven is not eight."]
needs = { "secret" = "A key." }

[base]
rounds = 4
clients = 4
engine = "inline"
[base.data]
source = "digits"
split = { test = 0.25, validation = 0.0 }
[base.models]
family = "tiny_mlp"
dim = 16
[base.evaluation]
protocol = "best"
[base.checkpoint]
every = 1

[changes]
"even" = ["data.partition.kind=iid"]
"uneven" = ["data.partition.alpha=0.1"]
"Local" = ["method.name=local"]
"FedProto" = ["method.name=fedproto", "method.pull=2.0"]
"FedNone" = ["method.name=fednone"]
"Tired" = ["method.name=test_reproduce:Tired"]
"Wild" = ["method.name=local", "training.lr=1e30"]

[tables.one]
shows = "Two ways to deal out digits"
cells = ["even", "uneven"]
[tables.one.numbers.test]
"Local" = "80.00±1.00 90.00"
"FedProto" = "- 91.00"
"FedNone" = "81.00 92.00"
[tables.one.numbers.ensemble]
"Local" = "70.00 ?"

[tables.two]
shows = "What goes wrong"
cells = ["even", "secret"]
[tables.two.numbers.test]
"Wild" = "diverged 10.00"
"Tired" = "80.00 10.00"
"""


class Tired(Local):
    """Somebody presses Ctrl-C in round 2, unless there is a file called ``rested``."""

    def aggregate(self, server, uploads):
        if server.round == 2 and not Path("rested").exists():
            raise KeyboardInterrupt


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Command) -> Command:
    """``command("own.toml/one", "--yes")`` in a folder where own.toml is a paper's file."""
    (tmp_path / "own.toml").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return lambda *words: typed("reproduce", *words)


def runs(path: Path) -> dict[str, dict]:
    return {each.parent.name: json.loads(each.read_text()) for each in path.glob("*/summary.json")}


def settings(path: Path) -> dict:
    return tomllib.loads(path.read_text())


def test_a_table_is_run_in_small_and_shown_beside_the_papers(command: Command, tmp_path: Path):
    small = ("own.toml/one", "--rounds", "2", "--fraction", "0.5", "--seeds", "1")
    asked = command(*small)  # no terminal, no --yes
    assert asked.code == 2 and "Add --yes" in asked.err and not (tmp_path / "runs").exists()
    assert "Runs: 3 (rounds x clients: 2 x 4), 0 finished, 3 to do." in asked.out
    assert "Not run: FedNone.  There is no method fednone in Protea yet." in asked.out

    done = command(*small, "--yes")
    assert (done.code, done.err) == (0, "")
    place = tmp_path / "runs" / "own-one"
    found = runs(place)
    assert sorted(name.rsplit("-", 1)[0] for name in found) == ["digits-fedproto-s1", *2 * ["digits-local-s1"]]
    configs = [settings(place / name / "config.toml") for name in found]
    assert all(each["rounds"] == 2 and each["data"]["samples"] == 898 for each in configs)  # half of 1,797, to even
    assert not list(place.glob("*/checkpoints"))

    text = (place / "table.md").read_text()
    label = "Scaled down: 2 of 4 rounds, 50 % of the data, 1 of 2 seeds. Not the paper's setting"
    assert label in text and label.split(",")[0] in done.out
    fedproto = next(summary for name, summary in found.items() if "fedproto" in name)
    best = 100 * fedproto["protocols"]["best"]["test"]["method"]["weighted"]
    line = next(line for line in text.splitlines() if line.startswith("| FedProto |"))
    assert line == f"| FedProto | - / - (-) | 91.00 / {best:.2f} ({best - 91:+.2f}) |"
    final = 100 * fedproto["protocols"]["final"]["test"]["method"]["weighted"]
    assert f"| uneven | FedProto | 1 | {final:.2f} |" in text  # the other protocols are there too
    for words in ("The number of clients.", "Seven is not eight.", "| majority class |", "FedNone: There is no method"):
        assert words in text

    again = command(*small)  # nothing left to do, so nothing to ask
    assert again.code == 0 and "3 finished, 0 to do" in again.out and (place / "table.md").read_text() == text
    assert runs(place) == found


def test_a_row_has_its_gain_over_local_if_that_runs_beside_it(command: Command, tmp_path: Path):
    small = ("own.toml/one/uneven", "--rounds", "1", "--seeds", "1", "--methods", "fedproto", "--beside", "local")
    done = command(*small, "--yes")
    assert done.code == 0 and "Runs: 2 (rounds x clients: 1 x 4), 0 finished, 2 to do." in done.out
    place = tmp_path / "runs" / "own-one"
    found = {summary["method"]: summary for summary in runs(place).values()}
    gain = 100 * (found["fedproto"]["accuracy"] - found["local"]["accuracy"])
    text = (place / "table.md").read_text()
    assert "## Gain over training alone" in text and f"| uneven | FedProto | {gain:+.2f} [" in text
    assert "beside local" not in text and "its training" not in done.out  # which nobody ran
    wrong = command(*small[:-1], "lokal")
    assert wrong.code == 2 and "--beside is 'lokal'" in wrong.err

    done = command(*small, "--beside", "alone", "--yes")
    assert done.code == 0 and "2 finished, 1 to do." in done.out and "its training" in done.out
    found = {summary["method"]: summary for summary in runs(place).values()}
    parts = [found["fedproto alone"]["accuracy"], found["local"]["accuracy"]]
    parts = [100 * (parts[0] - parts[1]), 100 * (found["fedproto"]["accuracy"] - parts[0])]
    (line,) = re.findall(r"\| uneven \| FedProto \| [-+].*", (place / "table.md").read_text())
    assert all(f"| {part:+.2f} [" in line for part in parts)


def test_rows_tell_what_their_training_does_and_what_the_others_give(tmp_path: Path):
    (tmp_path / "own.toml").write_text(OWN)
    preset, _ = papers.find(f"{tmp_path}/own.toml/one")
    asked = plan(preset, ["uneven"], ["fedproto", "local"], Scale(seeds=1), tmp_path / "none")
    proto = answered_run(tmp_path / "p", FedProto(), {0: "1" * 20, 1: "1100"}, protocol="best")
    alone = answered_run(tmp_path / "a", FedProto(), {0: "1" * 10 + "0" * 10, 1: "1111"}, alone=True, protocol="best")
    local = answered_run(tmp_path / "l", Local(), {0: "0" * 20, 1: "1111"}, protocol="best")
    paths = {"FedProto": proto, "Local": local}
    made = [replace(each, path=paths[each.row]) for each in asked.runs]
    beside = [replace(made[0], row="FedProto beside alone", path=alone)]
    results = TableResults(replace(asked, runs=made, controls=beside), {})
    ((place, gain),) = results.gains.items()
    assert place == ("uneven", "FedProto") and gain.over is not None
    assert gain.over.mean == pytest.approx(18 / 24)
    assert gain.training is not None and gain.training.mean == pytest.approx(10 / 24)
    assert gain.others is not None and gain.others.mean == pytest.approx(8 / 24)
    columns = [str(column.header) for column in side_by_side(results, "test").columns]
    assert columns == ["cell", "row", "paper", "ours", "difference", "its training", "the others"]


def test_one_cell_one_method_a_variant_and_models_kept(command: Command, tmp_path: Path):
    done = command(
        "own.toml/one/uneven", "engine.workers=1", "--methods", "fedproto@htfllib", "--out", "here", "--yes", "--keep"
    )
    assert done.code == 0
    found = sorted((tmp_path / "here").glob("digits-*"))
    assert [path.name.rsplit("-", 1)[0] for path in found] == ["digits-fedproto-s1", "digits-fedproto-s2"]
    method = settings(found[0] / "config.toml")["method"]
    assert (method["taken"], method["missing"], method["pull"]) == ("during", "drop", 2.0)  # the row's own stay
    assert all((path / "checkpoints" / "000004").is_dir() for path in found)
    assert "Changed: fedproto@htfllib. Not the paper's setting" in (tmp_path / "here" / "table.md").read_text()


def test_an_interrupted_table_goes_on_and_a_failed_run_does_not_stop_it(command: Command, tmp_path: Path):
    stopped = command("own.toml/two", "--seeds", "1", "--out", "here", "--yes")
    assert stopped.code == 130 and "Stopped.  The same command goes on from here." in stopped.err
    assert "Not run: secret.  A key." in stopped.out and runs(tmp_path / "here") == {}
    (tmp_path / "rested").touch()
    done = command("own.toml/two", "--seeds", "1", "--out", "here", "--yes")
    assert done.code == 1  # one has failed
    tired = [line.partition("round ")[2].split()[0] for line in done.out.splitlines() if " Tired, even" in line]
    assert tired == ["2/4", "3/4", "4/4"]  # round 1 was done before
    found = runs(tmp_path / "here")
    assert [name.rsplit("-", 1)[0] for name in found] == ["digits-tired-s1"]
    text = (tmp_path / "here" / "table.md").read_text()
    assert "| Wild | diverged / - (-) |" in text and "## Failed" in text and "the loss became" in text
    whole = command("own.toml/two", "--methods", "Tired", "--seeds", "1", "--out", "there", "--yes")
    assert whole.code == 0
    without = [
        {k: v for k, v in each.items() if k != "cost"} for each in (*found.values(), *runs(Path("there")).values())
    ]
    assert without[0] == without[1]  # as if it had never stopped


def test_what_does_not_fit_is_refused(command: Command, tmp_path: Path):
    for words, message in (
        (
            ["own.toml/one", "--methods", "fedprto"],
            "ConfigError: own/one has no row or method 'fedprto'.  Did you mean",
        ),
        (["own.toml/one", "--methods", "FedNone", "--yes"], "ConfigError: Nothing of own/one"),
        (["own.toml/one", "--methods", "local,Local@x"], "ConfigError: --methods names a row twice."),
        (["own.toml/one", "--methods", "Local@x"], "ConfigError: own/one, even, Local: local has no variant 'x'."),
        (["own.toml/one", "rounds"], "ConfigError: 'rounds' changes nothing."),
        (["own.toml/three"], "ConfigError: own.toml has no table 'three' here."),
    ):
        done = command(*words)
        assert done.code == 2 and done.err.startswith(message), done.err
    (tmp_path / "own.toml").write_text(OWN.replace("- 91.00", "91.00"))
    assert "FedProto: 1 numbers for 2 cells" in command("own.toml/one").err
    (tmp_path / "own.toml").write_text(OWN.replace("- 91.00", "- 9l.00"))
    assert "A number is written as 88.15" in command("own.toml/one").err
    assert [path.name for path in tmp_path.iterdir()] == ["own.toml"]


def test_tables_are_listed(monkeypatch: pytest.MonkeyPatch, typed: Command):
    monkeypatch.setenv("COLUMNS", "150")
    lines = typed("list", "tables").lines
    shown = {line.split()[0]: line for line in reversed(lines) if line.startswith(tuple(f" {name} " for name in NAMES))}
    shown = dict(reversed(shown.items()))
    assert list(shown) == NAMES
    assert shown["fedpagr/table1"].split()[-7:] == [
        "5",
        "x",
        "4",
        "16",
        "400",
        "x",
        "10",
    ]  # 4 cells by 4 rows can be run
    assert any("PhysioNet" in line for line in lines)


def test_the_form_of_a_file_in_the_docs_is_read(tmp_path: Path):
    page = (Path(__file__).parents[2] / "docs" / "reproducing.md").read_text()
    (tmp_path / "my.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    preset, cells = papers.find(f"{tmp_path}/my.toml/table1")
    assert preset.name == "my/table1" and preset.numbers["test"]["FedProto"]["alpha-0.1"].deviation == 0.31
    assert preset.experiment("alpha-1", "FedProto").data.partition.alpha == 1
    assert preset.lacking("alpha-1", "ProtoNorm") == "The paper has no number here."
    assert preset.experiment("alpha-1", "ProtoNorm").method.scale == 20
    assert [preset.lacking(cell, "FedProto") for cell in cells] == [None, None]


def test_workers_and_checkpoints_make_no_other_run():
    full = experiment("fedtgp/table10", "FedTGP", "practical/fashion-mnist")
    other = replace(full, engine=replace(full.engine, workers=7), checkpoint=replace(full.checkpoint, every=1))
    assert directory(other) == directory(full) != directory(replace(full, seed=2))
