from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import toy

from protea import Client, Prototypes, Server, Upload
from protea.config.sections import Evaluation, Faults, Limits
from protea.core.errors import ClientError, ProteaError
from protea.core.payload import pack
from protea.core.samples import Samples
from protea.core.weights import Weights
from protea.engines.inline import Inline
from protea.engines.scripted import Scripted
from protea.evaluation.counts import Counts
from protea.evaluation.examination import Examination
from protea.federation.faults import draw_absences
from protea.federation.jobs import Job, Reply, Watch, ignore
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.federation.record import Record
from protea.methods.fedproto import FedProto
from protea.methods.lg_fedavg import LGFedAvg
from protea.methods.local import Local


def upload(job: Job) -> Prototypes:
    """Client i sends i for every class."""
    vectors = torch.full((toy.CLASSES, toy.DIM), float(job.client))
    return Prototypes(vectors, torch.ones(toy.CLASSES))


def examination(samples: int, *hits: int) -> Examination:
    """Of so many rules, on samples of class 0; whatever is wrong is answered by class 1."""
    scores = torch.zeros(len(hits), samples, toy.CLASSES)
    for own, right in zip(scores, hits, strict=True):
        own[:right, 0] = own[right:, 1] = 1.0
    tally = Counts.of(scores, torch.zeros(samples, dtype=torch.int64))
    return Examination(torch.arange(len(hits)), {"test": tally} if samples else {})


def test_a_round_goes_down_once_and_up_once():
    engine, server = Scripted(upload), toy.server()
    records = list(Federation(FedProto(), engine, server, FederationPlan(clients=3, rounds=2)).run())
    assert [(job.task, job.round, job.client) for job in engine.jobs if job.task == "train"] == [
        ("train", 1, 0), ("train", 1, 1), ("train", 1, 2), ("train", 2, 0), ("train", 2, 1), ("train", 2, 2),
    ]  # fmt: skip
    assert engine.jobs[0].down == {}  # nothing to say in the first round
    assert server.memory["prototypes"].vectors[0, 0].item() == 1.0  # the mean of 0, 1 and 2
    size = 4 * (toy.CLASSES * toy.DIM + toy.CLASSES)
    assert [(r.bytes_down, r.bytes_up) for r in records] == [(0, 3 * size), (3 * size, 3 * size)]
    assert [(r.total_down, r.total_up) for r in records] == [(0, 3 * size), (3 * size, 6 * size)]
    assert [
        (c.bytes.down, c.bytes.up, c.bytes.total_down, c.bytes.total_up) for c in records[1].clients if c.bytes
    ] == [(size, size, size, 2 * size)] * 3


def test_accuracy_is_weighted_by_samples_and_by_clients():
    """Hits 1 of 1 and 1 of 9: 2/10 of all samples, 5/9 as the mean of clients; a client without samples counts not."""
    found = (examination(1, 1, 0), examination(9, 1, 0), examination(0, 0, 0))
    engine = Scripted(upload, lambda job: found[job.client])
    (record,) = Federation(FedProto(), engine, toy.server(), FederationPlan(clients=3, rounds=1)).run()
    assert record.test["method"].weighted == pytest.approx(0.2) == record.accuracy
    assert record.test["method"].uniform == pytest.approx(5 / 9)
    assert record.test["head"].weighted == 0 and record.validation == {}


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5])])
def test_evaluation_is_due_every_so_often_and_at_the_end(every: int, expected: list[int]):
    worker = toy.worker(Local(), toy.build, seed=1)
    plan = Evaluation(every=every)
    records = Federation(
        Local(), Inline(worker), toy.server(), FederationPlan(clients=2, rounds=5, evaluation=plan)
    ).run()
    assert [record.round for record in records if record.accuracy is not None] == expected


def test_evaluated_before_training_the_first_record_is_of_the_initial_model():
    def accuracies(when: str) -> list[float | None]:
        worker = toy.worker(Local(), toy.build, seed=1)
        plan = Evaluation(when=when)  # type: ignore[arg-type]
        return [
            r.accuracy
            for r in Federation(
                Local(), Inline(worker), toy.server(), FederationPlan(clients=4, rounds=3, evaluation=plan)
            ).run()
        ]

    assert accuracies("before")[1:] == accuracies("after")[:-1]


def test_participants_are_drawn_per_round_and_never_twice():
    server = toy.server()
    drawn = []
    for server.round in range(1, 30):
        drawn.append(toy.choose(range(10), 0.3, server))
        assert len(drawn[-1]) == 3 == len(set(drawn[-1])) and drawn[-1] == sorted(drawn[-1])
    assert len({tuple(d) for d in drawn}) > 15
    assert (
        toy.choose(range(10), 0.01, server) == toy.choose(range(10), 0.01, server)
        and len(toy.choose(range(10), 0.01, server)) == 1
    )


