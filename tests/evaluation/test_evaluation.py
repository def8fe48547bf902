from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import toy
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from torch.nn import functional as F

from protea import Prototypes
from protea.config.sections import Evaluation
from protea.config.words import Protocol
from protea.core.errors import ClientError, PayloadError
from protea.core.payload import pack
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.engines.inline import Inline
from protea.engines.scripted import Scripted
from protea.evaluation.client_side import around
from protea.evaluation.counts import Counts, answered_right, mistaken, packed_bits, probabilities, unpacked_bits
from protea.evaluation.examination import Examination, FeatureSpace
from protea.evaluation.protocols import headline, report
from protea.evaluation.scores import Score, Shared
from protea.evaluation.server_side import Judged, Together
from protea.federation.jobs import Job, Reply
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.methods.fedproto import FedProto
from protea.methods.local import Local

RULES = ["method", "head", "head_own", "global_prototypes", "global_prototypes_own", "local_prototypes", "blend"]
TEST = Samples(toy.BLOBS, toy.TEST)


def run(**settings: object) -> Federation:
    worker = toy.worker(FedProto(), toy.build, seed=1)
    plan = Evaluation(**settings)  # type: ignore[arg-type]
    return Federation(
        FedProto(),
        Inline(worker),
        toy.server(),
        FederationPlan(clients=toy.CLIENTS, rounds=4, evaluation=plan),
        test=TEST,
    )


@pytest.mark.parametrize(("shared", "expected"), [("never", []), ("last", [4]), (1, [1, 2, 3, 4]), (3, [3, 4])])
def test_the_shared_test_set_is_looked_at_when_it_should_be(shared: object, expected: list[int]):
    assert [record.round for record in run(shared=shared).run() if record.shared] == expected


def test_the_ensemble_is_the_largest_mean_probability():
    """Two of three are sure of class 0, but the third is so sure of class 1 that the mean is for it."""
    labels = torch.tensor([1, 0])
    said = {
        0: torch.tensor([[0.6, 0.4], [0.9, 0.1]]),
        1: torch.tensor([[0.6, 0.4], [0.2, 0.8]]),
        2: torch.tensor([[0.0, 1.0], [0.5, 0.5]]),
    }
    together = Together(labels, 2)
    for client, chances in said.items():
        heard(together, Reply(client, 1, {"head": chances}))
    assert together.scores() == {"head": Shared(ensemble=1.0, clients=pytest.approx((0.5 + 0.0 + 0.5) / 3))}
    assert together.alone == {0: {"head": 0.5}, 1: {"head": 0.0}, 2: {"head": 0.5}}  # equal chances are no answer


def test_a_rule_that_some_clients_lack_has_no_ensemble():
    together = Together(torch.tensor([0]), 2)
    heard(together, Reply(0, 1, {"head": torch.tensor([[1.0, 0.0]]), "method": torch.tensor([[1.0, 0.0]])}))
    heard(together, Reply(1, 1, {"head": torch.tensor([[1.0, 0.0]])}))
    assert set(together.scores()) == {"head"}


def test_clients_answer_the_shared_test_set_by_every_rule():
    federation = run()
    *_, record = federation.run()
    assert list(record.shared) == list(record.test) == RULES
    worker = federation.engine.worker  # type: ignore[attr-defined]
    x, y = TEST.batch(torch.arange(len(TEST)))
    with torch.no_grad():
        heads = torch.stack([F.softmax(worker.clients[i].model.eval()(x), 1) for i in range(toy.CLIENTS)])
    assert record.shared["head"].ensemble == float((heads.mean(0).argmax(1) == y).double().mean())
    each = (heads.argmax(2) == y).double().mean(1)
    assert [client.shared["head"] for client in record.clients] == each.tolist()
    assert record.shared["head"].clients == pytest.approx(float(each.mean()))


def test_a_client_without_any_score_leaves_the_decision_to_others():
    scores = torch.tensor([[-torch.inf, -torch.inf], [-torch.inf, 2.0]])
    assert probabilities(scores).tolist() == [[0.5, 0.5], [0.0, 1.0]]


