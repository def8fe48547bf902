"""Federations in which the server learns sums only: the same as without, on every engine, whoever is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import toy
from contract import Make, play, workers

from protea import Method, Prototypes, Upload, Weights
from protea.clients.plan import WorkerPlan
from protea.config.experiment import experiment_from_table
from protea.config.sections import Engine, Faults
from protea.core.errors import ConfigError
from protea.core.payload import pack, unpack
from protea.engines.inline import Inline
from protea.engines.processes.engine import Processes
from protea.federation.jobs import Job, JobEngine, JobKind, Reply, Watch, ignore
from protea.federation.loop import Federation, QuorumError
from protea.federation.plan import FederationPlan
from protea.filters.clip import Clip
from protea.filters.secure.state import Participants
from protea.filters.secure.sums import from_sums, to_sums
from protea.filters.secure.vouching import VOUCH, Voucher
from protea.filters.secure_sum import SecureSum, summing_methods
from protea.methods.feddistill import FedDistill
from protea.methods.fedl2g import FedL2G
from protea.methods.fedpagr import FedPAGR
from protea.methods.fedproto import FedProto
from protea.methods.fedsa import FedSA
from protea.methods.fedsaf import FedSAF
from protea.methods.lg_fedavg import LGFedAvg
from protea.methods.protonorm import ProtoNorm

FILTERS = (SecureSum(),)
METHODS: list[Method[Any, Any]] = [
    FedProto(),
    FedProto(average="count"),
    FedProto(average="literal"),
    FedPAGR(),
    ProtoNorm(),
    ProtoNorm(average="count"),
    FedSA(),
    FedSAF(),
    FedDistill(),
    FedL2G(),
    FedL2G(form="logits"),
    LGFedAvg(),
    LGFedAvg(average="uniform"),
]
name = lambda method: type(method).__name__.lower() + "-" + str(getattr(method, "average", getattr(method, "form", "")))  # noqa: E731


def summing(make: Make, plan: WorkerPlan, filters: tuple[Any, ...] = FILTERS) -> JobEngine:
    return make(toy.plan(plan.method, plan.builder, plan.seed, filters=filters))


def played(method: Method[Any, Any], make: Make = Inline, **options: Any) -> Any:
    return play(method, partial(summing, make), filters=FILTERS, fraction=1.0, **options)


# The same as without


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_one_upload_stands_for_all(method: Method[Any, Any]):
    worker, plain, secure = toy.worker(method), toy.started(method), toy.started(method)
    ups, sums = [], []
    for id in range(toy.CLIENTS):
        reply = worker.run(Job("train", 1, id, pack(method.broadcast(plain, id))))
        assert reply.error is None
        ups.append(Upload(id, unpack(method.up, reply.up), reply.samples))
        sums.append(to_sums(method.up, reply.up, method.needs.sums, reply.samples, reply.metrics["loss"]))
    total = {name: sum(each[name] for each in sums) for name in sums[0]}
    whole = from_sums(method.up, total, method.needs.sums, toy.CLIENTS)
    assert whole.samples == sum(up.samples for up in ups)
    with plain.rng.default("aggregate"):
        method.aggregate(plain, ups)
    with secure.rng.default("aggregate"):
        method.aggregate(secure, [Upload(-1, unpack(method.up, whole.mean), whole.samples, toy.CLIENTS)])
    wanted, found = (pack(method.broadcast(server, 0)) for server in (plain, secure))
    assert wanted.keys() == found.keys()
    for each in wanted:
        torch.testing.assert_close(found[each], wanted[each], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", [FedProto(), FedPAGR(), FedL2G(), LGFedAvg()], ids=name)
def test_rounds_are_those_of_plain_uploads_to_the_step(method: Method[Any, Any]):
    secure, plain = played(method, rounds=1), play(method, rounds=1, fraction=1.0)
    for name, values in plain["server"].items():
        torch.testing.assert_close(torch.tensor(secure["server"][name]), torch.tensor(values), atol=1e-5, rtol=1e-5)
    (one,), (other,) = ([line for line in each["records"] if line["kind"] == "round"] for each in (secure, plain))
    assert one["loss"] == pytest.approx(other["loss"], abs=1e-6)
    clients = [line for line in secure["records"] if line["kind"] == "client"]
    assert all(line.get("loss") is None for line in clients)  # the server knows only their mean
    sizes = [line["up"] for line in clients if "up" in line]
    assert one["bytes_up"] == sum(sizes) and len(set(sizes)) == 1  # no size tells which classes a client has


@pytest.mark.parametrize("method", [FedProto(), FedDistill()], ids=name)
def test_engines_agree_on_secure_sums_to_the_bit(method: Method[Any, Any]):
    assert played(method, workers(2)) == played(method)


def test_clip_may_come_first():
    filters = (Clip(norm=0.5), SecureSum(bits=32, step=2.0**-16))
    secure = play(FedProto(), partial(summing, Inline, filters=filters), filters=filters, fraction=1.0, rounds=1)
    plain = play(FedProto(), partial(summing, Inline, filters=filters[:1]), filters=filters[:1], fraction=1.0, rounds=1)
    name = "prototypes/vectors"
    found, wanted = torch.tensor(secure["server"][name]), torch.tensor(plain["server"][name])
    torch.testing.assert_close(found, wanted, atol=2.0**-16, rtol=0)


# Who is lost


class Losing(Inline):
    """Loses the clients that ``who`` names for each step, in so many attempts."""

    def __init__(self, plan: WorkerPlan, who: Callable[[JobKind, int], Sequence[int]]) -> None:
        super().__init__(plan)
        self.who, self.asked = who, list[JobKind]()

    def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
        self.asked.append(jobs[0].task)
        lost = self.who(jobs[0].task, self.asked.count("shares"))
        replies = super().map([job for job in jobs if job.client not in lost], watch)
        gone = [Reply(job.client, job.round, error="it is gone.", away=True) for job in jobs if job.client in lost]
        return sorted([*replies, *gone], key=lambda reply: reply.client)


def losing(who: Callable[[JobKind, int], Sequence[int]], **options: Any) -> tuple[Federation, Losing]:
    engine = Losing(toy.plan(FedProto(), seed=7, filters=FILTERS), who)
    plan = FederationPlan(clients=toy.CLIENTS, rounds=1, filters=FILTERS, **{"failures": "skip", **options})
    return Federation(FedProto(), engine, toy.server(), plan), engine


def test_the_sum_is_that_of_those_who_sent_something():
    loop, engine = losing(lambda task, attempt: [2] if task == "masked" else [])
    (record,) = loop.run()
    assert engine.asked[:4] == ["train", "shares", "masked", "unmask"] and list(record.failures) == [2]
    others, _ = losing(lambda task, attempt: [2])
    list(others.run())
    found, wanted = (each.server.memory["prototypes"].vectors for each in (loop, others))
    assert torch.equal(found, wanted)


def test_with_too_few_there_is_no_sum_and_the_round_has_failed():
    loop, engine = losing(lambda task, attempt: [0, 1] if task == "unmask" and attempt == 1 else [])
    with pytest.raises(QuorumError, match="secure_sum: 2 clients are left; 3 at least must be in a sum"):
        list(loop.run())
    assert engine.asked == ["train", "shares", "masked", "unmask", "keys"]
    may_pass, _ = losing(lambda task, attempt: [0, 1] if task == "unmask" else [], min_replies=0)
    (record,) = may_pass.run()
    assert sorted(record.failures) == [0, 1] and "prototypes" not in may_pass.server.memory


def test_a_round_below_the_threshold_is_begun_anew_with_fresh_keys_and_without_training():
    def fail_once(task: JobKind, attempt: int) -> list[int]:
        return [3] if task == "masked" and attempt == 1 else []

    filters = (SecureSum(threshold=0.8),)  # all four, or with three all three
    engine = Losing(toy.plan(FedProto(), seed=7, filters=filters), fail_once)
    plan = FederationPlan(clients=toy.CLIENTS, rounds=1, filters=filters, failures="skip")
    (record,) = Federation(FedProto(), engine, toy.server(), plan).run()
    assert engine.asked[:7] == ["train", "shares", "masked", "keys", "shares", "masked", "unmask"]
    assert list(record.failures) == [3] and record.accuracy is not None


class Signing(Voucher):
    """Signs whatever it is shown, and believes everybody."""

    def sign(self, client: int, others: Participants) -> bytes:
        return b"s" * VOUCH


class Failing(Inline):
    """Client 2 is there and cannot share its secrets."""

    def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
        return [
            Reply(each.client, each.round, error="no.") if (jobs[0].task, each.client) == ("shares", 2) else each
            for each in super().map(jobs, watch)
        ]


@pytest.mark.parametrize("voucher", [Voucher(), Signing()], ids=["plain", "signed"])
def test_one_client_that_fails_does_not_end_the_sum_of_the_others(voucher: Voucher):
    """Where all must sign, the next attempt is without it."""
    engine = Failing(toy.plan(FedProto(), seed=7, filters=FILTERS, voucher=voucher))
    plan = FederationPlan(clients=toy.CLIENTS, rounds=1, filters=FILTERS, failures="skip")
    loop = Federation(FedProto(), engine, toy.server(), plan)
    (record,) = loop.run()
    assert list(record.failures) == [2] and "prototypes" in loop.server.memory


def test_late_uploads_are_made_up_for():
    filters = (SecureSum(threshold=0.5),)
    engine = Inline(toy.plan(FedProto(), seed=7, filters=filters))
    faults = Faults(late=(0.0, 1.0, 0.0, 0.0))
    plan = FederationPlan(clients=toy.CLIENTS, rounds=2, filters=filters, faults=faults)
    records = list(Federation(FedProto(), engine, toy.server(), plan).run())
    assert [record.absent for record in records] == [{1: "late"}] * 2 and not records[1].failures


def test_a_killed_process_goes_on_in_the_middle_of_a_sum():
    here = played(FedProto(), rounds=2)

    class Killing(Processes):
        """A worker process is killed before the masked uploads of every round."""

        def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
            if jobs[0].task == "masked":
                self.pool[0].process.kill()
                self.pool[0].process.join()
            return super().map(jobs, watch)

    assert played(FedProto(), lambda plan: Killing(plan, Engine(workers=2)), rounds=2) == here


# What is refused before any work


def refused(filters: list[Any], complaint: str, **more: Any) -> None:
    with pytest.raises(ConfigError, match=complaint):
        experiment_from_table({"filters": filters, **more})


def test_methods_that_need_single_uploads_are_refused():
    assert summing_methods() == [
        "fedsaf", "fedpagr", "protonorm", "fedsa", "fedtsp", "fedproto", "feddistill", "fedl2g", "lg_fedavg"
    ]  # fmt: skip
    why = "fedtgp cannot run with the filter secure_sum: it uses single uploads, and secure_sum shows"
    refused(["secure_sum"], why, method="fedtgp")
    refused(["secure_sum"], "feddistill@paper cannot run with", method="feddistill@paper")
    for method in ("fedproto@paper", "fedsa@code", "protonorm@paper", "lg_fedavg@official"):
        experiment_from_table({"filters": ["secure_sum"], "method": method})


def test_what_makes_no_sense_beside_it_is_refused():
    refused(["quantize", "secure_sum"], "filters: quantize cannot work with secure_sum: at the server it needs single")
    refused(["secure_sum", "clip"], "secure_sum must be the last one: clip follows it")
    refused(["secure_sum", "secure_sum"], "secure_sum must be the last one|cannot work with secure_sum")
    refused(["secure_sum"], "secure_sum needs 3 clients in every round .* and 2 would take part", clients=2)
    refused(["secure_sum"], "secure_sum needs 3 clients in every round", fraction=0.2)
    refused(["secure_sum"], "and 1 would take part", alone=True)
    refused([{"name": "secure_sum", "least": 2}], r"filters\[0\].least = 2: input should be greater than or equal to 3")
    refused([{"name": "secure_sum", "threshold": 0.3}], r"filters\[0\].threshold = 0.3")
    refused([{"name": "secure_sum", "bits": 16}], r"filters\[0\].bits")
    refused([{"name": "secure_sum", "step": 0.0}], r"filters\[0\].step")


def test_numbers_that_do_not_fit_end_the_round_with_the_reason():
    filters = (SecureSum(bits=32, step=2.0**-30),)
    engine = Inline(toy.plan(FedProto(), seed=7, filters=filters))
    plan = FederationPlan(clients=toy.CLIENTS, rounds=1, filters=filters)
    with pytest.raises(QuorumError, match=r"client 0, round 1: .* holds .* which secure_sum cannot add up"):
        list(Federation(FedProto(), engine, toy.server(), plan).run())


def test_whole_numbers_cannot_be_added_up():
    counted = Weights({"steps": torch.tensor(3)})
    with pytest.raises(Exception, match=r"tensors.steps of an upload is of torch.int64"):
        to_sums(Weights, pack(counted), "samples", 3, 0.5)


def test_sums_by_hand():
    one = Prototypes(torch.tensor([[2.0], [1.0]]), torch.tensor([1.0, 4.0]))
    other = Prototypes(torch.tensor([[8.0], [0.0]]), torch.tensor([5.0, 0.0]))
    for by, vectors in (("uniform", [5.0, 1.0]), ("count", [7.0, 1.0]), ("literal", [3.5, 1.0])):
        sums = [to_sums(Prototypes, pack(each), by, 6, 0.5) for each in (one, other)]  # type: ignore[arg-type]
        total = {name: sums[0][name] + sums[1][name] for name in sums[0]}
        whole = from_sums(Prototypes, total, by, 2)  # type: ignore[arg-type]
        assert whole.mean["vectors"].squeeze(1).tolist() == vectors and whole.mean["counts"].tolist() == [6.0, 4.0]
        assert (whole.samples, whole.loss) == (12, 0.5)
