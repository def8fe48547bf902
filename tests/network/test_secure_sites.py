"""Secure sums over Flower's messages: clients at nodes, sites with their own code, and answers that are lost."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from contract import Left, play

pytest.importorskip("flwr", reason="lacking: extra flower")

import grid
from flwr.app import Message
from flwr.common.constant import ErrorCode
from parties import NAMES, make_base, make_site, parties
from test_coordinator import federation, serve
from waiting import until

from protea.cli.site_statement import statement_document
from protea.clients.durable import newest_state
from protea.clients.plan import WorkerPlan
from protea.clients.worker import Worker
from protea.core.errors import ConfigError, PolicyError
from protea.core.message import Named, nbytes
from protea.core.prototypes import Prototypes
from protea.engines.flower.codec import unwrap
from protea.engines.inline import Inline
from protea.engines.messages import job_from_bytes, parted
from protea.federation.jobs import Job, JobEngine, Reply
from protea.federation.record import Record
from protea.filters.secure.client_side import MEMORY
from protea.filters.secure.state import SumState
from protea.filters.secure.sums import LOSS, SAMPLES
from protea.filters.secure_sum import SecureSum
from protea.methods.fedproto import FedProto
from protea.methods.lg_fedavg import LGFedAvg
from protea.network.coordinator import service
from protea.network.site.audit import Audit
from protea.network.site.check import trial
from protea.network.site.directory import Site
from protea.network.site.service import SiteService
from protea.network.site.statement import make_statement, size_words
from protea.network.task import new_task
from protea.network.trust.keys import SIGNATURE
from protea.runs.directory import RunDirectory

FILTERS = (SecureSum(),)
SECURE = [{"name": "secure_sum"}]


def over_grid(folder: Path, plan: WorkerPlan) -> JobEngine:
    return grid.OneProcess(replace(plan, filters=FILTERS), folder)


@cache
def inline(method: Any) -> Left:
    """What a run in this process leaves."""
    return play(method, lambda plan: Inline(replace(plan, filters=FILTERS)), filters=FILTERS, fraction=1.0)


@pytest.mark.parametrize("method", [FedProto(), LGFedAvg()], ids=["fedproto", "lg_fedavg"])
def test_the_grid_equals_the_inline_engine_to_the_bit(method: Any, tmp_path: Path) -> None:
    assert play(method, partial(over_grid, tmp_path), filters=FILTERS, fraction=1.0) == inline(method)


def asked_for(message: Message, signed: bool = True) -> list[str]:
    """The jobs in a message."""
    if grid.names([message]) != ["job"]:
        return []
    content = unwrap(message.content, 2**31)
    return [job_from_bytes(part).task for part in parted(content[SIGNATURE if signed else 0 :])]


@pytest.mark.parametrize("step", ["shares", "masked", "unmask"])
def test_a_message_that_is_lost_with_its_node_is_answered_the_same_again(step: str, tmp_path: Path) -> None:
    lost: list[str] = []

    def meddle(asked: Message, answer: Message) -> Message:
        if step in asked_for(asked, signed=False) and len(lost) < 2:
            lost.append(step)
            return grid.error(asked, ErrorCode.NODE_UNAVAILABLE, "it was started anew")
        return answer

    def make(plan: WorkerPlan) -> JobEngine:
        engine = grid.OneProcess(replace(plan, filters=FILTERS), tmp_path)
        engine.wire.meddle = meddle
        return engine

    assert play(FedProto(), make, filters=FILTERS, fraction=1.0) == inline(FedProto()) and len(lost) == 2


def test_sites_add_up_under_masks_and_learn_the_same(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    base, sites, wire = federation(tmp_path, filters=SECURE)
    records = serve(base, wire)
    plain_base, _plain_sites, plain_wire = federation(tmp_path / "plain")
    plain = serve(plain_base, plain_wire)
    assert [record.participants for record in records] == [[0, 1, 2]] * 2
    for record, other in zip(records, plain, strict=True):
        assert record.loss == pytest.approx(other.loss, rel=1e-3)
        assert record.accuracy == pytest.approx(other.accuracy, abs=0.02)
    steps = ["train", "shares", "masked", "unmask", "evaluate"]
    for site in sites:
        lines = [line for line in service_lines(site) if line["task"] != "hello"]
        assert [line["task"] for line in lines] == [*steps, *steps, "end"]
        sent = {tensor["dtype"] for line in lines[:4] for tensor in line["tensors"].values()}
        assert sent == {"torch.uint8", "torch.int64"}  # keys, sealed shares, and whole numbers under a mask
        state = site.restored().client(site.id).memory[MEMORY]
        assert not len(state.private) and state.seed is None  # what could unmask an upload is gone
    assert len({path.read_bytes() for path in state_files(sites)}) == len(sites)


def service_lines(site: Site) -> list[dict[str, Any]]:
    return list(Audit(site.path / "audit.jsonl").lines())


def state_files(sites: list[Site]) -> list[Path]:
    return [next((newest_state(site.state, site.id) or site.state).glob("*.safetensors")) for site in sites]


def test_a_round_that_lost_a_masked_upload_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PAUSE", 0.0)
    base, sites, wire = federation(tmp_path, filters=SECURE, rounds=1)
    spoilt: list[str] = []

    def meddle(asked: Message, answer: Message) -> Message:
        if "masked" in asked_for(asked) and asked.metadata.dst_node_id == grid.FIRST + 1 and not spoilt:
            spoilt.append("masked")
            return grid.error(asked, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "it failed")
        return answer

    wire.meddle = meddle
    news: list[str] = []
    (record,) = serve(base, wire, lambda status, line: news.append(line or ""))
    assert any("secure_sum: 2 clients are left; 3 at least must be in a sum" in line for line in news)
    assert not record.failures and spoilt
    counts = [line["task"] for line in service_lines(sites[0])]
    assert counts.count("train") == 2  # the second time from what was kept
    assert torch.isfinite(torch.tensor(record.loss))


@pytest.mark.nightly
@pytest.mark.xdist_group("deployment")
def test_sites_in_processes_of_their_own_go_on_after_a_kill(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", filters=SECURE)
    sites = [make_site(tmp_path / name, base.path / "bundles" / f"{name}.protea", name) for name in NAMES]
    with parties(tmp_path, cold=True) as all_of:
        server = all_of.serve(base)
        joined = [all_of.join(site) for site in sites]
        until(lambda: (sites[0].path / "audit.jsonl").exists() and "shares" in steps_of(sites[0]))
        joined[0].kill()
        again = all_of.join(sites[0])
        assert server.wait() == 0
        assert [party.wait(30) for party in (again, *joined[1:])] == [0, 0, 0]
    records = Record.read(RunDirectory.open(base.path / "run").metrics())
    assert [record.round for record in records] == [1, 2] and records[-1].accuracy is not None
    assert steps_of(sites[1]).count("unmask") >= 2


def steps_of(site: Site) -> list[str]:
    """What a site has noted that it sent."""
    return [line["task"] for line in service_lines(site)]


def test_a_site_draws_its_secrets_from_the_system(tmp_path: Path) -> None:
    _, sites, _ = federation(tmp_path, filters=SECURE, rounds=1)
    worker = sites[0].restored()
    keys = []
    for _ in range(2):
        client = worker.client(0)
        client.begin(1, worker.plan.streams(0))
        keys.append(worker._secure(client).begin({"v": torch.zeros(1, dtype=torch.float64)})["public"])
    assert not torch.equal(*keys)  # in a simulation they would be the same


def test_site_check_shows_what_is_behind_the_mask(tmp_path: Path) -> None:
    _, sites, _ = federation(tmp_path, filters=SECURE)
    found = trial(sites[0].path)
    assert "vectors" in {each.name for each in found.leaving}
    said = make_statement(sites[0], found)
    words = " ".join(statement_document(said).sections[0].sentences)
    assert "can read the sum over all sites of a round, at least 3" in words and "in the clear seconds" in words
    classes, dim = len(sites[0].task.classes), sites[0].task.models.dim
    assert found.sizes["masked"] == 8 * (classes * (dim + 2) + 2)  # with a count, and a 1, for each class
    assert said.bytes_in_all == 2 * found.sizes["masked"] + said.evaluations * found.sizes["evaluate"]
    assert "some 115 bytes a round for each site" in size_words(said)


def test_no_message_of_a_sum_is_larger_than_the_policy_allows(tmp_path: Path) -> None:
    """The upload under its mask is more than twice as large as it would be without."""
    _, sites, _ = federation(tmp_path, filters=SECURE, rounds=1)
    plain = nbytes(Prototypes(torch.ones(10, 16), torch.ones(10)).flat())
    (sites[0].path / "policy.toml").write_text(f'max_upload = "{plain + 100}B"\n')
    with pytest.raises(PolicyError, match=r"line 1: max_upload(.|\n)*Under the mask of secure_sum the upload has"):
        trial(sites[0].path)
    service = SiteService(Site(sites[0].path))
    worker = service.worker.worker
    worker.client(0).begin(1, worker.plan.streams(0))
    reply = Reply(0, 1, {"vectors": torch.zeros(10, 16, dtype=torch.int64)})
    with pytest.raises(PolicyError, match="max_upload"):
        service.site.release.verify(Job("masked", 1, 0), reply, service._passage(Job("masked", 1, 0)))


def test_what_a_policy_rounds_or_hides_is_rounded_or_hidden_under_the_mask(tmp_path: Path) -> None:
    """Whoever takes off what all others added has what a site added: no more than it would have told in the clear."""
    _, sites, _ = federation(tmp_path, filters=SECURE, rounds=1)
    added: dict[str, Named] = {}
    for report in ("none", "accuracy"):
        (sites[0].path / "policy.toml").write_text(f'report = "{report}"\n')
        worker = Worker(Site(sites[0].path).plan())
        assert worker.run(Job("train", 1, 0)).error is None
        state = worker.client(0).memory[MEMORY]
        assert isinstance(state, SumState)
        added[report] = dict(state.upload)
    exact = len(worker.client(0).train)
    assert exact % 10 and float(added["accuracy"][SAMPLES]) == 10 * round(exact / 10)
    assert float(added["accuracy"][LOSS]) > 0 and float(added["none"][LOSS]) == 0
    assert all(count % 10 == 0 for count in added["accuracy"]["counts"].tolist())


def test_tasks_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"secure_sum needs 3 clients in every round .* 2 would take part.*quorum"):
        new_task({"classes": ["a", "b"], "filters": SECURE}, [])
    with pytest.raises(ConfigError, match="fedtgp cannot run with the filter secure_sum"):
        new_task({"classes": ["a", "b"], "quorum": 3, "filters": SECURE, "method": "fedtgp"}, [])


def test_steps_of_a_sum_are_refused_where_there_is_none() -> None:
    reply = toy.worker(FedProto()).run(Job("shares", 1, 0))
    assert "the filter secure_sum is not set" in str(reply.error)
