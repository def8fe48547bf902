from __future__ import annotations

import pytest
import torch
import toy

from protea import Prototypes
from protea.engines import Job, Reply
from protea.engines.inline import Inline
from protea.engines.scripted import Scripted
from protea.errors import ClientError, PayloadError
from protea.evaluation import Evaluation
from protea.evaluation.examine import Examination
from protea.evaluation.tally import Tally
from protea.federation import Federation, choose
from protea.methods.fedproto import FedProto
from protea.methods.local import Local
from protea.payload import pack
from protea.record import Record
from protea.worker import Worker


def upload(job: Job) -> Prototypes:
    """Client i sends i for every class."""
    vectors = torch.full((toy.CLASSES, toy.DIM), float(job.client))
    return Prototypes(vectors, torch.ones(toy.CLASSES))


def tally(samples: int, hits: int) -> Tally:
    """All of class 0, and whatever is wrong is answered by class 1."""
    scores = torch.zeros(samples, toy.CLASSES)
    scores[:hits, 0] = scores[hits:, 1] = 1.0
    return Tally.of(scores, torch.zeros(samples, dtype=torch.int64))


def test_a_round_goes_down_once_and_up_once():
    engine, server = Scripted(upload), toy.server()
    records = list(Federation(FedProto(), engine, server, clients=3, rounds=2).run())
    assert [(job.task, job.round, job.client) for job in engine.jobs if job.task == "train"] == [
        ("train", 1, 0), ("train", 1, 1), ("train", 1, 2), ("train", 2, 0), ("train", 2, 1), ("train", 2, 2),
    ]  # fmt: skip
    assert engine.jobs[0].down == {}  # nothing to say in the first round
    assert server.memory["prototypes"].vectors[0, 0].item() == 1.0  # the mean of 0, 1 and 2
    size = 4 * (toy.CLASSES * toy.DIM + toy.CLASSES)
    assert [(r.bytes_down, r.bytes_up) for r in records] == [(0, 3 * size), (3 * size, 3 * size)]
    assert [(r.total_down, r.total_up) for r in records] == [(0, 3 * size), (3 * size, 6 * size)]
    assert [(c["down"], c["up"], c["total_down"], c["total_up"]) for c in records[1].clients] == [
        (size, size, size, 2 * size)
    ] * 3


def test_accuracy_is_weighted_by_samples_and_by_clients():
    """Hits 1 of 1 and 1 of 9: 2/10 of all samples, 5/9 as the mean of clients; a client without samples counts not."""
    found = {
        0: {"test/method": tally(1, 1), "test/head": tally(1, 0)},
        1: {"test/method": tally(9, 1), "test/head": tally(9, 0)},
        2: {},
    }

    engine = Scripted(upload, lambda job: Examination(found[job.client]))

    (record,) = Federation(FedProto(), engine, toy.server(), clients=3, rounds=1).run()
    assert record.test["method"].weighted == pytest.approx(0.2) == record.accuracy
    assert record.test["method"].uniform == pytest.approx(5 / 9)
    assert record.test["head"].weighted == 0 and record.validation == {}


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5])])
def test_evaluation_is_due_every_so_often_and_at_the_end(every: int, expected: list[int]):
    worker = Worker(Local(), toy.build, seed=1)
    plan = Evaluation(every=every)
    records = Federation(Local(), Inline(worker), toy.server(), clients=2, rounds=5, evaluation=plan).run()
    assert [record.round for record in records if record.accuracy is not None] == expected


def test_evaluated_before_training_the_first_record_is_of_the_initial_model():
    def accuracies(when: str) -> list[float | None]:
        worker = Worker(Local(), toy.build, seed=1)
        plan = Evaluation(when=when)  # type: ignore[arg-type]
        return [r.accuracy for r in Federation(Local(), Inline(worker), toy.server(), 4, 3, evaluation=plan).run()]

    assert accuracies("before")[1:] == accuracies("after")[:-1]


def test_participants_are_drawn_per_round_and_never_twice():
    server = toy.server()
    drawn = []
    for server.round in range(1, 30):
        drawn.append(choose(10, 0.3, server))
        assert len(drawn[-1]) == 3 == len(set(drawn[-1])) and drawn[-1] == sorted(drawn[-1])
    assert len({tuple(d) for d in drawn}) > 15
    assert choose(10, 0.01, server) == choose(10, 0.01, server) and len(choose(10, 0.01, server)) == 1


def fails(job: Job) -> Reply | Prototypes:
    return Reply(job.client, error=f"client {job.client}: out of memory") if job.client == 1 else upload(job)