def test_a_client_that_cannot_answer_is_left_out_and_on_record():
    def judge(job: Job) -> Reply:
        if job.task == "answer" and job.client == 1:
            return Reply(1, job.round, error="out of memory")
        answers = {0: F.one_hot(TEST.y, toy.CLASSES).float(), 2: torch.ones(3, toy.CLASSES)}
        return Reply(job.client, job.round, {"head": answers[job.client]} if job.task == "answer" else {})

    engine = Scripted(lambda job: Prototypes(torch.ones(toy.CLASSES, toy.DIM), torch.ones(toy.CLASSES)), judge)
    (record,) = Federation(
        FedProto(), engine, toy.server(), FederationPlan(clients=3, rounds=1, failures="skip"), test=TEST
    ).run()
    assert record.failures[1] == "out of memory"
    assert "its evaluation cannot be used: (3, 6) answers on the shared test set by 'head'" in record.failures[2]
    assert record.shared == {"head": Shared(1.0, 1.0)}


def test_many_clients_are_asked_in_groups(monkeypatch: pytest.MonkeyPatch):
    whole = [record.shared for record in run(shared=1).run()]
    monkeypatch.setattr("protea.federation.loop.GROUP", 3)
    assert [record.shared for record in run(shared=1).run()] == whole


def test_a_server_without_a_model_has_no_accuracy():
    worker = toy.worker(Local(), toy.build, seed=1)
    (record,) = Federation(
        Local(), Inline(worker), toy.server(), FederationPlan(clients=toy.CLIENTS, rounds=1), test=TEST
    ).run()
    assert record.server == {}


LABELS = torch.tensor([0, 0, 0, 1, 1, 2])
ANSWERS = torch.tensor([0, 0, 1, 1, 2, 1])


def heard(judge: Judged | Together, reply: Reply) -> None:
    judge.take(reply.client, judge.read(reply.up))


def scores(answers: torch.Tensor, classes: int, height: float = 1.0) -> torch.Tensor:
    return height * F.one_hot(answers, classes).float()


def test_measures_by_hand():
    """Class 0: 2 of 3, class 1: 1 of 2, class 2: 0 of 1, class 3: never there."""
    tally = Counts.of(scores(ANSWERS, 4), LABELS)
    assert (tally.samples.tolist(), tally.hits.tolist(), tally.answers.tolist()) == (
        [3, 2, 1, 0], [2, 1, 0, 0], [2, 3, 1, 0],
    )  # fmt: skip
    assert tally.accuracy == 0.5
    assert tally.by_class == [pytest.approx(2 / 3), 0.5, 0.0, None]
    assert tally.balanced == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert tally.macro_f1 == pytest.approx((4 / 5 + 2 / 5 + 0) / 3)
    certainty = math.e / (math.e + 3)  # of every answer
    assert tally.calibration == pytest.approx(abs(certainty - 0.5))


def test_certain_and_right_is_calibrated_and_certain_and_wrong_is_not():
    right = Counts.of(scores(LABELS, 3, 100.0), LABELS)
    wrong = Counts.of(scores((LABELS + 1) % 3, 3, 100.0), LABELS)
    assert right.calibration == pytest.approx(0.0) and wrong.calibration == pytest.approx(1.0)


