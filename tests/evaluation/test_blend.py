"""The rule blend: by hand where that is possible, to the bit where it falls back, and the same on every engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy
from scipy.optimize import minimize
from torch import Tensor

import protea
from protea import Prototypes
from protea.config.experiment import Experiment, experiment_from_table
from protea.config.sections import Engine, Evaluation
from protea.core.client import Client
from protea.core.errors import ClientError, ConfigError
from protea.core.method import Method
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.engines.inline import Inline
from protea.engines.processes.engine import Processes
from protea.evaluation.blend import FOLDS, LEAST, RIDGE, Blend, fit_weights, log_probabilities, losses, surely_positive
from protea.evaluation.client_side import examine, shared_answers
from protea.federation.jobs import JobEngine
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.methods.fedproto import FedProto
from protea.methods.local import Local

COUNTS = torch.tensor([10.0, 10.0, 10.0])
LABELS = torch.arange(30) % 3


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def near(labels: Tensor, classes: int = 3, scale: float = 1.0) -> Tensor:
    """Minus distances to prototypes: 0 to that of the label, ``scale`` to all others."""
    return -scale * (1 - torch.nn.functional.one_hot(labels, classes).float())


def random_head(seed: int = 0) -> dict[str, Tensor]:
    head = drawn(30, 3, seed=seed)
    return {"method": head, "head": head}


def trained(id: int = 0, round: int = 1) -> Client:
    client = toy.build_holding_out(id, Streams(7).at("client", id))
    client.begin(round, client.rng.at("round", round))
    return client


def test_perfect_prototypes_beat_a_random_head():
    said = {**random_head(), "local_prototypes": near(LABELS)}
    blend = Blend.fit(said, LABELS, COUNTS)
    assert blend.weights["local_prototypes"] > 3 * blend.weights["method"]
    new = LABELS[torch.tensor([2, 0, 1])]
    answers = blend.scores(
        {**{name: drawn(3, 3, seed=5) for name in ("method", "head")}, "local_prototypes": near(new)}
    )
    assert answers.argmax(1).tolist() == new.tolist()
    assert blend.held_out is not None and (blend.held_out.argmax(1) == LABELS).all()


def test_useless_prototypes_leave_the_head_to_the_bit():
    head = 4 * torch.nn.functional.one_hot(LABELS, 3).float() + drawn(30, 3)
    head[0] = torch.tensor([0.0, 1.0, 0.0])  # one mistake, so that there is something to gain
    said = {"method": head, "head": head, "local_prototypes": -drawn(30, 3, seed=1).abs()}
    blend = Blend.fit(said, LABELS, COUNTS)
    assert blend.weights == {}
    new = {"method": drawn(4, 3, seed=2), "local_prototypes": -drawn(4, 3, seed=3).abs()}
    assert blend.scores(new) is new["method"] and blend.scores(new, prior=False) is new["method"]


def test_the_scale_of_features_does_not_matter():
    """A power of two, since only these scale float32 without rounding."""
    distances = near(LABELS) - drawn(30, 3, seed=4).abs()
    plain, scaled = (
        Blend.fit({**random_head(), "local_prototypes": scale * distances}, LABELS, COUNTS) for scale in (1.0, 1024.0)
    )
    assert plain.weights == scaled.weights != {}
    new = near(LABELS[:5])
    head = drawn(5, 3)
    assert torch.equal(
        plain.scores({"method": head, "local_prototypes": new}),
        scaled.scores({"method": head, "local_prototypes": 1024 * new}),
    )


def test_a_class_without_a_prototype_is_as_likely_as_the_mean_of_the_others():
    """Distances 0 and 1 with spread 1/2: log-odds of 2, so 1 / (1 + e^-2) and the rest; the mean of both is 1/2."""
    scores = torch.tensor([[0.0, -1.0, -torch.inf]])
    said = {"method": torch.zeros(1, 3), "local_prototypes": scores}
    found = log_probabilities(said, ["method", "local_prototypes"], {"local_prototypes": 0.5}, np.log(np.ones(3) / 3))
    first = 1 / (1 + np.exp(-2))
    np.testing.assert_allclose(np.exp(found), [[[1 / 3] * 3], [[first, 1 - first, 0.5]], [[1 / 3] * 3]])


def test_rules_that_have_nothing_to_say_are_finite():
    said = {**random_head(), "global_prototypes": torch.full((30, 3), -torch.inf)}
    blend = Blend.fit({**said, "local_prototypes": near(LABELS)}, LABELS, COUNTS)
    new = {**{name: drawn(3, 3) for name in ("method", "head")}, "local_prototypes": near(LABELS[:3])}
    assert blend.scores({**new, "global_prototypes": torch.full((3, 3), -torch.inf)}).isfinite().all()


def test_a_class_that_only_the_head_knows_can_still_be_the_answer():
    """Two thirds of the held-out samples are told by prototypes, those of the last class by the head alone."""
    head = 3 * torch.nn.functional.one_hot(LABELS, 3).float() * (LABELS == 2).unsqueeze(1) + 0.3 * drawn(30, 3)
    prototypes = near(LABELS)
    prototypes[:, 2] = -torch.inf
    prototypes[LABELS == 2, :2] = -1.0  # far from both
    blend = Blend.fit({"method": head, "head": head, "local_prototypes": prototypes}, LABELS, COUNTS)
    assert (blend.scores({"method": head, "local_prototypes": prototypes}).argmax(1) == LABELS).float().mean() > 0.95


def test_the_prior_is_the_clients_own_class_frequencies():
    """A head that knows nothing, and classes with 9, 1 and 0 samples: (9 + 0.5) / 11.5 for the first."""
    labels = torch.tensor([0, 0, 0, 0, 0, 0, 0, 0, 0, 1] * 3)
    head = 0.3 * drawn(30, 3)
    blend = Blend.fit({"method": head, "head": head}, labels, torch.tensor([9.0, 1.0, 0.0]))
    assert blend.prior is not None
    np.testing.assert_allclose(np.exp(blend.prior), [9.5 / 11.5, 1.5 / 11.5, 0.5 / 11.5])
    assert blend.weights["prior"] > 0.5
    even = {"method": torch.zeros(1, 3)}
    assert blend.scores(even).argmax(1).item() == 0
    assert blend.scores(even, prior=False).unique().numel() == 1


@pytest.mark.parametrize("count", [1, LEAST - 1])
def test_with_few_held_out_samples_the_own_rule_answers(count: int):
    said = {name: scores[:count] for name, scores in {**random_head(), "local_prototypes": near(LABELS)}.items()}
    blend = Blend.fit(said, LABELS[:count], COUNTS)
    assert blend.weights == {} and blend.held_out is said["method"]


def test_where_the_own_rule_makes_no_mistake_it_answers():
    said = {"method": near(LABELS, scale=0.01), "head": drawn(30, 3)}
    assert Blend.fit(said, LABELS, COUNTS).weights == {}


def test_without_validation_samples_the_own_rule_answers():
    client = toy.ready(0)
    found = examine(FedProto(), client, None).of("test")
    for field in ("samples", "hits", "answers", "certain"):
        assert torch.equal(getattr(found["blend"], field), getattr(found["method"], field))


@pytest.mark.parametrize("seed", range(5))
def test_weights_are_those_of_a_general_solver(seed: int):
    """scipy's bounded quasi-Newton method, on the same loss written out."""
    evidence = torch.randn(3, 20, 4, generator=torch.Generator().manual_seed(seed)).double().log_softmax(2).numpy()
    labels = (evidence[1] + 0.5 * evidence[0]).argmax(1)
    kept = np.ones((2, 20))
    kept[0, ::3] = 0

    def loss(weights: Any, row: int) -> float:
        blended = np.tensordot(weights, evidence, 1)
        ridge = RIDGE * np.square(weights - [1, 0, 0]).sum()
        return float((kept[row] * losses(blended, labels)).sum() + ridge)

    found, alone = fit_weights(evidence, labels, kept)
    assert (found >= 0).all() and (alone[:, 1:] == 0).all()
    for row in range(2):
        best = minimize(loss, [1, 0, 0], args=(row,), bounds=[(0, None)] * 3)
        assert loss(found[row], row) == pytest.approx(best.fun, abs=0.01)
        np.testing.assert_allclose(found[row], best.x, atol=0.05)
        best = minimize(lambda w, row=row: loss(np.array([w[0], 0, 0]), row), [1], bounds=[(0, None)])
        np.testing.assert_allclose(alone[row, 0], best.x[0], atol=0.05)


