"""``protea compare``: every number worked out by hand, from directories in the format that real runs write."""

from __future__ import annotations

import csv
import json
import math
import shutil
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from scipy import stats
from typed import Command

from protea import Data, Experiment, Method
from protea.cli import comparison_formats
from protea.config.experiment import experiment_to_toml
from protea.config.families import Models
from protea.config.sections import Engine, Evaluation
from protea.core.errors import ConfigError
from protea.core.training import Training
from protea.data.federated import Federated
from protea.data.partition.schemes import Dirichlet
from protea.data.sources.spiral import Spiral
from protea.evaluation.scores import Score, Shared
from protea.federation.record import Cost, Record
from protea.methods.fedproto import FedProto
from protea.methods.local import Local
from protea.runs.compare import Reached, compare
from protea.runs.directory import RunDirectory
from protea.runs.prepare import prepare
from protea.runs.spread import Spread
from protea.runs.summary import summarise

SMALL = Experiment(
    rounds=2,
    clients=3,
    data=Data(source=Spiral(classes=3, points=30)),
    models=Models(family="tiny_mlp", dim=8),
    engine=Engine("inline"),
)
FAR = 4.302652729911275  # 97.5 % of Student's t with 2 degrees of freedom lie below


@cache
def data(clients: int, settings: Data, seed: int) -> Federated:
    return prepare(replace(SMALL, clients=clients, data=settings, seed=seed)).data


def written(
    path: Path,
    method: Method[Any, Any],
    accuracies: Sequence[float],
    *,
    validation: Sequence[float] = (),
    sent: tuple[int, int] = (0, 0),
    seed: int = 1,
    ended: bool = True,
    **changes: Any,
) -> Path:
    """A run with these accuracies, one per round.  ``sent`` is up and down in each round."""
    experiment = replace(SMALL, method=method, rounds=len(accuracies), seed=seed, **changes)
    split = data(experiment.clients, experiment.data, seed)
    held_out = list(validation) or [None] * len(accuracies)
    records = [
        record(round, accuracy, other, sent, last=round == experiment.rounds)
        for round, (accuracy, other) in enumerate(zip(accuracies, held_out, strict=True), start=1)
    ]
    run = RunDirectory.create(path, experiment_to_toml(experiment), {})
    split.save_partition(path / "partition.json")
    for each in records:
        run.append(each.lines())
    if ended:
        run.finish(summarise(experiment, records, split))
    return path


def record(round: int, accuracy: float, validation: float | None, sent: tuple[int, int], last: bool) -> Record:
    def score(value: float) -> Score:
        return Score(
            weighted=value,
            uniform=value / 2,
            balanced=value / 4,
            macro_f1=value / 5,
            calibration=1 - value,
        )

    return Record(
        round=round,
        participants=[0, 1, 2],
        loss=0.5,
        test={"method": score(accuracy), "head": score(accuracy / 10)},
        validation={} if validation is None else {"method": score(validation)},
        classes={},
        shared={"method": Shared(ensemble=accuracy / 8, clients=accuracy / 16)} if last else {},
        server={"head": accuracy / 32},
        geometry=None,
        values={},
        bytes_up=sent[0],
        bytes_down=sent[1],
        total_up=round * sent[0],
        total_down=round * sent[1],
        failures={},
        refused=[],
        absent={},
        cost=Cost(),
        clients=[],
    )


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """FedProto and local training, three seeds each, two rounds, in one folder."""
    for seed, high, low in ((1, 0.80, 0.70), (2, 0.90, 0.85), (3, 0.85, 0.75)):
        written(tmp_path / "runs" / f"proto-{seed}", FedProto(), [0.1, high], seed=seed, sent=(250_000, 750_000))
        written(tmp_path / "runs" / f"local-{seed}", Local(), [0.1, low], seed=seed)
    return tmp_path / "runs"


# The numbers


def test_mean_deviation_and_interval_are_over_seeds(three: Path):
    row = compare([three]).rows[0]
    assert row.label == "fedproto" and row.seeds == [1, 2, 3]
    # .80 .90 .85 lie .05, .05 and 0 from their mean: the variance is (.0025 + .0025) / 2.
    assert row.score.count == 3
    assert row.score.mean == pytest.approx(0.85)
    assert row.score.deviation == pytest.approx(0.05)
    assert row.score.margin == pytest.approx(FAR * 0.05 / math.sqrt(3))
    assert (row.score.low, row.score.high) == pytest.approx((0.7257931, 0.9742069))