@given(st.integers(0, 2**31), st.integers(2, 6), st.integers(1, 60))
def test_measures_are_those_of_scikit_learn(seed: int, classes: int, samples: int):
    g = torch.Generator().manual_seed(seed)
    said, labels = torch.randn(samples, classes, generator=g), torch.randint(classes, (samples,), generator=g)
    tally, true, answers = Counts.of(said, labels), labels.numpy(), said.argmax(1).numpy()
    assert tally.accuracy == pytest.approx(metrics.accuracy_score(true, answers))
    assert tally.macro_f1 == pytest.approx(metrics.f1_score(true, answers, average="macro"))
    recall = metrics.recall_score(true, answers, average="macro", labels=labels.unique().numpy())
    assert tally.balanced == pytest.approx(recall)
    first = samples // 2
    if first > 0:
        parts = Counts.of(said[:first], labels[:first]) + Counts.of(said[first:], labels[first:])
        assert parts.accuracy == tally.accuracy and parts.calibration == pytest.approx(tally.calibration)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hits", torch.tensor([4, 0, 0])),
        ("samples", torch.tensor([-1, 2, 1])),
        ("answers", torch.tensor([1.0, 2.0, 3.0])),
        ("hits", torch.tensor([0, 0])),
        ("certain", torch.zeros(3, 2)),
    ],
)
def test_a_tally_that_cannot_be_is_refused(name: str, value: torch.Tensor):
    tally = Counts.of(scores(ANSWERS, 3), LABELS)
    tally.check(3, 1)
    with pytest.raises(PayloadError):
        replace(tally, **{name: value}).check(3, 1)


@dataclass(frozen=True)
class Round:
    round: int
    test: dict[str, Score]
    validation: dict[str, Score]
    judged: frozenset[int] = frozenset({0, 1})


def score(value: float) -> dict[str, Score]:
    return {"method": Score(value, value, value, value, 0.0)}


ROUNDS = [
    Round(i + 1, score(test), score(validation))
    for i, (test, validation) in enumerate([(0.2, 0.1), (0.9, 0.5), (0.5, 0.7), (0.4, 0.6), (0.6, 0.2), (0.7, 0.3)])
]


@pytest.mark.parametrize(
    ("protocol", "rounds", "accuracy"),
    [
        ("final", [6], 0.7),
        ("last5", [2, 3, 4, 5, 6], 0.62),
        ("best", [2], 0.9),
        ("validation", [3], 0.5),
    ],
)
def test_protocols_report_different_rounds(protocol: Protocol, rounds: list[int], accuracy: float):
    found = report([*ROUNDS[:2], Round(99, {}, {}), *ROUNDS[2:]], protocol)  # a round without evaluation
    assert found is not None
    assert found.rounds == rounds and found.test["method"].weighted == pytest.approx(accuracy)


@pytest.mark.parametrize("protocol", ["validation", "best"])
def test_of_rounds_that_tie_the_latest_is_reported(protocol: Protocol):
    tied = [replace(each, test=score(0.9), validation=score(0.7)) for each in ROUNDS[:4]]
    found = report([*tied, *ROUNDS[4:]], protocol)
    assert found is not None and found.rounds == [4]


def test_without_validation_data_the_final_round_is_reported():
    blind = [replace(each, validation={}) for each in ROUNDS]
    found = headline(blind, "validation")
    assert found is not None and (found.protocol, found.rounds) == ("final", [6])
    assert headline([], "best") is None


@pytest.mark.parametrize("protocol", ["validation", "best"])
def test_a_round_that_judged_fewer_clients_is_not_chosen(protocol: Protocol):
    easy = replace(ROUNDS[1], test=score(1.0), validation=score(1.0), judged=frozenset({1}))
    found = report([ROUNDS[0], easy, *ROUNDS[2:]], protocol)
    assert found is not None and found.rounds == [3 if protocol == "validation" else 6]
    changing = [replace(each, judged=frozenset({each.round})) for each in ROUNDS]
    assert report(changing, protocol) is None
    main = headline(changing, protocol)
    assert main is not None and (main.protocol, main.rounds) == ("final", [6])


def test_no_score_at_all_is_no_answer():
    tally = Counts.of(torch.full((2, 3), -torch.inf), torch.tensor([0, 1]))
    assert tally.accuracy == 0 and tally.answers.tolist() == [0, 0, 0] and len(tally) == 2
    tally.check(3, 1)


def test_scores_that_are_not_finite_are_named():
    class Diverged(Local):
        def predict(self, client, x, down):
            return client.model(x) * torch.nan

    worker = toy.worker(Diverged(), toy.build, seed=1)
    with pytest.raises(ClientError, match=r"client 0, round 1: its scores by 'method' are not finite"):
        list(Federation(Diverged(), Inline(worker), toy.server(), FederationPlan(clients=toy.CLIENTS, rounds=1)).run())