def test_a_gain_is_sure_above_one_standard_error():
    """Gains 1, 0, 0, 0: mean 1/4, standard error sqrt(1/4 / 4) = 1/4, which is not above; 1, 1, 0, 0 is."""
    kept = np.ones((1, 4))
    assert not surely_positive(np.array([1.0, 0, 0, 0]), kept).any()
    assert surely_positive(np.array([1.0, 1, 0, 0]), kept).all()
    assert not surely_positive(np.zeros(4), kept).any()


def test_no_validation_sample_is_answered_by_weights_that_have_seen_its_label():
    """Changing the label of one sample moves the scores of all folds but its own."""
    said = {**random_head(), "local_prototypes": near(LABELS) - 0.2 * drawn(30, 3, seed=6).abs()}
    position = torch.arange(30)
    swapped = LABELS.clone()
    swapped[[0, 1]] = swapped[[1, 0]]  # both are the first of their class, so that no other sample changes its fold
    plain, other = (Blend.fit(said, labels, COUNTS).held_out for labels in (LABELS, swapped))
    assert plain is not None and other is not None
    order = LABELS.argsort(stable=True)
    fold = torch.empty_like(LABELS)
    fold[order] = position % FOLDS
    assert fold[0] == fold[1]
    same = (plain == other).all(1)
    assert same[fold == fold[0]].all() and not same[fold != fold[0]].any()