def fails(job: Job) -> Reply | Prototypes:
    return Reply(job.client, job.round, error=f"client {job.client}: out of memory") if job.client == 1 else upload(job)


def test_a_failing_client_stops_the_run_or_is_skipped():
    with pytest.raises(ClientError, match="client 1: out of memory"):
        list(Federation(FedProto(), Scripted(fails), toy.server(), FederationPlan(clients=3, rounds=1)).run())
    server = toy.server()
    (record,) = Federation(
        FedProto(), Scripted(fails), server, FederationPlan(clients=3, rounds=1, failures="skip")
    ).run()
    assert record.failures == {1: "client 1: out of memory"}
    assert server.memory["prototypes"].vectors[0, 0].item() == 1.0  # the mean of 0 and 2
    with pytest.raises(ClientError, match=r"2 usable replies came, 3 are needed"):
        list(
            Federation(
                FedProto(),
                Scripted(fails),
                toy.server(),
                FederationPlan(clients=3, rounds=1, failures="skip", min_replies=3),
            ).run()
        )


def test_a_client_that_fails_in_evaluation_is_on_record_too():
    def judge(job: Job) -> Reply | Examination:
        if job.client == 1:
            return Reply(1, job.round, error="client 1: no test data")
        return examination(4, 3)

    engine = Scripted(upload, judge)
    (record,) = Federation(FedProto(), engine, toy.server(), FederationPlan(clients=3, rounds=1, failures="skip")).run()
    assert record.failures == {1: "client 1: no test data"} and record.accuracy == 0.75
    assert [each.client for each in record.clients if each.accuracy is not None] == [0, 2]
    with pytest.raises(ClientError, match="no test data"):
        list(Federation(FedProto(), engine, toy.server(), FederationPlan(clients=3, rounds=1)).run())


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (Prototypes(torch.full((toy.CLASSES, toy.DIM), torch.nan), torch.ones(toy.CLASSES)), "not finite"),
        (Prototypes(torch.zeros(toy.CLASSES, 3), torch.ones(toy.CLASSES)), "in 16 dimensions"),
        (Prototypes(torch.ones(toy.CLASSES, toy.DIM).double(), torch.ones(toy.CLASSES)), "not of float32"),
        (Reply(1, 1, pack(upload(Job("train", 1, 1))), samples=0), "at least one is needed"),
        (None, "nothing arrived"),
        (Reply(1, 1, up={"code": torch.ones(1)}), "hold vectors and counts"),
    ],
)
def test_what_is_not_as_declared_never_reaches_the_server(bad: Prototypes | Reply | None, complaint: str):
    engine, server = Scripted(lambda job: bad if job.client == 1 else upload(job)), toy.server()
    (record,) = Federation(FedProto(), engine, server, FederationPlan(clients=3, rounds=1, failures="skip")).run()
    assert complaint in record.failures[1] and record.failures[1].startswith("client 1, round 1:")
    assert server.memory["prototypes"].vectors[0, 0].item() == 1.0


def test_an_upload_where_nothing_is_to_be_sent_is_refused():
    engine = Scripted(lambda job: upload(job) if job.client == 1 else None)
    (record,) = Federation(Local(), engine, toy.server(), FederationPlan(clients=3, rounds=1, failures="skip")).run()
    assert "nothing was expected; counts, vectors arrived" in record.failures[1]


def test_replies_that_are_not_the_one_to_a_job_are_refused():
    """Client 1 answers in the name of client 0, client 2 answers of the round before, nothing was asked of client 9."""

    class Odd(Scripted):
        def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
            replies = super().map(jobs, watch)
            if jobs[0].task != "train":
                return replies
            changes: dict[int, dict[str, int]] = {1: {"client": 0}, 2: {"round": 0}}
            return [*(replace(r, **changes.get(r.client, {})) for r in replies), replace(replies[3], client=9)]

    server = toy.server()
    (record,) = Federation(FedProto(), Odd(upload), server, FederationPlan(clients=4, rounds=1, failures="skip")).run()
    assert record.failures == {
        0: "client 0, round 1: 2 replies arrived to one job.",
        1: "client 1, round 1: it did not answer.",
        2: "client 2, round 1: its reply is of round 0.",
    }
    assert record.refused == [0, 2] and server.memory["prototypes"].vectors[0, 0].item() == 3.0  # of client 3 alone
    with pytest.raises(ClientError, match="client 0, round 1: 2 replies arrived"):
        list(Federation(FedProto(), Odd(upload), toy.server(), FederationPlan(clients=4, rounds=1)).run())


