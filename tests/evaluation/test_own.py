"""Rules and metrics of the user's own: by the very way that built-in rules go, and refused where they cannot be."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from torch import Tensor

from protea import Client
from protea.config.sections import Evaluation
from protea.core.errors import ClientError, ConfigError, PayloadError
from protea.core.message import to_bytes
from protea.core.payload import pack
from protea.core.prototypes import Prototypes
from protea.core.samples import Samples
from protea.evaluation.client_side import examine, shared_answers
from protea.evaluation.examination import Examination
from protea.evaluation.metrics import Metric
from protea.evaluation.rules import NAMES, Rule
from protea.evaluation.scores import MetricScore
from protea.evaluation.server_side import Judged, Together
from protea.methods.fedproto import FedProto


@dataclass(frozen=True)
class Loud:
    """The classifier's scores, ``factor`` times as high."""

    factor: float = 2.0

    def __call__(self, client: Client, x: Tensor, down: Any) -> Tensor:
        return self.factor * client.model(x)


@dataclass(frozen=True)
class TopTwo:
    """The share of samples whose class is among the two likeliest."""

    def __call__(self, probabilities: Tensor, labels: Tensor) -> float:
        return float((probabilities.topk(2).indices == labels.unsqueeze(1)).any(1).float().mean())


@dataclass(frozen=True)
class Nothing:
    def __call__(self, probabilities: Tensor, labels: Tensor) -> float:
        return float("nan")


def examined(client: Client, **own: Any) -> Examination:
    return examine(FedProto(), client, None, **own)


def judged(rules: Any = (), metrics: Any = (), clients: int = 4) -> Judged:
    found = Judged(toy.CLASSES, toy.DIM, rules, metrics)
    for id in range(clients):
        found.take(id, found.read(pack(examined(toy.ready(id), rules=rules, metrics=metrics))))
    return found


def test_they_are_what_the_protocols_ask_for():
    assert isinstance(Loud(), Rule) and isinstance(TopTwo(), Metric)


def test_an_own_rule_is_counted_like_a_built_in_one():
    found = judged(rules=[Loud()])
    scores = found.scores("test")
    assert list(scores) == ["method", "head", "head_own", "local_prototypes", "blend", "loud"]
    assert scores["loud"].weighted == scores["head"].weighted  # the largest score stays the largest
    assert scores["loud"].calibration != scores["head"].calibration
    hits = found.clients()[0].parts["test"].hits
    assert hits["loud"] == hits["head"]


def test_an_own_rule_answers_the_shared_test_set():
    client = toy.ready(0)
    together = Together(toy.BLOBS.y[toy.TEST], toy.CLASSES, [Loud()])
    together.take(0, together.read(shared_answers(FedProto(), client, None, rules=[Loud()])))
    assert together.scores()["loud"] == together.scores()["head"]
    with pytest.raises(PayloadError, match=r"by 'loud' in torch.float32 were not expected"):
        Together(toy.BLOBS.y[toy.TEST], toy.CLASSES).read(shared_answers(FedProto(), client, None, rules=[Loud()]))


def test_an_own_metric_is_computed_by_the_client_and_averaged_by_the_server():
    found = judged(metrics=[TopTwo()])
    values, counts = [], []
    for id in range(4):
        client = toy.ready(id)
        if not len(client.test):
            continue  # client 1 has nothing to test
        x, y = client.test.batch(torch.arange(len(client.test)))
        with torch.no_grad():
            values.append(TopTwo()(client.model(x).softmax(1), y))
        counts.append(len(y))
    weighted = sum(v * n for v, n in zip(values, counts, strict=True)) / sum(counts)
    assert found.metrics("test") == {
        "toptwo": MetricScore(pytest.approx(weighted), pytest.approx(sum(values) / len(values)))
    }
    assert found.metrics("validation") == {}  # nothing is held out
    assert found.clients()[0].parts["test"].metrics == {"toptwo": pytest.approx(values[0])}
    assert found.clients()[1].parts == {}


def test_metrics_are_numbers_of_validation_samples_too():
    client = toy.ready(0)
    client.validation = client.test
    found = examined(client, metrics=[TopTwo()])
    assert found.metrics["test"].tolist() == found.metrics["validation"].tolist()