def test_a_rule_that_nobody_knows_is_refused():
    tally = Counts.of(scores(ANSWERS, 3).unsqueeze(0), LABELS)
    own = torch.tensor([0])
    Examination(own, {"test": tally}).check(3, 1)
    for rules, tallies, complaint in (
        (own, {"train": tally}, "'train' arrived, which is neither test nor validation"),
        (own + 1, {"test": tally}, "what the method's own rule answers is missing"),
        (own - 1, {"test": tally}, r"rules \[-1\] arrived; there are those from 0 to 6"),
        (own + 7, {"test": tally}, r"rules \[7\] arrived"),
        (torch.tensor([0, 0]), {"test": tally}, r"rules \[0, 0\] arrived"),
        (torch.tensor([0, 1]), {"test": tally}, r"tallies of \(1, 3\) on test samples, for 2 rules"),
        (own, {"test": tally[0]}, r"tallies of \(3,\) on test samples, for 1 rules"),
        (own.float(), {"test": tally}, "not a list of places"),
        (torch.tensor(0), {"test": tally}, "not a list of places"),
    ):
        with pytest.raises(PayloadError, match=complaint):
            Examination(rules, tallies).check(3, 1)


def test_which_samples_were_answered_right_is_told_where_it_may_be_known():
    tally, own = Counts.of(scores(ANSWERS, 3).unsqueeze(0), LABELS), torch.tensor([0])
    right = answered_right(scores(ANSWERS, 3), LABELS)[0]
    honest = Examination(own, {"test": tally}, right=packed_bits(right))
    honest.check(3, 1, single=True)
    assert unpacked_bits(packed_bits(right))[: len(right)].equal(right)
    with pytest.raises(PayloadError, match="a site does not tell that"):
        honest.check(3, 1)
    with pytest.raises(PayloadError, match="a site does not tell that"):
        Judged(3, 1).read(pack(honest))
    for wrong, complaint in (
        (~packed_bits(right), "does not fit how many were"),
        (packed_bits(right).long(), r"bytes of torch.int64 arrived"),
        (packed_bits(right).repeat(2), r"\(2,\) bytes of torch.uint8 arrived"),
    ):
        with pytest.raises(PayloadError, match=complaint):
            replace(honest, right=wrong).check(3, 1, single=True)
    with pytest.raises(PayloadError, match="without any test samples"):
        Examination(own[:0], {}, right=packed_bits(right)).check(3, 1, single=True)


def test_which_class_was_taken_for_which_is_told_where_it_may_be_known():
    """Answers 0, 1, 1 of three samples of the classes 0, 0, 2, and none of a fourth."""
    given = torch.tensor([[9.0, 0, 0], [0, 9, 0], [0, 9, 0], [-torch.inf] * 3])
    labels = torch.tensor([0, 0, 2, 2])
    mistakes = mistaken(given, labels)
    assert mistakes.tolist() == [[0, 1, 0], [0, 0, 0], [0, 1, 0]]
    tally = Counts.of(given.unsqueeze(0), labels)
    told = Examination(torch.tensor([0]), {"test": tally}, mistakes=mistakes)
    told.check(3, 1, single=True)
    with pytest.raises(PayloadError, match="a site does not tell that"):
        told.check(3, 1)
    for wrong, why in (
        (mistakes.t().contiguous(), "does not fit how many answers were wrong"),
        (2 * mistakes, "does not fit how many answers were wrong"),
        (mistakes + torch.eye(3, dtype=torch.int64), "below zero, too many, or none"),
        (-mistakes, "below zero"),
        (mistakes.float(), "mistakes of torch.float32"),
        (mistakes[:2], r"\(2, 3\) mistakes"),
    ):
        with pytest.raises(PayloadError, match=why):
            replace(told, mistakes=wrong).check(3, 1, single=True)
    judged = Judged(3, 1, single=True)
    judged.take(0, told)
    judged.take(1, told)
    assert judged.mistakes() == [[0, 1, 2], [2, 1, 2]]
    judged.take(2, replace(told, mistakes=None))  # somebody does not tell it
    assert judged.mistakes() == []


