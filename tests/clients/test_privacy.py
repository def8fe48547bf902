"""Where a formal guarantee is claimed, where it is not, what it costs, and when a client stops."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
import wanted
from contract import left
from torch import nn

from protea import Client, Method, Prototypes, Run, SplitModel
from protea.clients.durable import DurableWorker
from protea.clients.privacy import RELEASED, declared, frozen_features, why_not
from protea.config.experiment import Experiment, experiment_from_table
from protea.core.accounting import Budget, gaussian_epsilon
from protea.core.errors import PrivacyError
from protea.core.ledger import history_of
from protea.core.private_sgd import PrivateTraining
from protea.core.rng import Streams
from protea.core.training import Training
from protea.engines.inline import Inline
from protea.engines.messages import job_to_bytes, reply_to_bytes
from protea.federation.jobs import Job
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.federation.privacy import NO_GUARANTEE, REASONS, Privacy, in_words, worst
from protea.federation.protect import Protect
from protea.federation.record import Record
from protea.filters.clip import Clip
from protea.filters.noise import Noise
from protea.filters.quantize import Quantize
from protea.methods.fedavg import FedAvg
from protea.methods.fedgh import FedGH
from protea.methods.fedloo import FedLOO
from protea.methods.fedorgp import FedORGP
from protea.methods.fedpagr import FedPAGR
from protea.methods.fedproto import FedProto
from protea.methods.fedsaf import FedSAF
from protea.methods.fedtgp import FedTGP
from protea.methods.local import Local
from protea.methods.protonorm import ProtoNorm
from protea.report.content import content
from protea.runs.reader import RunReader

NOISE = Noise(clip=2.0, noise=0.5, least=1.0)


def model(frozen: bool = True, extra: nn.Module | None = None) -> SplitModel:
    body = nn.Sequential(nn.Linear(8, toy.DIM), extra or nn.ReLU())
    body.requires_grad_(not frozen)
    return SplitModel(body, nn.Identity(), nn.Linear(toy.DIM, toy.CLASSES))


def build_frozen(id: int, streams: Streams, **options: Any) -> Client:
    """A client whose features are those of a body that never trains."""
    client = toy.build(id, streams, **options)
    with streams.default("model"):
        client.model = model()
    return client


@dataclass(frozen=True)
class Louder(FedProto):
    """A method of somebody's own, which sends more than its parent declares."""

    def local_update(self, client: Client, down: Prototypes | None) -> Prototypes:
        found = super().local_update(client, down)
        return Prototypes(100 * found.vectors, found.counts)


def test_features_are_frozen_only_if_nothing_before_the_head_trains_or_counts() -> None:
    assert frozen_features(model())
    assert not frozen_features(model(frozen=False))
    assert frozen_features(model(extra=nn.BatchNorm1d(toy.DIM)))  # with weights, which are frozen
    assert not frozen_features(model(extra=nn.BatchNorm1d(toy.DIM, affine=False)))
    linear = model()
    linear.adapter = nn.Linear(toy.DIM, toy.DIM)
    assert not frozen_features(linear)


@pytest.mark.parametrize(
    ("method", "frozen", "filters", "private", "reason"),
    [
        (FedProto(), True, (NOISE,), False, 0),
        (FedProto(), True, (NOISE, Quantize()), False, 0),
        (FedProto(), False, (NOISE,), True, 0),
        (FedTGP(), True, (NOISE,), False, 0),
        (FedGH(), True, (NOISE,), False, 0),
        (FedORGP(), True, (NOISE,), False, 0),
        (FedSAF(), False, (NOISE,), True, 0),
        (ProtoNorm(), True, (NOISE,), False, 0),
        (Protect(FedProto()), True, (NOISE,), False, 0),
        (FedLOO(parts=1, least=1), False, (NOISE,), False, 0),
        (FedAvg(), False, (), True, 0),
        (Local(), False, (), False, 0),
        (FedProto(taken="during"), True, (NOISE,), False, 1),
        (FedLOO(), False, (NOISE,), False, 1),
        (FedPAGR(), True, (NOISE,), False, 1),
        (Louder(), True, (NOISE,), False, 1),
        (FedProto(), True, (), True, 2),
        (FedProto(), False, (NOISE,), False, 3),
        (FedAvg(), True, (), False, 4),
        (FedProto(), True, (Clip(1.0), NOISE), False, 5),
    ],
)
def test_a_guarantee_is_claimed_only_where_it_holds(
    method: Method[Any, Any], frozen: bool, filters: tuple[Any, ...], private: bool, reason: int
) -> None:
    assert why_not(method, model(frozen), filters, private) == REASONS[reason]