def test_validation_scores_are_cross_validated_and_test_scores_are_not():
    client = trained()
    client.fit(lambda x, y: torch.nn.functional.cross_entropy(client.model(x), y))
    found = examine(Local(), client, None, answer="blend")
    for part in ("test", "validation"):
        by = found.of(part)
        assert torch.equal(by["method"].hits, by["blend"].hits) and len(by["method"]) == len(client.parts[part])


def test_other_rules_do_not_change_by_a_bit():
    client = trained(2)
    plain, by_blend = (examine(FedProto(), client, None, answer=answer).of("test") for answer in ("method", "blend"))
    for rule in ("head", "head_own", "local_prototypes", "blend"):
        assert torch.equal(plain[rule].certain, by_blend[rule].certain)
    assert torch.equal(by_blend["method"].certain, plain["blend"].certain)


def test_the_shared_test_set_is_answered_without_the_clients_own_prior():
    client = trained(2)
    found = shared_answers(Local(), client, None)
    blend = Blend.of(client, {**said_on(client, "validation")})
    assert blend.weights
    said = said_on(client, "shared_test")
    assert torch.equal(found["blend"], blend.scores(said, prior=False).softmax(1))
    assert not torch.equal(found["blend"], blend.scores(said).softmax(1))


def said_on(client: Client, part: str) -> dict[str, Tensor]:
    """What the classifier and the client's own prototypes say."""
    prototypes = client.prototypes()
    data: Samples = getattr(client, part)
    with torch.no_grad():
        head = torch.cat([client.model(x) for x, _ in client.batches(data)])
        features, _ = client.features(data)
    return {"method": head, "head": head, "local_prototypes": prototypes.scores(features)}