def test_differences_are_in_pairs(three: Path):
    found = compare([three])
    proto, local = found.rows
    assert found.against == "local" and local.difference is None
    # .10 .05 .10 have the mean 1/12 and the deviation .05/sqrt(3), so the error .05/3 and t = 5.
    difference = proto.difference
    assert difference is not None and difference.count == 3
    assert difference.mean == pytest.approx(1 / 12)
    assert difference.deviation == pytest.approx(0.05 / math.sqrt(3))
    assert difference.margin == pytest.approx(FAR * 0.05 / 3)
    assert difference.p == pytest.approx(1 - 5 / math.sqrt(27))  # with 2 degrees of freedom: 1 - t / sqrt(2 + t^2)
    assert difference.p == pytest.approx(stats.ttest_rel([0.80, 0.90, 0.85], [0.70, 0.85, 0.75]).pvalue)


def test_against_turns_the_differences_round(three: Path):
    proto, local = compare([three], against="fedproto").rows
    assert proto.difference is None
    assert local.difference is not None and local.difference.mean == pytest.approx(-1 / 12)


def test_with_one_seed_there_is_a_mean_and_a_difference_and_nothing_more(tmp_path: Path):
    written(tmp_path / "a", FedProto(), [0.9])
    written(tmp_path / "b", Local(), [0.7])
    row = compare([tmp_path]).rows[0]
    assert row.score == Spread(1, 0.9) and row.score.p is None and row.score.low is None
    assert row.difference is not None
    assert (row.difference.mean, row.difference.margin, row.difference.p) == (pytest.approx(0.2), None, None)


def test_differences_that_do_not_vary_have_no_p_value(tmp_path: Path):
    for seed, value in ((1, 0.5), (2, 0.7)):
        written(tmp_path / f"a{seed}", FedProto(), [value + 0.1], seed=seed)
        written(tmp_path / f"b{seed}", Local(), [value], seed=seed)
    difference = compare([tmp_path]).rows[0].difference
    assert difference is not None and difference.p is None and difference.mean == pytest.approx(0.1)


def test_only_the_same_seed_and_the_same_split_make_a_pair(tmp_path: Path):
    written(tmp_path / "a1", FedProto(), [0.9], seed=1)
    written(tmp_path / "a2", FedProto(), [0.8], seed=2)
    written(tmp_path / "b1", Local(), [0.5], seed=1)
    written(tmp_path / "b2", Local(), [0.4], seed=2, data=replace(SMALL.data, seed=7))  # another split
    written(tmp_path / "b3", Local(), [0.1], seed=3, data=replace(SMALL.data, seed=2))  # of seed 2, trained otherwise
    with pytest.raises(ConfigError, match="who has which samples, with seed 2"):
        compare([tmp_path])
    found = compare([tmp_path], anyway=True)
    difference = found.rows[0].difference
    assert difference is not None and difference.count == 1 and difference.mean == pytest.approx(0.4)
    assert "fedproto: 1 of 2 runs have the seed and the split of one of local." in found.notes


def test_where_there_is_no_pair_there_is_no_difference(tmp_path: Path):
    written(tmp_path / "a", FedProto(), [0.9], seed=1)
    written(tmp_path / "b", Local(), [0.5], seed=2)
    found = compare([tmp_path])
    assert [row.difference for row in found.rows] == [None, None]
    assert "local has no run with seed 1: its mean is over other seeds." in found.notes
    assert "fedproto has no run with seed 2: its mean is over other seeds." in found.notes


def test_accuracy_per_megabyte_and_bytes(tmp_path: Path):
    written(tmp_path / "a1", FedProto(), [0.2, 0.8], seed=1, sent=(250_000, 750_000))  # 2 MB: 0.4 for each
    written(tmp_path / "a2", FedProto(), [0.2, 0.9], seed=2, sent=(500_000, 1_000_000))  # 3 MB: 0.3 for each
    written(tmp_path / "b", Local(), [0.2, 0.7])
    proto, local = compare([tmp_path]).rows
    assert proto.per_megabyte == pytest.approx(0.35) and proto.sent == 2_500_000
    assert local.per_megabyte is None and local.sent == 0


def test_the_first_round_that_reaches_the_target(tmp_path: Path):
    written(tmp_path / "a1", FedProto(), [0.3, 0.6, 0.5, 0.7], seed=1)
    written(tmp_path / "a2", FedProto(), [0.1, 0.2, 0.6, 0.7], seed=2)
    written(tmp_path / "b1", Local(), [0.6, 0.6, 0.6, 0.6], seed=1)
    written(tmp_path / "b2", Local(), [0.5, 0.5, 0.5, 0.59], seed=2)
    reached = {row.label: row.reached for row in compare([tmp_path], target=0.6).rows}
    assert reached == {"fedproto": Reached(2.5, 2, 2), "local": Reached(None, 1, 2)}
    assert all(row.reached is None for row in compare([tmp_path]).rows)
    with pytest.raises(ConfigError, match=r"--target is 90; expected is a share, such as --target 0.9"):
        compare([tmp_path], target=90)