def test_a_subclass_that_changes_uploads_declares_nothing_by_inheritance() -> None:
    assert declared(FedProto()) == {"means"} and declared(Louder()) is None
    assert declared(Protect(Louder())) is None


def frozen_federation(
    noise: Noise, rounds: int = 3, build: Any = build_frozen, clients: int = toy.CLIENTS, **options: Any
) -> Federation:
    engine = Inline(toy.plan(FedProto(), partial(build, **options), filters=(noise,)))
    return Federation(FedProto(), engine, toy.server(), FederationPlan(clients, rounds, filters=(noise,)))


def test_what_never_changes_is_released_once_and_costs_once() -> None:
    loop = frozen_federation(NOISE)
    records, sent = [], []
    for record in loop.run():
        records.append(record)
        sent.append(loop.engine.worker.clients[0].memory[RELEASED])
    assert all(torch.equal(sent[0].tensors["vectors"], each.tensors["vectors"]) for each in sent)
    assert [record.privacy.epsilon for record in records] == 3 * [gaussian_epsilon(NOISE.mu, 1e-5)]
    assert all(client.loss is None for client in records[-1].clients)  # a loss has no noise, so it does not leave
    assert records[-1].loss is None


def test_a_budget_for_one_release_is_enough_for_what_never_changes() -> None:
    enough = replace(NOISE, budget=Budget(epsilon=gaussian_epsilon(NOISE.mu, 1e-5) + 1e-6))
    records = list(frozen_federation(enough).run())
    assert [record.privacy.spent for record in records] == 3 * [False]


def test_features_of_records_are_shortened_before_they_enter_a_mean() -> None:
    loop = frozen_federation(replace(NOISE, clip=0.1))
    next(loop.run())
    client = loop.engine.worker.clients[2]
    assert client.features()[0].norm(dim=1).max() > 0.1
    expected = Prototypes.of(client.bounded(client.features()[0]), client.train.y, toy.CLASSES)
    assert torch.equal(client.prototypes().vectors, expected.vectors)
    assert client.bounded(client.features()[0]).norm(dim=1).max() <= 0.1 * (1 + 1e-5)


def build_private(id: int, streams: Streams, **options: Any) -> Client:
    return toy.build(id, streams, same_architecture=True, **options)


def test_private_training_and_noise_are_composed_round_by_round() -> None:
    wanted.extra("privacy")
    training = Training(epochs=1, batch=16, dp=PrivateTraining(noise=2.0))
    loop = frozen_federation(replace(NOISE, noise=4.0), rounds=2, build=build_private, clients=1, training=training)
    spent = [record.privacy.epsilon for record in loop.run()]
    assert spent[0] < spent[1]
    kinds = {(noise, rate < 1) for noise, rate, _ in history_of(loop.engine.worker.clients[0].memory)}
    assert kinds == {(2.0, True), (1 / replace(NOISE, noise=4.0).mu, False)}


def build_trained(id: int, streams: Streams, **options: Any) -> Client:
    return toy.build(id, streams, **options)


def test_without_a_guarantee_the_records_say_so_and_give_no_epsilon() -> None:
    loop = frozen_federation(NOISE, build=build_trained)
    record = next(loop.run())
    assert record.privacy == Privacy(why=REASONS[3])
    assert record.loss is not None
    assert record.line()["privacy"] == {"epsilon": None, "why": REASONS[3]}
    assert in_words(record.privacy).startswith(NO_GUARANTEE)
    assert Record.read(record.lines())[0] == record


