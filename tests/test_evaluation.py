from __future__ import annotations

import pytest
import torch
import toy
from torch.nn import functional as F

from protea import Prototypes
from protea.data.samples import Samples
from protea.engines import Job, Reply
from protea.engines.inline import Inline
from protea.engines.scripted import Scripted
from protea.evaluation import Evaluation, Shared, Together, probabilities
from protea.federation import Federation
from protea.methods.fedproto import FedProto
from protea.methods.local import Local
from protea.worker import Worker

TEST = Samples(toy.BLOBS, toy.TEST)


def run(**settings: object) -> Federation:
    worker = Worker(FedProto(), toy.build, seed=1)
    plan = Evaluation(**settings)  # type: ignore[arg-type]
    return Federation(FedProto(), Inline(worker), toy.server(), toy.CLIENTS, 4, evaluation=plan, test=TEST)


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
    together = Together(labels)
    for client, chances in said.items():
        together.add(Reply(client, {"head": chances}))
    assert together.scores() == {"head": Shared(ensemble=1.0, clients=pytest.approx((0.5 + 0.0 + 1.0) / 3))}
    assert together.alone == {0: {"head": 0.5}, 1: {"head": 0.0}, 2: {"head": 1.0}}


def test_a_rule_that_some_clients_lack_has_no_ensemble():
    together = Together(torch.tensor([0]))
    together.add(Reply(0, {"head": torch.tensor([[1.0, 0.0]]), "method": torch.tensor([[1.0, 0.0]])}))
    together.add(Reply(1, {"head": torch.tensor([[1.0, 0.0]])}))
    assert set(together.scores()) == {"head"}


def test_clients_answer_the_shared_test_set_by_every_rule():
    federation = run()
    *_, record = federation.run()
    assert set(record.shared) == {"method", "head", "global_prototypes", "global_prototypes_own"}
    worker = federation.engine.worker  # type: ignore[attr-defined]
    x, y = TEST.batch(torch.arange(len(TEST)))
    with torch.no_grad():
        heads = torch.stack([F.softmax(worker.clients[i].model.eval()(x), 1) for i in range(toy.CLIENTS)])
    assert record.shared["head"].ensemble == float((heads.mean(0).argmax(1) == y).double().mean())
    each = (heads.argmax(2) == y).double().mean(1)
    assert [client["shared/head"] for client in record.clients] == each.tolist()
    assert record.shared["head"].clients == pytest.approx(float(each.mean()))


def test_a_client_without_any_score_leaves_the_decision_to_others():
    scores = torch.tensor([[-torch.inf, -torch.inf], [-torch.inf, 2.0]])
    assert probabilities(scores).tolist() == [[0.5, 0.5], [0.0, 1.0]]


def test_a_client_that_cannot_answer_is_left_out_and_on_record():
    def script(job: Job) -> Reply | Prototypes:
        if job.task == "train":
            return Prototypes(torch.ones(toy.CLASSES, toy.DIM), torch.ones(toy.CLASSES))
        if job.task == "answer" and job.client == 1:
            return Reply(1, error="out of memory")
        return Reply(job.client, {"head": F.one_hot(TEST.y, toy.CLASSES).float()} if job.task == "answer" else {})

    loop = Federation(FedProto(), Scripted(script), toy.server(), clients=3, rounds=1, failures="skip", test=TEST)
    (record,) = loop.run()
    assert record.failures == {1: "out of memory"}
    assert record.shared == {"head": Shared(1.0, 1.0)}


def test_many_clients_are_asked_in_groups(monkeypatch: pytest.MonkeyPatch):
    whole = [record.shared for record in run(shared=1).run()]
    monkeypatch.setattr("protea.federation.GROUP", 3)
    assert [record.shared for record in run(shared=1).run()] == whole


def test_a_server_without_a_model_has_no_accuracy():
    worker = Worker(Local(), toy.build, seed=1)
    (record,) = Federation(Local(), Inline(worker), toy.server(), toy.CLIENTS, 1, test=TEST).run()
    assert record.server == {}