def test_a_failing_client_stops_the_run_or_is_skipped():
    with pytest.raises(ClientError, match="client 1: out of memory"):
        list(Federation(FedProto(), Scripted(fails), toy.server(), clients=3, rounds=1).run())
    server = toy.server()
    (record,) = Federation(FedProto(), Scripted(fails), server, clients=3, rounds=1, failures="skip").run()
    assert record.failures == {1: "client 1: out of memory"}
    assert server.memory["prototypes"].vectors[0, 0].item() == 1.0  # the mean of 0 and 2
    with pytest.raises(ClientError, match=r"2 of 3 clients replied, 3 are needed"):
        list(Federation(FedProto(), Scripted(fails), toy.server(), 3, 1, failures="skip", min_replies=3).run())


def test_a_client_that_fails_in_evaluation_is_on_record_too():
    def judge(job: Job) -> Reply | Examination:
        if job.client == 1:
            return Reply(1, error="client 1: no test data")
        return Examination({"test/method": tally(4, 3)})

    engine = Scripted(upload, judge)
    (record,) = Federation(FedProto(), engine, toy.server(), clients=3, rounds=1, failures="skip").run()
    assert record.failures == {1: "client 1: no test data"} and record.accuracy == 0.75
    assert [line["client"] for line in record.clients if "test/method" in line] == [0, 2]
    with pytest.raises(ClientError, match="no test data"):
        list(Federation(FedProto(), engine, toy.server(), clients=3, rounds=1).run())


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (Prototypes(torch.full((toy.CLASSES, toy.DIM), torch.nan), torch.ones(toy.CLASSES)), "not finite"),
        (Prototypes(torch.zeros(toy.CLASSES, 3), torch.ones(toy.CLASSES)), "in 16 dimensions"),
        (Prototypes(torch.ones(toy.CLASSES, toy.DIM).double(), torch.ones(toy.CLASSES)), "not of float32"),
        (Reply(1, pack(upload(Job("train", 1, 1))), samples=0), "at least one is needed"),
        (None, "nothing arrived"),
        (Reply(1, up={"code": torch.ones(1)}), "hold vectors and counts"),
    ],
)
def test_what_is_not_as_declared_never_reaches_the_server(bad: Prototypes | Reply | None, complaint: str):
    engine, server = Scripted(lambda job: bad if job.client == 1 else upload(job)), toy.server()
    (record,) = Federation(FedProto(), engine, server, clients=3, rounds=1, failures="skip").run()
    assert complaint in record.failures[1] and record.failures[1].startswith("client 1, round 1:")
    assert server.memory["prototypes"].vectors[0, 0].item() == 1.0


def test_an_upload_where_nothing_is_to_be_sent_is_refused():
    engine = Scripted(lambda job: upload(job) if job.client == 1 else None)
    (record,) = Federation(Local(), engine, toy.server(), clients=3, rounds=1, failures="skip").run()
    assert "nothing was expected; counts, vectors arrived" in record.failures[1]


def test_a_reply_in_the_name_of_another_client_ends_the_run():
    engine = Scripted(lambda job: Reply(0, pack(upload(job)), samples=1))
    with pytest.raises(PayloadError, match=r"Replies of clients \[0, 0\] arrived; \[0, 1\] were asked"):
        list(Federation(FedProto(), engine, toy.server(), clients=2, rounds=1, failures="skip").run())


def test_how_often_is_evaluated_does_not_change_what_is_learned():
    class Peeks(Local):
        """Looks at its features before it trains; BatchNorm must not learn from that."""

        def local_update(self, client, down):
            for x, _ in client.batches():
                client.model.features(x)
            super().local_update(client, down)

    def models(every: int) -> dict[str, torch.Tensor]:
        worker = Worker(Peeks(), toy.build, seed=1)
        plan = Evaluation(every=every)
        list(Federation(Peeks(), Inline(worker), toy.server(), toy.CLIENTS, 3, evaluation=plan).run())
        return {f"{i}/{k}": t for i, c in worker.clients.items() for k, t in c.model.state_dict().items()}

    often, seldom = models(1), models(3)
    assert all(torch.equal(often[name], seldom[name]) for name in often)


def test_an_error_in_a_client_hook_is_reported_with_its_place():
    class Broken(Local):
        def local_update(self, client, down):
            raise RuntimeError("no luck")

    worker = Worker(Broken(), toy.build, seed=1)
    with pytest.raises(ClientError, match=r"(?s)client 0, round 1.*local_update.*no luck"):
        list(Federation(Broken(), Inline(worker), toy.server(), clients=1, rounds=1).run())


def test_records_come_back_from_their_lines():
    worker = Worker(FedProto(), toy.build, seed=1)
    records = list(Federation(FedProto(), Inline(worker), toy.server(), clients=3, rounds=2).run())
    assert Record.read([line for record in records for line in record.lines()]) == records
