"""Gains over training alone: differences worked out by hand, and intervals whose ends follow from counting."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from answered import answered_round, answered_run, counts
from scipy import stats
from typed import Command

from protea.core.errors import ConfigError
from protea.federation.record import Record
from protea.methods.fedproto import FedProto
from protea.methods.local import Local
from protea.runs.answers import RunAnswers
from protea.runs.bootstrap import Differences, client_interval, overall_interval
from protea.runs.compare import compare
from protea.runs.gain import ClientGain, Gain, gain
from protea.runs.reader import RunReader
from protea.runs.settings_diff import labels


def answers(rounds: dict[int, str] | list[dict[int, str]], *, seed: int = 1, split: str = "s", known: bool = True):
    """What clients answered in the reported rounds."""
    each = rounds if isinstance(rounds, list) else [rounds]
    records = [answered_round(number, one, known) for number, one in enumerate(each, start=1)]
    clients = [client for record in records for client in record.clients]
    return RunAnswers.of(clients, "a run", seed, {"partition": split})


def found(ours: RunAnswers, theirs: RunAnswers) -> Gain:
    result = gain([(ours, theirs)])
    assert result is not None
    return result


def interval(better: int, worse: int, samples: int) -> tuple[float, float]:
    ours, theirs = counts(better, worse, samples)
    one = found(answers({0: ours}), answers({0: theirs})).clients[0]
    return one.low, one.high


# The difference


def test_every_sample_counts_once_and_every_client_has_its_own():
    gained = found(answers({0: "1111", 1: "00"}), answers({0: "1001", 1: "11"}))
    assert gained.mean == pytest.approx((4 - 2 + 0 - 2) / 6)
    assert [client.mean for client in gained.clients] == [0.5, -1.0]
    assert [(client.accuracy, client.reference, client.samples) for client in gained.clients] == [
        (1, 0.5, 4),
        (0, 1, 2),
    ]
    assert gained.client(1).mean == -1.0 and gained.paired and gained.pairs == 1
    with pytest.raises(ConfigError, match="There is no gain of client 7"):
        gained.client(7)


def test_several_reported_rounds_are_averaged_sample_by_sample():
    ours = answers([{0: "1100"}, {0: "1010"}])
    assert ours.clients[0] is not None and ours.clients[0].right is not None
    assert ours.clients[0].right.tolist() == [1, 0.5, 0.5, 0]
    assert found(ours, answers([{0: "1000"}, {0: "1000"}])).mean == pytest.approx(0.25)


def test_equal_runs_have_no_difference_and_no_doubt():
    same = answers({0: "1100", 1: "1", 2: "0000000001"})
    gained = found(same, same)
    assert (gained.mean, gained.low, gained.high, gained.better, gained.worse, gained.neither) == (0, 0, 0, 0, 0, 3)
    assert all((client.low, client.high) == (0, 0) for client in gained.clients)


def test_a_client_without_test_samples_is_left_out_and_named():
    gained = found(answers({0: "11", 1: ""}), answers({0: "11", 1: "", 2: "1"}))
    assert [client.client for client in gained.clients] == [0] and gained.left_out == [1, 2]
    assert gain([(answers({0: "1"}), answers({1: "1"}))]) is None


# Its interval


@pytest.mark.parametrize("better", range(3, 10))
def test_who_gains_is_as_an_exact_sign_test_has_it(better: int):
    low, _ = interval(better, 0, 55)
    certain = stats.binomtest(better, better).pvalue < 0.05
    assert (low > 0) == certain  # six of six, as many heads in a row
    mirrored = interval(0, better, 55)
    assert (mirrored[1] < 0) == certain


def test_one_sample_makes_nobody_certain():
    assert interval(1, 0, 1) == (-1.0, 1.0)


def test_the_ends_of_a_clients_interval_are_those_of_the_binomial():
    # 57 draws, of which each is better with 31 of 57 and worse with 1 of 57: the normal ends are near.
    low, high = interval(30, 0, 55)
    middle, deviation = 30 / 57, np.sqrt((32 / 57 - (30 / 57) ** 2) / 57)
    assert low == pytest.approx(middle - 1.96 * deviation, abs=0.02)
    assert high == pytest.approx(middle + 1.96 * deviation, abs=0.02)


def test_the_interval_of_one_client_over_all_is_of_its_samples():
    ours, theirs = counts(20, 0, 100)
    gained = found(answers({0: ours}), answers({0: theirs}))
    ends = stats.binom.ppf([0.025, 0.975], 100, 0.2) / 100
    assert gained.mean == pytest.approx(0.2) and (gained.low, gained.high) == pytest.approx(tuple(ends), abs=0.011)


def test_clients_are_drawn_too():
    # Half of the clients gain all, half nothing: their number among ten that are drawn is binomial.
    clients = [Differences.of(np.full((50, 1), float(place < 5))) for place in range(10)]
    low, high = overall_interval([clients])
    assert (low, high) == tuple(stats.binom.ppf([0.025, 0.975], 10, 0.5) / 10)


def test_pairs_take_out_what_is_hard_for_both():
    rng = np.random.default_rng(0)
    hard = rng.random(200) < 0.5
    theirs = "".join("0" if each else "1" for each in hard)
    ours = "1" * 8 + theirs[8:]
    paired = found(answers({0: ours}), answers({0: theirs}))
    unpaired = found(answers({0: ours}, known=False), answers({0: theirs}))
    assert paired.paired and not unpaired.paired and paired.mean == pytest.approx(unpaired.mean)
    assert paired.high - paired.low < 0.4 * (unpaired.high - unpaired.low)
    p, q = ours.count("1") / 200, theirs.count("1") / 200
    width = 2 * 1.96 * np.sqrt((p * (1 - p) + q * (1 - q)) / 200)
    assert unpaired.high - unpaired.low == pytest.approx(width, rel=0.1)


def test_counts_alone_never_say_that_runs_are_equal_for_certain():
    same = answers({0: "1111"}, known=False)
    gained = found(same, same)
    assert gained.mean == 0 and gained.clients[0].low < 0 < gained.clients[0].high


def test_equal_runs_have_equal_intervals_wherever_they_are_computed():
    ours, theirs = counts(9, 3, 40)
    code = (
        "import sys; from protea.runs.bootstrap import *; import numpy as np;"
        "d = Differences.of(np.array([1.0] * 9 + [-1.0] * 3 + [0.0] * 28)[:, None]);"
        "print(client_interval(d, 1, 0), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    one = found(answers({0: ours}), answers({0: theirs})).clients[0]
    assert done.stdout.strip() == f"{(one.low, one.high)} False"


# Seeds


def test_seeds_with_the_same_split_are_averaged_for_each_client():
    first = answers({0: "1100"}), answers({0: "1000"})
    second = answers({0: "1110"}, seed=2), answers({0: "1000"}, seed=2)
    gained = gain([first, second])
    assert gained is not None and gained.pairs == 2 and gained.mean == pytest.approx(0.375)
    (client,) = gained.clients
    assert (client.seed, client.accuracy, client.reference) == (None, pytest.approx(0.625), 0.25)


def test_seeds_with_splits_of_their_own_have_clients_of_their_own():
    first = answers({0: "1100"}), answers({0: "1000"})
    second = answers({0: "11"}, seed=2, split="t"), answers({0: "00"}, seed=2, split="t")
    gained = gain([first, second])
    assert gained is not None and gained.mean == pytest.approx((0.25 + 1.0) / 2)  # every seed counts once
    assert [(client.seed, client.client, client.mean) for client in gained.clients] == [(1, 0, 0.25), (2, 0, 1.0)]
    assert gained.client(0, seed=2).mean == 1.0


def test_seeds_are_drawn_too():
    many = [Differences.of(np.full((50, 1), value)) for value in (0.0, 1.0)]
    low, high = overall_interval([[many[0]], [many[1]]])
    assert (low, high) == (0, 1)  # with two seeds, one in four draws is of the first alone
    shared = Differences(np.array([[0.0, 1.0]]), np.array([50.0]), True)
    assert client_interval(shared, 1, 0) == pytest.approx((0, 1), abs=0.05)


# Another split


def test_runs_on_other_samples_are_refused():
    ours = answers({0: "1100"})
    for other in (answers({0: "1100"}, split="t"), answers({0: "110"})):
        with pytest.raises(ConfigError, match=r"do not answer the same test samples.*\n.*--beside local"):
            found(ours, other)


# As plain values


def test_a_gain_comes_back_from_plain_values():
    gained = found(answers({0: "1111111111", 1: "0", 2: ""}), answers({0: "0000000001", 1: "0", 2: ""}))
    plain = json.loads(json.dumps(gained.plain()))
    assert {"mean", "low", "high", "better", "worse", "neither", "clients", "left_out"} <= plain.keys()
    assert (plain["better"], plain["worse"], plain["neither"]) == (1, 0, 1) and plain["left_out"] == [2]
    assert Gain.read(plain) == gained
    assert ClientGain(0, 4, 0.5, 0.5, -0.1, 0.1).verdict == "neither"


# Directories


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """FedProto, the same with every client alone, and Local, two seeds each, every seed with its own split."""
    for seed in (1, 2):
        more = {"seed": seed, "split": seed}
        answered_run(tmp_path / f"p{seed}", FedProto(), {0: "1" * 20, 1: "1100" + "1" * 8}, **more)
        answered_run(tmp_path / f"p{seed}-alone", FedProto(), {0: "1" * 10 + "0" * 10, 1: "1" * 12}, alone=True, **more)
        answered_run(tmp_path / f"l{seed}", Local(), {0: "0" * 20, 1: "1" * 12}, **more)
    return tmp_path


def test_a_gain_is_split_into_what_training_does_and_what_the_others_give(folder: Path):
    compared = compare([folder])
    assert [row.label for row in compared.rows] == ["fedproto", "fedproto alone", "local"]
    method, alone = compared.gains
    assert method.over and method.training and method.others
    assert method.over.mean == pytest.approx(18 / 32) == pytest.approx(compared.rows[0].difference.mean)  # type: ignore[union-attr]
    assert method.training.mean == pytest.approx(10 / 32) and method.others.mean == pytest.approx(8 / 32)
    assert method.over.mean == pytest.approx(method.training.mean + method.others.mean)
    assert (method.over.better, method.over.worse, method.over.neither) == (2, 0, 2) and method.over.pairs == 2
    assert alone.over == method.training and alone.training is None and alone.others is None


def test_methods_alone_are_rows_by_their_name_and_belong_to_their_settings(folder: Path, tmp_path: Path):
    runs = [RunReader.read(folder / name) for name in ("p1", "p1-alone", "l1")]
    assert labels(runs) == ["fedproto", "fedproto alone", "local"]
    answered_run(tmp_path / "more" / "q1", FedProto(pull=2), {0: "1" * 20, 1: "1" * 12}, split=1)
    gains = {each.label: each for each in compare([folder]).gains}
    assert gains["fedproto pull=2"].others is None and gains["fedproto pull=2"].training is None
    assert gains["fedproto pull=10"].others is not None
    (folder / "p1-alone" / "summary.json").unlink()
    assert RunReader.read(folder / "p1-alone").method == "fedproto alone"


def test_without_local_or_alone_there_are_gains_only_if_asked_for(tmp_path: Path):
    answered_run(tmp_path / "a", FedProto(pull=1), {0: "1111"})
    answered_run(tmp_path / "b", FedProto(pull=2), {0: "1110"})
    assert compare([tmp_path]).gains == []
    (other,) = compare([tmp_path], clients=True).gains
    assert other.label == "fedproto pull=2" and other.over is not None and other.over.mean == pytest.approx(-0.25)
    with pytest.raises(ConfigError, match="--clients is of accuracies on the clients' own test samples"):
        compare([tmp_path], clients=True, measure="balanced")


def test_by_another_rule_and_in_older_runs_intervals_are_from_counts(tmp_path: Path, typed: Command):
    answered_run(tmp_path / "a", FedProto(), {0: "1" * 30 + "0" * 10})
    answered_run(tmp_path / "b", Local(), {0: "1" * 20 + "0" * 20}, known=False)
    (old,) = compare([tmp_path]).gains
    assert old.over is not None and not old.over.paired and old.over.mean == pytest.approx(0.25)
    assert "their intervals are from counts, unpaired" in " ".join(typed("compare", tmp_path).out.split())
    answered_run(tmp_path / "c" / "l", Local(), {0: "1" * 20 + "0" * 20}, seed=1)
    answered_run(tmp_path / "c" / "p", FedProto(), {0: "1" * 30 + "0" * 10}, seed=1)
    (by_head,) = compare([tmp_path / "c"], rule="head").gains
    (by_method,) = compare([tmp_path / "c"]).gains
    assert by_head.over is not None and not by_head.over.paired
    assert by_method.over is not None and by_method.over.paired


def test_the_command_shows_gains_and_clients(folder: Path, typed: Command):
    done = typed("compare", folder, "--clients")
    assert done.code == 0 and max(map(len, done.lines)) <= 100
    text = " ".join(done.out.split())
    assert "method over local its training the others better/worse/neither" in text
    assert "fedproto +56.25 [" in text and "] +31.25 [" in text and "] 2/0/2" in text
    assert "fedproto 1 0 20 0.00 100.00 +100.00" in text and "-16.67" in text
    for form in ("markdown", "latex"):
        shown = typed("compare", folder, "--clients", "--format", form).out
        assert "+31.25 [" in shown and "better/worse/neither" in shown and "neither" in shown


def test_csv_has_the_parts_of_a_gain_and_if_asked_a_line_for_each_client(folder: Path, typed: Command):
    rows = {row["method"]: row for row in csv.DictReader(StringIO(typed("compare", folder, "--format", "csv").out))}
    assert float(rows["fedproto"]["training"]) == pytest.approx(10 / 32)
    assert float(rows["fedproto"]["others"]) == pytest.approx(8 / 32) and rows["fedproto"]["better"] == "2"
    assert rows["local"]["training"] == rows["local"]["worse"] == ""
    done = typed("compare", folder, "--clients", "--format", "csv")
    clients = list(csv.DictReader(StringIO(done.out)))
    assert len(clients) == 2 * 4 and clients[0]["verdict"] == "better" and clients[0]["against"] == "local"
    assert {(each["seed"], each["client"]) for each in clients} == {("1", "0"), ("1", "1"), ("2", "0"), ("2", "1")}


def test_records_without_single_answers_read_as_before():
    whole = answered_round(1, {0: "110"})
    lines = [json.loads(json.dumps(line)) for line in whole.lines()]
    assert lines[1]["test/right"] == "c0" and Record.read(lines) == [whole]
    del lines[1]["test/right"]
    (old,) = Record.read(lines)
    assert old == answered_round(1, {0: "110"}, known=False) and old.clients[0].parts["test"].right_samples is None
    assert replace(old.clients[0].parts["test"], right="c0").right_samples == [True, True, False]