def test_the_majority_class_is_beside_numbers_that_it_is_a_yardstick_for(three: Path):
    per_seed = [data(3, SMALL.data, seed).majority() for seed in (1, 2, 3)]
    assert compare([three]).rows[0].majority == pytest.approx(sum(per_seed) / 3)
    for other in ({"weighting": "uniform"}, {"measure": "balanced"}, {"scope": "ensemble"}):
        assert compare([three], **other).rows[0].majority is None


@pytest.mark.parametrize(
    ("protocol", "expected"),
    # The third round is best on validation samples, the second on test samples.
    [("validation", 0.3), ("best", 0.9), ("final", 0.4), ("last5", (0.9 + 0.3 + 0.2 + 0.1 + 0.4) / 5)],
)
def test_protocols(tmp_path: Path, protocol: str, expected: float):
    accuracies, validation = [0.6, 0.9, 0.3, 0.2, 0.1, 0.4], [0.1, 0.2, 0.9, 0.4, 0.5, 0.6]
    written(tmp_path / "a", FedProto(), accuracies, validation=validation)
    found = compare([tmp_path], protocol=protocol)
    assert found.rows[0].score.mean == pytest.approx(expected) and found.choice.protocol == protocol


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, 0.8),
        ({"rule": "head"}, 0.08),
        ({"weighting": "uniform"}, 0.4),
        ({"measure": "balanced"}, 0.2),
        ({"measure": "macro_f1"}, 0.16),
        ({"measure": "calibration"}, 0.2),
        ({"scope": "ensemble"}, 0.1),
        ({"scope": "shared"}, 0.05),
        ({"scope": "server"}, 0.025),
    ],
)
def test_rules_scopes_weightings_and_measures(tmp_path: Path, asked: dict[str, str], expected: float):
    written(tmp_path / "a", FedProto(), [0.5, 0.8])
    assert compare([tmp_path], **asked).rows[0].score.mean == pytest.approx(expected)


def test_rows_are_sorted_best_first_and_calibration_is_best_where_it_is_low(three: Path):
    assert [row.label for row in compare([three]).rows] == ["fedproto", "local"]
    found = compare([three], measure="calibration", target=0.2)
    assert [row.label for row in found.rows] == ["fedproto", "local"]  # errors of .15 and .23
    assert found.rows[0].score.mean == pytest.approx(0.15)
    assert found.rows[0].reached == Reached(2, 3, 3)
    assert found.rows[1].reached == Reached(None, 1, 3)  # .30 .15 .25
    assert found.rows[0].per_megabyte is None


# What is a row


def test_settings_that_differ_make_rows_and_are_in_their_labels(tmp_path: Path):
    written(tmp_path / "a", FedProto(pull=1), [0.9])
    written(tmp_path / "b", FedProto(pull=2.5), [0.8])
    written(tmp_path / "c", Local(), [0.7])
    assert [row.label for row in compare([tmp_path]).rows] == ["fedproto pull=1", "fedproto pull=2.5", "local"]
    written(tmp_path / "d", Local(), [0.6], training=Training(lr=0.5))
    assert [row.label for row in compare([tmp_path]).rows] == [
        "fedproto pull=1 training.lr=0.01",
        "fedproto pull=2.5 training.lr=0.01",
        "local training.lr=0.01",
        "local training.lr=0.5",
    ]


def test_a_variant_is_a_row_by_its_own_name(tmp_path: Path):
    variant = FedProto(**FedProto.variants["htfllib"])
    written(tmp_path / "a", variant, [0.9])
    written(tmp_path / "b", FedProto(), [0.8])
    assert [row.label for row in compare([tmp_path]).rows] == ["fedproto@htfllib", "fedproto"]


def test_what_moves_no_number_makes_no_row(tmp_path: Path):
    written(tmp_path / "a", FedProto(), [0.9], seed=1)
    written(
        tmp_path / "b",
        FedProto(),
        [0.8],
        seed=2,
        engine=Engine("processes"),
        evaluation=Evaluation(snapshots=1),
    )
    assert [(row.label, row.score.count) for row in compare([tmp_path]).rows] == [("fedproto", 2)]


def test_without_plain_local_the_best_of_its_variants_is_the_one_to_beat(tmp_path: Path):
    variants = Local.variants
    written(tmp_path / "a", FedProto(), [0.9])
    written(tmp_path / "b", replace(Local(), **variants["cosine"]), [0.7])
    written(tmp_path / "c", replace(Local(), **variants["smoothing"]), [0.8])
    assert compare([tmp_path]).against == "local@smoothing"
    written(tmp_path / "d", Local(), [0.6])
    assert compare([tmp_path]).against == "local"