def test_records_of_simulations_tell_which_samples_were_answered_right():
    plan = FederationPlan(clients=toy.CLIENTS, rounds=1, single_answers=True)
    worker = toy.worker(FedProto(), toy.build, seed=1, single_answers=True)
    (record,) = Federation(FedProto(), Inline(worker), toy.server(), plan).run()
    parts = [client.parts["test"] for client in record.clients if "test" in client.parts]
    assert parts
    for found in parts:
        assert found.right_samples is not None and len(found.right_samples) == found.samples
        assert sum(found.right_samples) == found.hits["method"]
    silent = toy.worker(FedProto(), toy.build, seed=1)
    (same,) = Federation(FedProto(), Inline(silent), toy.server(), plan).run()
    assert same.test == record.test and all("test/right" not in line for line in same.lines())


@given(st.integers(0, 2**31), st.integers(2, 6), st.integers(1, 40))
def test_several_rules_are_counted_as_each_alone(seed: int, classes: int, samples: int):
    g = torch.Generator().manual_seed(seed)
    said, labels = torch.randn(3, samples, classes, generator=g), torch.randint(classes, (samples,), generator=g)
    said[1, ::2] = said[2, :, 0] = -torch.inf
    together = Counts.of(said, labels)
    for rule in range(3):
        alone = Counts.of(said[rule], labels)
        for name, tensor in alone.flat().items():
            assert torch.equal(getattr(together[rule], name), tensor)


def test_only_participants_are_judged_if_so_wished():
    worker = toy.worker(FedProto(), toy.build, seed=1)
    plan = Evaluation(clients="participants")
    loop = Federation(
        FedProto(),
        Inline(worker),
        toy.server(),
        FederationPlan(clients=toy.CLIENTS, rounds=4, fraction=0.5, evaluation=plan),
        test=TEST,
    )
    for record in loop.run():
        assert {each.client for each in record.clients} == set(record.participants)


def test_margins_and_spreads_by_hand():
    """Two classes at distance 4 on the first client, 2 on the second; the global ones at 1."""
    judged = Judged(classes=3, dim=1)
    for client, apart in ((0, 4.0), (1, 2.0)):
        own = Prototypes(torch.tensor([[0.0], [apart], [0.0]]), torch.tensor([1.0, 1.0, 0.0]))
        space = around(own, torch.tensor([[1.0], [apart - 2], [7.0]]), torch.tensor([0, 1, 2]))
        heard(judged, Reply(client, 1, pack(Examination(torch.tensor([0]), {}, space))))
    judged.known = Prototypes(torch.tensor([[0.0], [1.0], [5.0]]), torch.ones(3))
    found = judged.geometry()
    assert found is not None
    assert found.margins == [1.0, 1.0, 4.0] and found.widest == [4.0, 4.0, 0.0]
    assert found.shrinkage == pytest.approx(0.25)  # class 2 is on no client
    assert found.apart == 5.0
    judged.known = Prototypes(torch.zeros(3, 1), torch.ones(3))
    collapsed = judged.geometry()
    assert collapsed is not None and collapsed.shrinkage == 0 == collapsed.apart
    assert (found.inter, found.intra) == (3.0, 1.5)


def test_what_a_report_draws_is_all_prototypes_and_one_clients_features():
    loop = run()
    list(loop.run())
    seen = loop.look()
    assert seen["global.vectors"].shape == (toy.CLASSES, toy.DIM)
    assert {name.split(".")[0] for name in seen} == {"global", *map(str, range(toy.CLIENTS))}
    assert [name for name in seen if name.endswith("features")] == ["0.features"]


