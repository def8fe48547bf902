from __future__ import annotations

from dataclasses import replace

from protea.evaluation.scores import Geometry, Score
from protea.federation.record import ClientRecord, Cost, PartRecord, Record
from protea.runs import warnings

NAMES = ["ant", "bee", "cat"]
WELL = Record(
    round=1,
    participants=[0],
    loss=1.0,
    test={"method": Score(0.8, 0.8, 0.8, 0.8, 0.1)},
    validation={},
    classes={"samples": [5, 5, 0], "hits": [4, 4, 0], "answers": [5, 5, 0]},
    shared={},
    server={},
    geometry=Geometry([1.0, 1.0, 0.0], [2.0, 2.0, 0.0], 0.5, 1.0, 2.0, 0.5),
    values={"server_loss": 1.0},
    bytes_up=0,
    bytes_down=0,
    total_up=0,
    total_down=0,
    failures={},
    refused=[],
    absent={},
    cost=Cost(),
    clients=[],
)


def rounds(**last: object) -> list[Record]:
    early = [replace(WELL, round=i, values={"server_loss": 2.0 - i / 10}) for i in range(1, 5)]
    return [*early, replace(WELL, round=5, **last)]  # type: ignore[arg-type]


def said(records: list[Record], majority: float, names: list[str]) -> list[str]:
    return list(warnings.warnings(records, majority, names).values())


def test_a_run_that_is_well_says_nothing():
    assert warnings.warnings(rounds(), 0.5, NAMES) == {}
    assert warnings.warnings([replace(WELL, test={})], 0.5, NAMES) == {}
    assert warnings.warnings([], None, NAMES) == {}


def test_an_accuracy_at_the_majority_rate_is_doubted():
    (warning,) = said(rounds(), 0.8, NAMES)
    assert warning.startswith("Accuracy in round 5 is 80.0%; always answering a client's commonest class has 80.0%.")


def test_a_class_that_is_never_an_answer_is_named():
    (warning,) = said(rounds(classes={"samples": [5, 5, 0], "hits": [4, 0, 0], "answers": [10, 0, 0]}), 0.5, NAMES)
    assert warning == "In round 5 no client answered bee, though there are test samples of it."


def test_prototypes_at_one_point_are_noticed():
    (warning,) = said(rounds(geometry=replace(WELL.geometry, apart=1e-4)), 0.5, NAMES)
    assert "Global prototypes lie at one point: none is more than 0.0001 from the first" in warning


def test_a_server_loss_that_rises_is_noticed():
    (warning,) = said(rounds(values={"server_loss": 2.5, "margin": 9.0}), 0.5, NAMES)
    assert warning == "The server's server_loss did not fall: 1.9 at first, 2.5 in the last round."


def test_a_server_value_that_is_no_number_is_noticed():
    (warning,) = said(rounds(values={"server_loss": None}), 0.5, NAMES)
    assert warning.startswith("The server's server_loss is not a number: it has diverged.")


def test_a_teacher_with_one_answer_is_noticed():
    (warning,) = said(rounds(values={"server_loss": 1.0, "teacher_commonest": 0.95}), 0.5, NAMES)
    assert "one class for 95% of them" in warning
    assert said(rounds(values={"server_loss": 1.0, "teacher_commonest": 0.8}), 0.5, NAMES) == []


def test_a_client_that_is_out_of_proportion_again_and_again_is_named():
    def seen(changed: list[int]) -> list[Record]:
        return [replace(each, participants=[0, 1, 2], changed=changed) for each in rounds()]

    (warning,) = said(seen([1]), 0.5, NAMES)
    assert "of client 1 (5 of 5 rounds)." in warning
    assert not said(seen([0, 1, 2]), 0.5, NAMES)  # such as by a median
    assert not said([*seen([])[:4], seen([1])[4]], 0.5, NAMES)  # once is chance


def held_out(samples: int, *accuracies: tuple[float, float]) -> list[Record]:
    """Rounds of one client with so many validation samples: (accuracy on these, accuracy on test samples)."""
    parts = {"test": PartRecord(100, {}, {}), "validation": PartRecord(samples, {}, {})}
    found = []
    for place, (validation, test) in enumerate(accuracies):
        scores = {name: {"method": Score(value, value, None, None, None)}
                  for name, value in (("validation", validation), ("test", test))}  # fmt: skip
        found.append(replace(WELL, round=place + 1, clients=[ClientRecord(parts, client=0)], **scores))
    return found


def test_few_validation_samples_cannot_choose_a_round_and_say_so():
    course = [(0.5, 0.5), (0.9, 0.9), (0.95, 0.93), (0.95, 0.96), (0.95, 0.97), (0.9, 0.91)]
    # 20 samples: (19 + 2) / 24 = 0.875 has a standard error of sqrt(0.875 * 0.125 / 24) = 6.8 points.
    said = warnings.undecided(held_out(20, *course), "validation")["undecided"]
    assert said.startswith("20 validation samples cannot choose a round: 5 rounds are within one standard error (6.8 ")
    assert "of round 5, which is reported with 97.0%." in said and "have 90.0% to 97.0%, the last one 91.0%." in said
    # 2,000 samples: half a point, so that the second round is out; 93 to 97 are left, and still cannot be told apart.
    assert "3 rounds" in warnings.undecided(held_out(2000, *course), "validation")["undecided"]


def test_where_it_does_not_matter_which_round_is_chosen_nothing_is_said():
    alike = [(0.5, 0.5), (0.95, 0.965), (0.95, 0.967), (0.9, 0.966)]
    assert warnings.undecided(held_out(20, *alike), "validation") == {}
    last = [(0.5, 0.5), (0.9, 0.9), (0.95, 0.97)]  # which nobody would ask about
    assert warnings.undecided(held_out(20, *last), "validation") == {}
    assert warnings.undecided(held_out(20, (0.5, 0.5), (0.9, 0.9), (0.95, 0.97)), "final") == {}
    assert warnings.undecided([replace(WELL, round=1)], "validation") == {}  # nothing is held out
    assert warnings.undecided([], "validation") == {}