def test_against_must_name_one_row(tmp_path: Path):
    written(tmp_path / "a", FedProto(pull=1), [0.9])
    written(tmp_path / "b", FedProto(pull=2), [0.8])
    assert compare([tmp_path]).against == "fedproto pull=1"  # the best, where there is no local training
    assert compare([tmp_path], against="fedproto pull=2").against == "fedproto pull=2"
    with pytest.raises(ConfigError, match="--against 'fedproto pull=1' or --against 'fedproto pull=2'"):
        compare([tmp_path], against="fedproto")
    with pytest.raises(ConfigError, match=r"--against is 'lokal'.  There is: fedproto pull=1, fedproto pull=2"):
        compare([tmp_path], against="lokal")


# What does not compare


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": 4}, "  clients: 3 in {a}; 4 in {b}"),
        ({"fraction": 0.5}, "  fraction: 1 in {a}; 0.5 in {b}"),
        ({"data": replace(SMALL.data, partition=Dirichlet(0.5))}, "  data.partition.alpha: 0.1 in {a}; 0.5 in {b}"),
        ({"data": replace(SMALL.data, samples=60)}, "  data.samples: not set in {a}; 60 in {b}"),
        ({"data": replace(SMALL.data, source=Spiral(3, 40))}, "  data.source.points: 30 in {a}; 40 in {b}"),
        ({"evaluation": Evaluation(when="before")}, "  evaluation.when: after in {a}; before in {b}"),
    ],
)
def test_runs_that_were_made_differently_are_refused(tmp_path: Path, changes: dict[str, Any], message: str):
    a, b = written(tmp_path / "a", FedProto(), [0.9]), written(tmp_path / "b", Local(), [0.8], **changes)
    with pytest.raises(ConfigError) as refused:
        compare([a, b])
    first, *differences, advice = str(refused.value).splitlines()
    assert first.startswith("These runs do not compare") and "--anyway" in advice
    assert differences == [message.format(a=a, b=b)]


def test_anyway_marks_the_odd_row(tmp_path: Path):
    written(tmp_path / "a", FedProto(), [0.5, 0.9])
    written(tmp_path / "b", Local(), [0.5, 0.8])
    written(tmp_path / "c", FedProto(), [0.5, 0.6, 0.7])
    with pytest.raises(ConfigError, match="rounds: 2 in"):
        compare([tmp_path])
    found = compare([tmp_path], anyway=True)
    assert [row.label for row in found.rows] == ["fedproto", "local", "fedproto rounds=3"]
    assert [row.differs for row in found.rows] == [{}, {}, {"rounds": ("3", "2")}]
    assert found.rounds == 2


def test_a_row_that_differs_in_much_has_a_number_and_a_footnote(tmp_path: Path):
    for name in "ab":
        written(tmp_path / name, FedProto() if name == "a" else Local(), [0.5, 0.9])
    written(tmp_path / "c", FedProto(), [0.5, 0.6, 0.7], fraction=0.5)
    found = compare([tmp_path], anyway=True)
    assert [row.label for row in found.rows] == ["fedproto", "local", "fedproto (1)"]
    assert found.rows[2].differs == {"rounds": ("3", "2"), "fraction": ("0.5", "1")}


def test_runs_are_chosen_by_their_settings(tmp_path: Path):
    written(tmp_path / "a", FedProto(), [0.5, 0.9])
    written(tmp_path / "b", Local(), [0.5, 0.8])
    written(tmp_path / "c", FedProto(), [0.5, 0.6, 0.7])
    found = compare([tmp_path], where=["rounds=2"])
    assert [(row.label, row.score.mean) for row in found.rows] == [("fedproto", 0.9), ("local", 0.8)]
    assert [row.label for row in compare([tmp_path], where=["rounds=2", "method.name=local"]).rows] == ["local"]
    with pytest.raises(ConfigError, match=r"--where rounds=7 leaves no run.  There is rounds=2, 3."):
        compare([tmp_path], where=["rounds=7"])
    with pytest.raises(ConfigError, match=r"--where round=7: no run has this setting.  Did you mean rounds\?"):
        compare([tmp_path], where=["round=7"])
    with pytest.raises(ConfigError, match="--where rounds names no value"):
        compare([tmp_path], where=["rounds"])


def test_a_setting_that_only_others_have_sets_a_row_apart(tmp_path: Path):
    for seed in (1, 2):
        written(tmp_path / f"a{seed}", FedProto(), [0.9], seed=seed, data=replace(SMALL.data, samples=60))
    written(tmp_path / "b", FedProto(), [0.8])
    found = compare([tmp_path], anyway=True)
    assert [row.label for row in found.rows] == ["fedproto", "fedproto data.samples=not set"]