def test_how_often_is_evaluated_does_not_change_what_is_learned():
    class Peeks(Local):
        """Looks at its features before it trains; BatchNorm must not learn from that."""

        def local_update(self, client, down):
            for x, _ in client.batches():
                client.model.features(x)
            super().local_update(client, down)

    def models(every: int) -> dict[str, torch.Tensor]:
        worker = toy.worker(Peeks(), toy.build, seed=1)
        plan = Evaluation(every=every)
        list(
            Federation(
                Peeks(), Inline(worker), toy.server(), FederationPlan(clients=toy.CLIENTS, rounds=3, evaluation=plan)
            ).run()
        )
        return {f"{i}/{k}": t for i, c in worker.clients.items() for k, t in c.model.state_dict().items()}

    often, seldom = models(1), models(3)
    assert all(torch.equal(often[name], seldom[name]) for name in often)


def test_an_error_in_a_client_hook_is_reported_with_its_place():
    class Broken(Local):
        def local_update(self, client, down):
            raise RuntimeError("no luck")

    worker = toy.worker(Broken(), toy.build, seed=1)
    with pytest.raises(ClientError, match=r"(?s)client 0, round 1.*local_update.*no luck"):
        list(Federation(Broken(), Inline(worker), toy.server(), FederationPlan(clients=1, rounds=1)).run())


def test_records_come_back_from_their_lines():
    worker = toy.worker(FedProto(), toy.build, seed=1)
    records = list(Federation(FedProto(), Inline(worker), toy.server(), FederationPlan(clients=3, rounds=2)).run())
    assert Record.read([line for record in records for line in record.lines()]) == records


# Clients that stay away, come late, or send what is refused


def test_who_drops_out_does_not_train_and_who_is_late_is_not_heard():
    engine, server = Scripted(upload), toy.server()
    faults = Faults(dropout=(0.0, 1.0, 0.0), late=(0.0, 0.0, 1.0))
    (record,) = Federation(FedProto(), engine, server, FederationPlan(clients=3, rounds=1, faults=faults)).run()
    assert [job.client for job in engine.jobs if job.task == "train"] == [0, 2]
    assert server.memory["prototypes"].vectors[0, 0].item() == 0.0  # of client 0 alone
    assert record.absent == {1: "dropped out", 2: "late"} and record.failures == {} and record.refused == []
    assert record.participants == [0, 1, 2]


def test_faults_are_drawn_anew_each_round_and_alike_whoever_takes_part():
    server = toy.server()
    faults = Faults(dropout=0.3, late=0.5)
    found = []
    for server.round in range(1, 401):
        rng = server.rng.at("round", server.round)
        found.append(draw_absences(faults, range(4), 4, rng))
        assert draw_absences(faults, [2], 4, rng) == {c: why for c, why in found[-1].items() if c == 2}
    shares = [[why for away in found if (why := away.get(c))] for c in range(4)]
    for own in shares:  # 400 draws: three deviations are 0.07
        assert own.count("dropped out") / 400 == pytest.approx(0.3, abs=0.07)
        assert own.count("late") / 400 == pytest.approx(0.7 * 0.5, abs=0.07)
    assert shares[0] != shares[1]


def test_a_round_without_any_reply_passes_or_ends_the_run():
    server, everybody = toy.server(), Faults(dropout=1.0)
    with pytest.raises(ClientError, match=r"0 usable replies came, 1 are needed \(min_replies.*client 0 dropped out"):
        list(
            Federation(
                FedProto(), Scripted(upload), server, FederationPlan(clients=2, rounds=1, faults=everybody)
            ).run()
        )
    server = toy.server()
    (record,) = Federation(
        FedProto(), Scripted(upload), server, FederationPlan(clients=2, rounds=1, faults=everybody, min_replies=0)
    ).run()
    assert "prototypes" not in server.memory and record.loss is None and record.bytes_up == 0