def budgeted(rounds: float, training: Training) -> Noise:
    """Noise whose budget is good for so many rounds, training included: found by playing one round without limit."""
    loop = frozen_federation(NOISE, rounds=int(rounds), build=build_private, training=training)
    *_, last = loop.run()
    assert last.privacy is not None and last.privacy.epsilon is not None
    return replace(NOISE, budget=Budget(epsilon=last.privacy.epsilon * 1.0001))


def test_a_run_ends_cleanly_with_the_round_that_spends_the_budget() -> None:
    wanted.extra("privacy")
    training = Training(epochs=1, batch=1000, dp=PrivateTraining(noise=2.0))  # whole data: all clients cost the same
    noise = budgeted(2, training)
    loop = frozen_federation(noise, rounds=6, build=build_private, training=training)
    records = list(loop.run())
    assert [record.round for record in records] == [1, 2] and loop.done
    assert not records[0].privacy.spent and records[1].privacy.spent
    assert records[1].privacy.epsilon <= noise.budget.epsilon
    reply = loop.engine.worker.run(Job("train", 3, 0))  # whoever asks for more gets nothing
    assert reply.error is not None and "the privacy budget is spent" in reply.error and not reply.up


def test_one_client_that_has_spent_its_budget_is_left_out_and_the_others_go_on() -> None:
    loop = frozen_federation(NOISE, rounds=2)
    first = loop.play_round()
    loop.ledger.privacy[1] = Privacy(1.0, 1e-5, spent=True)
    record = loop.play_round()
    assert first.absent == {} and record.absent == {1: "spent"} and loop.done


def test_a_budget_without_a_guarantee_is_refused() -> None:
    loop = frozen_federation(replace(NOISE, budget=Budget(epsilon=1.0)), build=build_trained)
    with pytest.raises(Exception, match="there is a privacy budget, and nothing it could be spent on: class vectors"):
        next(loop.run())
    assert not any(client.losses for client in loop.engine.worker.clients.values())  # nobody has trained


def test_an_experiment_with_a_budget_and_no_guarantee_is_refused_before_any_client_is_made(tmp_path: Path) -> None:
    noisy = {"name": "noise", "budget": {"epsilon": 4.0}}
    table = {"clients": 3, "rounds": 1, "data": {"source": "digits", "samples": 60}, "models": {"family": "tiny_mlp"}}
    run = Run(experiment_from_table({**table, "filters": [noisy]}), tmp_path / "run")
    with pytest.raises(PrivacyError, match=r"tiny_mlp: there is a privacy budget.*class vectors are means of features"):
        next(iter(run))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("settings", "mixes"),
    [
        ({"categories": {"ward": ["east", "west"]}}, False),
        ({"drop": ["ward"]}, False),
        ({"drop": ["ward"], "standardise": True}, True),
        ({"drop": ["ward"], "missing": "impute"}, True),
        ({}, True),  # the wards are found in the rows: one more, in a single record, would be a feature of all
    ],
)
def test_a_table_whose_rows_change_each_other_has_no_guarantee(
    tmp_path: Path, settings: dict[str, Any], mixes: bool
) -> None:
    rows = "\n".join(f"{n % 7},{n % 5},{['east', 'west'][n % 3 // 2]},{'ab'[n % 2]}" for n in range(60))
    (tmp_path / "t.csv").write_text(f"x,y,ward,label\n{rows}\n")
    source = {"kind": "csv", "path": str(tmp_path / "t.csv"), "label": "label", **settings}
    table: dict[str, Any] = {
        "clients": 2, "rounds": 1, "data": {"source": source}, "models": {"family": "tiny_mlp", "dim": 4},
        "method": {"name": "fedloo", "parts": 1, "least": 1}, "filters": ["noise"], "engine": {"name": "inline"},
    }  # fmt: skip
    (record,) = Run(experiment_from_table(table))
    assert record.privacy is not None and record.privacy.formal is not mixes
    assert ("records were prepared together" in record.privacy.why) is mixes
    if mixes:  # a budget would be spent on nothing: it is refused before anything is trained
        table["filters"] = [{"name": "noise", "budget": {"epsilon": 50.0}}]
        with pytest.raises(PrivacyError, match="nothing it could be spent on: records were prepared together"):
            next(iter(Run(experiment_from_table(table))))