@pytest.mark.parametrize(("snapshots", "rounds"), [(0, 7), (1, 7), (3, 7), (7, 7), (20, 7), (20, 100)])
def test_snapshots_are_spread_over_the_run(snapshots: int, rounds: int):
    due = [r for r in range(1, rounds + 1) if Evaluation(snapshots=snapshots).snapshot_due(r, rounds)]
    assert len(due) == min(snapshots, rounds)
    assert not due or due[-1] == rounds


def test_features_are_computed_once_for_a_state_of_the_model():
    client = toy.build(0, Streams(1))
    first = client.features()
    client.model.body.forward = None  # no further look is needed
    assert torch.equal(client.features()[0], first[0])
    del client.model.body.forward
    client.fit(lambda x, y: F.cross_entropy(client.model(x), y))
    second = client.features()
    assert not torch.equal(first[0], second[0])
    second[0].zero_()  # a method may do what it likes with what it got
    second[1].zero_()
    for found, made in zip(client.features(), client.outputs(client.model.features), strict=True):
        assert torch.equal(found, made)
    for parameter in client.model.body.parameters():
        parameter.data.mul_(1.5)  # which torch does not count as a change
    assert torch.equal(client.features()[0], client.outputs(client.model.features)[0])
    assert torch.equal(client.prototypes().vectors, Prototypes.of(*client.features(), client.classes).vectors)


# Replies that no honest client sends


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"space": FeatureSpace(torch.zeros(3), torch.ones(()), torch.ones(()))}, "Margins and spreads of shapes"),
        (
            {"space": FeatureSpace(torch.zeros(toy.CLASSES), torch.ones(2), torch.ones(()))},
            "Margins and spreads of shapes",
        ),
        ({"samples": torch.zeros(1, toy.CLASSES).long(), "hits": torch.zeros(1, toy.CLASSES).long()}, "of no samples"),
        ({"samples": torch.full((1, toy.CLASSES), 2**62)}, "of no samples, or of more than"),
        ({"certain": torch.ones(1, 3, 15, dtype=torch.bool)}, r"certainties are not \(3, 15\)"),
    ],
)
def test_an_examination_that_cannot_be_is_refused(changed: dict[str, Any], complaint: str) -> None:
    space = changed.pop("space", None)
    honest = Counts.of(F.one_hot(torch.arange(toy.CLASSES)).float().unsqueeze(0), torch.arange(toy.CLASSES))
    judged = Judged(toy.CLASSES, toy.DIM)
    heard(judged, Reply(0, 1, pack(Examination(torch.tensor([0]), {"test": honest}))))
    with pytest.raises(PayloadError, match=complaint):
        heard(judged, Reply(1, 1, pack(Examination(torch.tensor([0]), {"test": replace(honest, **changed)}, space))))
    assert judged.scores("test")["method"].weighted == 1.0


@pytest.mark.parametrize(
    ("rule", "chances"),
    [
        ("head", torch.ones(2, 3, dtype=torch.bool)),
        ("head", torch.ones(2, 3, dtype=torch.complex64)),
        ("head", torch.full((2, 3), torch.nan)),
        ("head", torch.full((2, 3), 1e30)),
        ("guess", torch.full((2, 3), 1 / 3)),
    ],
)
def test_answers_on_the_shared_test_set_that_cannot_be_are_refused(rule: str, chances: torch.Tensor) -> None:
    together = Together(torch.tensor([0, 1]), 3)
    with pytest.raises(PayloadError, match="answers on the shared test set by"):
        heard(together, Reply(0, 1, {rule: chances}))
    assert together.scores() == {}


def test_counts_of_training_samples_are_counts_and_of_simulations_only():
    fitted = Examination(torch.zeros(0, dtype=torch.int64), {}, train=torch.tensor([3, 4]))
    fitted.check(3, 1, single=True)
    with pytest.raises(PayloadError, match="a site does not tell that"):
        fitted.check(3, 1)
    for wrong in (torch.tensor([5, 4]), torch.tensor([-1, 4]), torch.tensor([3.0, 4.0]), torch.tensor([3])):
        with pytest.raises(PayloadError, match="not how many training samples"):
            replace(fitted, train=wrong).check(3, 1, single=True)