def test_without_any_the_same_bytes_travel():
    client = toy.ready(0)
    named = pack(examined(client))
    assert not any(name.startswith("metrics") for name in named)
    assert to_bytes(named) == to_bytes(pack(examined(client, rules=(), metrics=())))
    assert judged().metrics("test") == {} and judged().clients()[0].parts["test"].metrics == {}


def test_metrics_that_are_not_finite_end_the_evaluation_with_a_word():
    with pytest.raises(ClientError, match=r"client 0, round 1, test samples: its metric 'nothing' is nan"):
        examined(toy.ready(0), metrics=[Nothing()])


@pytest.mark.parametrize(
    ("metrics", "complaint"),
    [
        ({}, "metrics of no samples arrived, answers of test ones; there are 1 metrics"),
        ({"test": torch.tensor([0.5, 0.5]).double()}, "(2,) metrics of torch.float64 on test samples arrived, not 1"),
        ({"test": torch.tensor([0.5])}, "(1,) metrics of torch.float32"),
        ({"test": torch.tensor([torch.nan]).double()}, "not finite"),
        ({"test": torch.ones(1).double(), "train": torch.ones(1).double()}, "metrics of test and train samples"),
    ],
)
def test_metrics_that_no_honest_client_sends_are_refused(metrics: dict[str, Tensor], complaint: str):
    honest = examined(toy.ready(0), metrics=[TopTwo()])
    server = Judged(toy.CLASSES, toy.DIM, metrics=[TopTwo()])
    server.read(pack(honest))
    with pytest.raises(PayloadError, match=re.escape(complaint)):
        server.read(pack(replace(honest, metrics=metrics)))
    with pytest.raises(PayloadError, match="there are 0 metrics"):
        Judged(toy.CLASSES, toy.DIM).read(pack(honest))  # which nobody asked for


def test_places_of_own_rules_are_known_to_those_who_have_them():
    found = examined(toy.ready(0), rules=[Loud()])
    assert found.rules.tolist()[-1] == len(NAMES)
    with pytest.raises(PayloadError, match=r"rules \[0, 1, 2, 5, 6, 7\] arrived; there are those from 0 to 6"):
        Judged(toy.CLASSES, toy.DIM).read(pack(found))


class Head(Loud):
    """Has the name of a built-in rule."""


@dataclass(frozen=True)
class Accuracy(TopTwo):
    """Has the name of a built-in measure."""


class Classes(Loud):
    """Its hits would stand where those by class do."""


@pytest.mark.parametrize(
    ("own", "complaint"),
    [
        ({"rules": (Loud(), Loud(3.0))}, "evaluation.rules: 'loud' is that of another one"),
        ({"rules": (Head(),)}, "evaluation.rules: 'head' is a name of Protea's own"),
        ({"rules": (Classes(),)}, "evaluation.rules: 'classes' is a name of Protea's own"),
        ({"metrics": (Accuracy(),)}, "evaluation.metrics: 'accuracy' is a name of Protea's own"),
        ({"metrics": (TopTwo(), TopTwo())}, "evaluation.metrics: 'toptwo' is that of another one"),
    ],
)
def test_two_of_one_name_are_refused_before_any_work(own: dict[str, Any], complaint: str):
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        Evaluation(**own)


def test_an_own_rule_may_use_what_the_server_sent():
    @dataclass(frozen=True)
    class Far:
        def __call__(self, client: Client, x: Tensor, down: Any) -> Tensor:
            return -down.scores(client.model.features(x)).masked_fill(~down.present, torch.inf)

    client = toy.ready(0)
    down = Prototypes(torch.randn(toy.CLASSES, toy.DIM), torch.ones(toy.CLASSES))
    found = examine(FedProto(), client, down, rules=[Far()])
    assert found.rules.tolist() == list(range(8)) and isinstance(client.train, Samples)


def test_the_example_in_the_docs():
    text = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    found: dict[str, Any] = {"__name__": __name__}
    exec(compile(script, "evaluation.md", "exec"), found)
    plan: Evaluation = found["evaluation"]
    result = judged(plan.rules, plan.metrics)
    assert result.scores("test")["tempered"].weighted == result.scores("test")["head"].weighted
    assert 0 < result.metrics("test")["toptwo"].weighted <= 1