def test_a_killed_run_goes_on_with_what_was_spent(tmp_path: Path) -> None:
    wanted.extra("privacy")
    table = {
        "rounds": 2, "clients": 2, "seed": 3,
        "data": {"samples": 150, "partition": "iid"},  # equal shares cost the same, which is worked out once
        "models": {"family": "tiny_mlp", "dim": 16},
        "training": {"batch": 20, "dp": {"noise": 1.5}},
        "filters": [{"name": "noise", "clip": 3.0, "noise": 2.0}],
        "engine": {"name": "inline"}, "checkpoint": {"every": 1},
        "evaluation": {"snapshots": 0},
    }  # fmt: skip
    whole = Run(experiment_from_table(table), tmp_path / "whole").finish()
    with Run(experiment_from_table(table), tmp_path / "parted") as run:
        run.step()
    again = Run(None, tmp_path / "parted").finish()
    assert [without_cost(each) for each in again.records] == [without_cost(each) for each in whole.records]
    assert whole.summary["privacy"] == again.summary["privacy"]
    assert whole.summary["privacy"]["formal"] and "not covered: evaluation replies" in whole.summary["privacy"]["words"]
    shown = content([RunReader.read(tmp_path / "whole")])
    assert shown["runs"][0]["epsilon"][-1] == pytest.approx(whole.summary["privacy"]["epsilon"], rel=1e-4)
    assert any("privacy: epsilon" in notice for notice in shown["notices"])


def without_cost(record: Record) -> list[str]:
    return [json.dumps({k: v for k, v in line.items() if k != "cost"}) for line in record.lines()]


def test_a_site_asked_again_for_an_earlier_round_does_not_forget_what_it_has_sent(tmp_path: Path) -> None:
    wanted.extra("privacy")
    training = Training(epochs=1, batch=1000, dp=PrivateTraining(noise=2.0))
    plan = toy.plan(FedProto(), partial(build_private, training=training), filters=(NOISE,), system_randomness=True)
    worker = DurableWorker(plan, tmp_path, reply_to_bytes)
    first = Job("train", 1, 0)
    worker.answer(first, job_to_bytes(first))
    other = Job("train", 1, 0, {"vectors": torch.zeros(1, toy.DIM), "counts": torch.tensor([1.0, 0, 0, 0, 0, 0])})
    worker.answer(other, job_to_bytes(other))  # the same round with another broadcast: a second release
    assert sorted(times for _, _, times in history_of(worker.store.clients[0].memory)) == [2, 2]


def test_the_statement_is_that_of_the_client_that_has_spent_most() -> None:
    parts = [Privacy(1.0, 1e-5), Privacy(3.0, 1e-5), None]
    assert worst(parts) == Privacy(3.0, 1e-5)
    assert worst([*parts, Privacy(why=REASONS[1])]) == Privacy(why=REASONS[1])
    assert worst([None]) is None
    for part in (Privacy(3.0, 1e-5, True), Privacy(why=REASONS[4])):
        assert Privacy.read(part.metrics()) == part
    assert Privacy.read({"loss": 1.0}) is None and Privacy.read({"no guarantee": 99.0}) == Privacy(why=REASONS[1])


def test_runs_without_noise_say_nothing_of_privacy() -> None:
    loop = Federation(FedProto(), Inline(toy.plan(FedProto())), toy.server(), FederationPlan(toy.CLIENTS, 1))
    found = left(loop, list(loop.run()))
    assert not any("privacy" in line for line in found["records"])
    assert Experiment().training.dp is None