@pytest.mark.parametrize("answer", ["method", "blend"])
def test_every_engine_blends_alike(answer: str):
    def lines(engine: JobEngine) -> list[dict[str, Any]]:
        plan = FederationPlan(clients=toy.CLIENTS, rounds=2, evaluation=Evaluation(answer=answer))
        loop = Federation(FedProto(), engine, toy.server(), plan, test=Samples(toy.BLOBS, toy.TEST))
        found = [line for record in loop.run() for line in record.lines()]
        engine.close()
        for line in found:
            line.pop("cost", None)
        return found

    plan = toy.plan(FedProto(), toy.build_holding_out, answer=answer)
    inline = lines(Inline(plan))
    assert inline == lines(Processes(plan, Engine(workers=2)))
    last = [line for line in inline if line.get("kind") == "round"][-1]
    assert last["test"]["blend"] != last["test"]["global_prototypes"] and "blend" in last["shared"]
    if answer == "blend":
        assert (
            last["test"]["method"] == last["test"]["blend"]
            and last["validation"]["method"] == last["validation"]["blend"]
        )


SMALL = experiment_from_table(
    {
        "rounds": 2, "clients": 3, "method": "fedproto", "models": {"family": "tiny5", "dim": 16},
        "data": {"samples": 400, "split": {"validation": 0.2}}, "engine": {"name": "inline"},
    }
)  # fmt: skip


def test_a_run_predicts_by_the_rule_that_answers(tmp_path: Path):
    answering: Experiment = replace(SMALL, evaluation=Evaluation(answer="blend"))
    runs = [protea.Run(experiment, tmp_path / str(place)) for place, experiment in enumerate((SMALL, answering))]
    for run in runs:
        for _ in run:
            pass
    plain, blended = runs
    x = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    for client in range(3):
        assert torch.equal(plain.predict(x, client, rule="blend"), blended.predict(x, client))
        matrix, record = blended.client(client).confusion(), blended.records[-1].clients[client]
        assert int(matrix.trace()) == record.parts["test"].hits["method"] == record.parts["test"].hits["blend"]
    assert any(not torch.equal(plain.predict(x, client), blended.predict(x, client)) for client in range(3))
    assert plain.records[-1].test["blend"] == blended.records[-1].test["method"]
    assert blended.result.accuracy == blended.records[-1].test["blend"].weighted or blended.result.rounds != [2]
    assert blended.result.summary["made"]["rule"] == "blend" and plain.result.summary["made"]["rule"] == "method"
    assert torch.equal(protea.load(tmp_path / "1").predict(x, 0), blended.predict(x, 0))


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"evaluation": {"answer": "blnd"}}, r"there is no rule 'blnd'\.  Did you mean blend\?"),
        ({"method": "local", "evaluation": {"answer": "global_prototypes"}}, "and local has no global prototypes"),
        ({"method": "fedloo", "evaluation": {"answer": "global_prototypes"}}, "and fedloo has no global prototypes"),
        ({"method": "fedavg", "models": {"family": "cnn4"}, "evaluation": {"answer": "global_prototypes_own"}},
         "and fedavg has no global prototypes"),
        ({"evaluation": {"answer": "local_prototypes", "local_prototypes": False}}, "local_prototypes is false"),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_answer_is_refused_before_any_work(table: dict[str, Any], complaint: str):
    with pytest.raises(ConfigError, match=complaint):
        experiment_from_table(table)


class Silent(Method[Prototypes, Prototypes]):
    """A method that sends prototypes which lie in another space than the features."""

    def prototypes(self, down: Prototypes | None) -> Prototypes | None:
        return None


def test_a_rule_that_never_comes_is_named_once_it_should_be_there():
    down = Prototypes(torch.zeros(toy.CLASSES, toy.DIM), torch.ones(toy.CLASSES))
    first = examine(Silent(), toy.ready(0, round=1), None, answer="global_prototypes").of("test")
    assert torch.equal(first["method"].hits, first["head"].hits)
    with pytest.raises(ClientError, match=r"evaluation.answer is 'global_prototypes', which needs what this method"):
        examine(Silent(), toy.ready(0, round=2), down, answer="global_prototypes")