def test_headlines_by_different_protocols_are_refused_unless_one_is_chosen(tmp_path: Path):
    a = written(tmp_path / "a", FedProto(), [0.9, 0.8], evaluation=Evaluation(protocol="best"))
    b = written(tmp_path / "b", Local(), [0.7, 0.6], evaluation=Evaluation(protocol="final"))
    with pytest.raises(ConfigError) as refused:
        compare([a, b])
    assert f"best in {a}; final in {b}" in str(refused.value) and "Choose one: --protocol final|last5|best" in str(
        refused.value
    )  # nothing was held out for validation
    assert [row.score.mean for row in compare([a, b], protocol="final").rows] == [0.8, 0.6]
    assert compare([a, b], anyway=True).choice.protocol == "final"


def test_a_run_that_has_not_ended_is_left_out_and_said_to_be(tmp_path: Path):
    written(tmp_path / "a", FedProto(), [0.9])
    going = written(tmp_path / "b", Local(), [0.8], ended=False)
    with going.joinpath("metrics.jsonl").open("a") as file:
        file.write('{"kind": "rou')  # the line that is being written
    found = compare([tmp_path])
    assert [row.label for row in found.rows] == ["fedproto"] and found.against is None
    assert found.notes == [f"{going} is left out: it has not ended.  To end it: protea resume {going}"]
    with pytest.raises(ConfigError, match=r"There is no run to compare.\n.*has not ended"):
        compare([going])


def test_a_run_of_a_sweep_that_failed_is_called_failed(tmp_path: Path):
    written(tmp_path / "a", FedProto(), [0.9])
    bad = written(tmp_path / "b", Local(), [0.8], ended=False)
    (bad / "error.txt").write_text("ClientError: nan\n")
    assert compare([tmp_path]).notes == [f"{bad} is left out: it failed, see {bad / 'error.txt'}"]


def test_what_runs_warn_of_is_said_once_for_each_row(three: Path):
    """The majority predictor has 88.9 % with seed 2, between the two methods, and 100 % with seed 3."""
    found = compare([three]).warnings
    assert [warning.partition(":")[0] for warning in found] == ["fedproto, seed 3", "local, seeds 2, 3"]
    assert found[0].startswith("fedproto, seed 3: Accuracy in round 2 is 85.0%; always answering")


def test_a_run_of_an_earlier_version_is_left_out(tmp_path: Path):
    written(tmp_path / "a", FedProto(), [0.9])
    old = written(tmp_path / "b", Local(), [0.8])
    (old / "summary.json").write_text('{"method": "local", "accuracy": 0.8}')
    found = compare([tmp_path])
    assert len(found.rows) == 1 and found.notes[0].startswith(f"{old} is left out: its summary.json names no protocols")


def test_a_run_that_is_there_twice_counts_once(tmp_path: Path):
    written(tmp_path / "a", FedProto(), [0.9])
    shutil.copytree(tmp_path / "a", tmp_path / "a-2")
    found = compare([tmp_path])
    assert found.rows[0].score == Spread(1, 0.9)
    assert found.notes == [
        f"{tmp_path / 'a-2'} is left out: it has the settings, the seed and the split of {tmp_path / 'a'}."
    ]