def test_a_client_that_is_refused_three_times_in_a_row_is_asked_no_more():
    """It is refused in rounds 1, 3, 4 and 5, and good in 2; what is good starts the count anew."""

    def script(job: Job) -> Prototypes:
        good = upload(job)
        bad = job.client == 1 and job.round != 2
        return Prototypes(good.vectors * torch.nan, good.counts) if bad else good

    engine = Scripted(script)
    loop = Federation(FedProto(), engine, toy.server(), FederationPlan(clients=2, rounds=7, failures="skip"))
    records = list(loop.run())
    assert [record.refused for record in records] == [[1], [], [1], [1], [1], [], []]
    assert [record.absent for record in records] == [{}] * 5 + [{1: "quarantined"}] * 2
    assert [job.round for job in engine.jobs if job.task == "train" and job.client == 1] == [1, 2, 3, 4, 5]
    again = Federation(FedProto(), Scripted(script), toy.server(), FederationPlan(clients=2, rounds=7, failures="skip"))
    again.recall(Record.read([line for record in records[:4] for line in record.lines()]))
    assert again.ledger.refusals[1] == 2 and again.ledger.up[1] == records[3].clients[1].bytes.total_up
    for never in Federation(
        FedProto(),
        Scripted(script),
        toy.server(),
        FederationPlan(clients=2, rounds=7, failures="skip", limits=Limits(quarantine=0)),
    ).run():
        assert never.absent == {}


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [
        (Limits(upload="100B"), "408 bytes arrived; limits.upload is 100B"),
        (Limits(norm=3.0), r"'vectors' has a row of norm 4; at most 3 is accepted \(limits.norm\)"),
    ],
)
def test_what_is_too_large_is_refused(limits: Limits, complaint: str):
    engine = Scripted(upload)  # client 1 sends ones, of which 16 have the norm 4
    with pytest.raises(ClientError, match=f"client [01], round 1: {complaint}"):
        list(Federation(FedProto(), engine, toy.server(), FederationPlan(clients=2, rounds=1, limits=limits)).run())


def test_a_server_step_that_is_not_finite_ends_the_run_with_its_place():
    class Explodes(FedProto):
        def aggregate(self, server: Server, uploads: Sequence[Upload[Prototypes]]) -> None:
            super().aggregate(server, uploads)
            known = server.memory["prototypes"]
            server.memory["prototypes"] = Prototypes(known.vectors / 0, known.counts)

    with pytest.raises(ProteaError, match="server, round 1: prototypes/vectors holds nan or inf after aggregate"):
        list(Federation(Explodes(), Scripted(upload), toy.server(), FederationPlan(clients=2, rounds=1)).run())


# What clients hold


def test_a_client_that_fails_is_as_it_was_before():
    class Falls(FedProto):
        def local_update(self, client: Client, down: Prototypes | None) -> Prototypes:
            found = super().local_update(client, down)
            client.memory["note"] = torch.ones(1)
            if client.round == 2:
                raise RuntimeError("it fell")
            return found

    worker = toy.worker(Falls(), toy.build, seed=1, careful=True)
    assert worker.run(Job("train", 1, 0)).error is None
    before = {name: tensor.clone() for name, tensor in worker.client(0).model.state_dict().items()}
    worker.client(0).memory["note"] = torch.zeros(1)
    assert "it fell" in str(worker.run(Job("train", 2, 0)).error)
    after = worker.client(0).model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before) and worker.client(0).memory["note"] == 0


def test_clients_that_are_sent_the_same_share_one_copy_of_it():
    engine = Scripted(upload)
    list(Federation(FedProto(), engine, toy.server(), FederationPlan(clients=3, rounds=2)).run())
    second = [job.down for job in engine.jobs if job.round == 2 and job.task == "train"]
    assert second[0] is second[1] is second[2] and second[0]


def test_replies_are_taken_in_the_order_of_clients_whenever_they_come():
    class Backwards(Inline):
        def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
            replies = super().map(jobs)
            for reply in reversed(replies):
                watch(reply)
            return replies

    def found(kind: type[Inline]) -> list[object]:
        engine = kind(toy.worker(FedProto(), toy.build, seed=1))
        plan, test = Evaluation(shared=1), Samples(toy.BLOBS, toy.TEST)
        loop = Federation(
            FedProto(), engine, toy.server(), FederationPlan(clients=toy.CLIENTS, rounds=3, evaluation=plan), test=test
        )
        return [(record.test, record.shared, record.clients) for record in loop.run()]

    assert found(Inline) == found(Backwards)


def test_what_a_client_does_with_what_it_was_sent_is_its_own_affair():
    class Rough(LGFedAvg):
        def local_update(self, client: Client, down: Weights | None) -> Weights:
            for tensor in () if down is None else down.tensors.values():
                assert tensor.abs().sum() > 0
                tensor.zero_()
            return super().local_update(client, None)

    list(
        Federation(
            Rough(),
            Inline(toy.worker(Rough(), toy.build, seed=1)),
            toy.server(),
            FederationPlan(clients=toy.CLIENTS, rounds=3),
        ).run()
    )