def test_a_run_without_the_number_is_left_out_with_the_reason(tmp_path: Path):
    a = written(tmp_path / "a", FedProto(), [0.9, 0.8])
    b = written(tmp_path / "b", Local(), [0.7, 0.6])
    lines = [json.loads(line) for line in (b / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["test"]["head"]
    (b / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = compare([tmp_path], rule="head")
    assert [row.label for row in found.rows] == ["fedproto"]
    assert found.notes == [f"{b} (local) is left out: it has no rule 'head' here.  It has method."]
    with pytest.raises(ConfigError, match="nothing to report by --protocol validation"):
        compare([a], protocol="validation")
    with pytest.raises(ConfigError, match=r"no answers on the shared test set in round 1.  Try --protocol final"):
        compare([a], scope="ensemble", protocol="best")


def test_runs_of_earlier_versions_compare_with_new_ones(tmp_path: Path):
    """Their settings lack lists that were not there yet, and that are empty."""
    old, new = (written(tmp_path / name, FedProto(), [0.7, 0.6], seed=seed) for seed, name in enumerate("ab", start=1))
    config = tomllib.loads((old / "config.toml").read_text())
    assert config.pop("filters") == [] == config["evaluation"].pop("metrics") == config["evaluation"].pop("rules")
    (old / "config.toml").write_text(tomli_w.dumps(config))
    (row,) = compare([old, new]).rows
    assert (row.label, row.seeds) == ("fedproto", [1, 2])


def with_metric(run: Path, *values: float) -> Path:
    """The run with a metric of the user's own in every round; uniform is half of weighted."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line, value in zip(lines, values, strict=True):
        line["metrics"] = {"auc": {"weighted": value, "uniform": value / 2}}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_an_own_metric_that_all_runs_have_is_compared(tmp_path: Path, typed: Command):
    a = with_metric(written(tmp_path / "a", FedProto(), [0.9, 0.8]), 1.5, 2.5)
    b = with_metric(written(tmp_path / "b", Local(), [0.7, 0.6]), 3.0, 0.5)
    first, second = compare([a, b], measure="auc", protocol="final").rows
    assert (first.label, first.score.mean, second.score.mean) == ("fedproto", 2.5, 0.5)
    assert first.majority is None and first.difference is not None and first.difference.mean == 2.0
    assert compare([a], measure="auc", weighting="uniform", protocol="best").rows[0].score.mean == 0.75
    assert compare([a], measure="auc", protocol="final", target=2.0).rows[0].reached == Reached(2, 1, 1)
    said = typed("compare", tmp_path, "--measure", "auc", "--protocol", "final").out
    assert said.startswith("auc: rule method, clients' own test samples, every sample once") and "2.5000" in said
    with pytest.raises(ConfigError, match=r"--measure auc is of the method's own answers.  Leave out --rule head"):
        compare([a, b], measure="auc", rule="head")
    with pytest.raises(ConfigError, match=r"--scope shared has the accuracy alone, not auc"):
        compare([a, b], measure="auc", scope="shared")
    without = written(tmp_path / "c", FedProto(pull=2), [0.7, 0.6])
    with pytest.raises(ConfigError, match=r"--measure is 'auc'\."):
        compare([a, b, without], measure="auc")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"scope": "onw"}, "--scope is 'onw'.  Did you mean own?"),
        ({"measure": "f1"}, "--measure is 'f1'."),
        ({"protocol": "last"}, "--protocol is 'last'.  Did you mean last5?"),
        ({"weighting": "even"}, "--weighting is 'even'."),
        ({"scope": "server", "measure": "balanced"}, "--scope server has the accuracy alone"),
        ({"measure": "balanced", "weighting": "uniform"}, "--measure balanced is not weighted over clients"),
        ({"scope": "shared", "weighting": "uniform"}, "--scope shared is not weighted over clients"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(tmp_path: Path, asked: dict[str, str], message: str):
    written(tmp_path / "a", FedProto(), [0.9])
    with pytest.raises(ConfigError) as refused:
        compare([tmp_path], **asked)
    assert str(refused.value).startswith(message)


# The command

Pair = Callable[..., tuple[str, str]]


@pytest.fixture
def command(typed: Command) -> Pair:
    """``command("compare", "runs")`` gives what was printed, as output and as notes or errors."""

    def call(*words: str | Path) -> tuple[str, str]:
        said = typed(*words)
        return said.out, said.err

    return call


def test_rules_side_by_side(three: Path, command: Pair):
    found = compare([three], rules=True)
    assert list(found.by_rule) == ["method", "head"]  # in the order of docs/evaluation.md
    assert found.by_rule["method"]["fedproto"].mean == pytest.approx(0.85)
    assert found.by_rule["head"]["fedproto"].mean == pytest.approx(0.085)  # a tenth, in these records
    assert compare([three]).by_rule == {}
    printed = command("compare", three, "--rules", "--format", "markdown")[0]
    assert "| method | own rule | head |" in printed and "| fedproto | 85.00 | 8.50 |" in printed
    (line, *_) = csv.DictReader(StringIO(command("compare", three, "--rules", "--format", "csv")[0]))
    assert float(line["by_head"]) == pytest.approx(0.085)


def test_a_rule_that_some_seeds_lack_has_no_mean(three: Path, command: Pair):
    file = three / "proto-2" / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "round":
            del line["test"]["head"]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = compare([three], rules=True)
    assert set(found.by_rule["head"]) == {"local"}
    assert "| fedproto | 85.00 | - |" in command("compare", three, "--rules", "--format", "markdown")[0]


def test_the_table_says_what_its_numbers_are(three: Path, command: Pair):
    out, notes = command("compare", three, "--target", "0.8")
    text = " ".join(out.split())
    assert len(notes.splitlines()) == 2 and notes.startswith("fedproto, seed 3: Accuracy")
    assert text.startswith(
        "Accuracy in %: rule method, clients' own test samples, every sample once, protocol final (last round); "
        "spiral classes=3 points=30 noise=1 seed=0, dirichlet alpha=0.1 dialect=protea, 3 clients; 2 rounds; "
        "seeds 1, 2, 3."
    )
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith(" ")}
    assert rows["fedproto"][:7] == ["3", "85.00", "5.00", "±12.42", "+8.33", "±7.17", "0.038"]
    assert rows["fedproto"][7:9] == ["42.5", "2.0"] and rows["fedproto"][11:] == ["2.0", "MB"]
    assert rows["local"][4:8] == ["-", "-", "-", "-"] and rows["local"][8:12] == ["-", "1", "of", "3"]
    steps = [json.loads((run / "summary.json").read_text())["steps"] for run in three.glob("proto-*")]
    assert rows["fedproto"][10] == f"{sum(steps) / 3:.0f}" != "0"  # before what was sent


def test_one_seed_gives_dashes_and_never_a_nan(tmp_path: Path, command: Pair):
    written(tmp_path / "a", FedProto(), [0.9], sent=(1000, 1000))
    written(tmp_path / "b", Local(), [0.7])
    for format in ("table", "markdown", "latex", "csv"):
        out, _ = command("compare", tmp_path, "--format", format)
        assert "nan" not in out.lower() and "None" not in out
    assert (
        "| fedproto | 1 | 90.00 | - | - | +20.00 | - | - | 45000 |"
        in command("compare", tmp_path, "--format", "markdown")[0]
    )


def test_the_table_fits_100_columns_whatever_the_labels(tmp_path: Path, command: Pair):
    for seed in (1, 2, 3):
        for pull in (1, 2):
            written(tmp_path / f"{pull}-{seed}", FedProto(pull=pull), [0.1 * seed], seed=seed, sent=(10**8, 10**8))
        changed = {"training": Training(lr=0.125, momentum=0.875), "models": Models(family="tiny_mlp", dim=16)}
        written(tmp_path / f"b{seed}", FedProto(taken="during"), [0.3], seed=seed, fraction=0.5, **changed)
    out, _ = command("compare", tmp_path, "--target", "0.9", "--anyway")
    assert max(map(len, out.splitlines())) <= 100 and "…" not in out
    assert "training.momentum=0.875" in out and "fraction is 0.5, elsewhere 1" in " ".join(out.split())


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_has_every_column_with_its_labels(three: Path, width: int):
    (section,) = comparison_formats.sections(compare([three], target=0.9), clients=False)
    out = comparison_formats.text_of([section], width)
    assert max(map(len, out.splitlines())) <= width and "…" not in out
    drawn = [part for part in out.split("\n\n") if part.lstrip("\n").startswith(" method")]
    assert len(drawn) == 2 and all("local" in each and "fedproto" in each for each in drawn)
    for name, column in section.columns.items():
        assert sum(f" {name} " in f"{each.lstrip().splitlines()[0]} " for each in drawn) >= (name != "method")
        assert any(all(cell in each for cell in column) for each in drawn)


def test_csv_has_every_number_and_the_caption_in_columns(three: Path, command: Pair):
    out, _ = command("compare", three, "--format", "csv", "--target", "0.8")
    proto, local = csv.DictReader(StringIO(out))
    assert [
        float(proto[name]) for name in ("mean", "sd", "low", "difference", "difference_high", "p")
    ] == pytest.approx(
        [0.85, 0.05, 0.85 - FAR * 0.05 / math.sqrt(3), 1 / 12, 1 / 12 + FAR * 0.05 / 3, 1 - 5 / math.sqrt(27)]
    )
    assert (proto["seeds"], proto["pairs"], proto["against"], proto["bytes"]) == ("3", "3", "local", "2000000")
    assert (proto["target_round"], local["target_round"], local["target_runs"]) == ("2", "", "1")
    assert (local["difference"], local["p"], local["per_megabyte"], local["bytes"]) == ("", "", "", "0")
    assert [proto[name] for name in ("rule", "scope", "weighting", "protocol", "rounds", "seed_list")] == [
        "method", "own", "weighted", "final", "2", "1 2 3",
    ]  # fmt: skip
    assert proto["data"].startswith("spiral classes=3")


def test_markdown_and_latex_carry_caption_and_footnotes(tmp_path: Path, command: Pair):
    written(tmp_path / "a", FedProto(), [0.5, 0.9])
    written(tmp_path / "b", Local(), [0.5, 0.8])
    written(tmp_path / "c", FedProto(), [0.5, 0.6, 0.7])
    out, _ = command("compare", tmp_path, "--anyway", "--format", "markdown")
    assert "| fedproto rounds=3 \\* | 1 | 70.00 |" in out and "\\* fedproto rounds=3: rounds is 3, elsewhere 2" in out
    assert "rule method, clients' own test samples, every sample once, protocol final" in out
    out, _ = command("compare", tmp_path, "--anyway", "--format", "latex", "--rule", "head", "--against", "local")
    assert r"\caption{Accuracy in \%: rule head, " in out and r"local & 1 & 8.00 & - & - & - & - & - & - &" in out
    assert r"fedproto & 1 & 9.00 & - & - & $+1.00$ &" in out and r"\par * fedproto rounds=3: rounds is 3" in out
    assert out.count(r" \\") == 4 and len({line.count("&") for line in out.splitlines() if line.endswith(r"\\")}) == 1


def test_a_grid_has_methods_by_data_sets_with_the_best_two_marked(tmp_path: Path, command: Pair):
    small, large = SMALL.data, Data(source=Spiral(classes=4, points=30))
    for seed in (1, 2):
        step = 0.02 * (seed - 1)
        written(tmp_path / f"a{seed}", FedProto(pull=1.0), [0.80 + step], seed=seed)
        written(tmp_path / f"b{seed}", Local(), [0.70 + step], seed=seed)
        written(tmp_path / f"c{seed}", Local(), [0.60 + step], seed=seed, data=large)
    written(tmp_path / "d", FedProto(pull=2.0), [0.5], data=small)
    out, _ = command("compare", tmp_path, "--latex", "--grid", "data.source")
    rows = [line for line in out.splitlines() if line.endswith(r"\\")]
    assert rows[0] == r"method & spiral classes=3 & spiral classes=4 \\"
    assert rows[1] == r"local & \underline{71.00 $\pm$ 1.41} & \textbf{61.00 $\pm$ 1.41} \\"  # it lacks no column
    assert r"fedproto pull=1 & \textbf{81.00 $\pm$ 1.41} & - \\" in rows
    assert r"fedproto pull=2 & 50.00 & - \\" in rows
    assert r"\label{tab:data-source}" in out and r"\caption{Accuracy in \% by data.source: rule method" in out
    out, _ = command("compare", tmp_path, "--grid", "data.source", "--format", "csv")
    assert "local,spiral classes=4,2,0.61," in out
    out, _ = command("compare", tmp_path, "--grid", "data.source", "--format", "markdown")
    assert "| local | *71.00 ± 1.41* | **61.00 ± 1.41** |" in out
    out, _ = command("compare", tmp_path, "--grid", "data.source")
    assert "81.00 ± 1.41 **" in out and "71.00 ± 1.41 *" in out
    _, error = command("compare", tmp_path, "--grid", "data.sorce")
    assert "--grid data.sorce is not a setting of these runs.  Did you mean data.source?" in error
    _, error = command("compare", tmp_path, "--grid", "data.source", "--clients")
    assert "leave out --clients" in error


def test_out_writes_a_file_and_notes_stay_on_the_screen(tmp_path: Path, command: Pair):
    written(tmp_path / "runs" / "a", FedProto(), [0.9])
    going = written(tmp_path / "runs" / "b", Local(), [0.8], ended=False)
    out, notes = command("compare", tmp_path / "runs", "--out", tmp_path / "table.csv")
    assert out == "" and notes.startswith(f"Written: {tmp_path / 'table.csv'}, as csv\n{going} is left out")
    assert (tmp_path / "table.csv").read_text().startswith("method,seeds,mean")
    _, error = command("compare", tmp_path / "runs", "--out", tmp_path / "no" / "table.csv")
    assert "cannot be written: No such file or directory.  Choose another --out." in error
    _, error = command("compare", tmp_path / "runs", "--format", "tex")
    assert error == "ConfigError: --format is 'tex'.  Did you mean latex?\n"


def test_real_runs_from_experiment_file_to_table(tmp_path: Path, command: Pair):
    digits = Path(__file__).parents[2] / "examples" / "digits.toml"
    for seed in (1, 2):
        changes = ["rounds=2", "clients=4", "data.samples=400", "engine=inline", f"seed={seed}"]
        command("run", digits, *changes, "--beside", "local", "--out", tmp_path / f"s{seed}", "--quiet")
    summaries = {
        name: [json.loads((tmp_path / f"s{seed}{end}" / "summary.json").read_text()) for seed in (1, 2)]
        for name, end in (("fedproto", ""), ("local", "-local"))
    }
    out, notes = command("compare", tmp_path, "--format", "csv")
    rows = {row["method"]: row for row in csv.DictReader(StringIO(out))}
    assert notes == "" and rows.keys() == {"fedproto", "local"}
    for name, found in summaries.items():
        mean = (found[0]["accuracy"] + found[1]["accuracy"]) / 2
        assert float(rows[name]["mean"]) == pytest.approx(mean)
        assert float(rows[name]["bytes"]) == sum(s["bytes_up"] + s["bytes_down"] for s in found) / 2
        assert float(rows[name]["majority"]) == pytest.approx((found[0]["majority"] + found[1]["majority"]) / 2)
    pairs = [p["accuracy"] - l["accuracy"] for p, l in zip(summaries["fedproto"], summaries["local"], strict=True)]
    assert rows["fedproto"]["pairs"] == "2" and rows["fedproto"]["protocol"] == "validation"
    assert float(rows["fedproto"]["difference"]) == pytest.approx(sum(pairs) / 2)
    ensemble, _ = command("compare", tmp_path, "--format", "csv", "--scope", "ensemble", "--rule", "head")
    found = {row["method"]: float(row["mean"]) for row in csv.DictReader(StringIO(ensemble))}
    assert found["local"] == pytest.approx(sum(s["shared"]["head"]["ensemble"] for s in summaries["local"]) / 2)
