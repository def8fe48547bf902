"""The engine over a grid, in one process: equal to inline to the bit, and no reply can hurt it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from contract import Left, builder, play, reference
from every import METHODS, every_method
from test_filtered import FILTERS, filtered

pytest.importorskip("flwr", reason="lacking: extra flower")

import grid
from flwr.app import Message
from flwr.common.constant import ErrorCode

from protea.clients.plan import WorkerPlan
from protea.config.sections import Limits
from protea.core.method import Method
from protea.engines.flower.codec import unwrap, wrap
from protea.engines.inline import Inline
from protea.engines.messages import joined, parted, reply_from_bytes, reply_to_bytes
from protea.federation.alone import Alone
from protea.federation.jobs import Job, Reply
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.federation.protect import Protect
from protea.filters.base import Filter
from protea.methods.fedproto import FedProto


@every_method
def test_it_equals_the_inline_engine_to_the_bit(method: Method[Any, Any], tmp_path: Path) -> None:
    assert play(method, lambda plan: grid.OneProcess(plan, tmp_path)) == reference(method)


def test_sites_blend_as_clients_of_a_simulation_do(tmp_path: Path) -> None:
    def make(plan: WorkerPlan) -> grid.OneProcess:
        return grid.OneProcess(replace(plan, answer="blend"), tmp_path)

    over = play(FedProto(), make, build=toy.build_holding_out)
    inline = play(FedProto(), lambda plan: Inline(replace(plan, answer="blend")), build=toy.build_holding_out)
    assert over == inline
    (*_, last) = (line for line in inline["records"] if line["kind"] == "round")
    assert last["test"]["method"] == last["test"]["blend"] != last["test"]["global_prototypes"]


@pytest.mark.parametrize("name", ["fedproto", "fedtgp", "fedgen"])
def test_clients_that_are_alone_equal_the_inline_engine_to_the_bit(name: str, tmp_path: Path) -> None:
    test_it_equals_the_inline_engine_to_the_bit(Alone(METHODS[name]), tmp_path)


@pytest.mark.parametrize("name", ["fedproto", "fedtgp", "lg_fedavg"])
def test_protected_sites_equal_the_inline_engine_to_the_bit(name: str, tmp_path: Path) -> None:
    method, build = Protect(METHODS[name]), toy.build_holding_out
    assert play(method, lambda plan: grid.OneProcess(plan, tmp_path), build=build) == play(method, build=build)


@cache
def two_rounds(method: Method[Any, Any]) -> Left:
    """What two rounds of all clients leave in this process."""
    return play(method, rounds=2, fraction=1.0)


def run(tmp_path: Path, meddle: Callable[[Message, Message], Message | None], **options: Any) -> list[Any]:
    """Two rounds of FedProto where some answers are meddled with on their way."""
    method = FedProto()
    engine = grid.OneProcess(toy.plan(method, builder(method), 7), tmp_path, **options)
    engine.wire.meddle = meddle
    loop = Federation(
        method,
        engine,
        toy.server(),
        FederationPlan(clients=toy.CLIENTS, rounds=2, failures="skip", limits=Limits(upload="1MB")),
    )
    return list(loop.run())


def changing(change: Callable[[Reply], Reply | bytes]) -> Callable[[Message, Message], Message]:
    """Client 1's upload of round 1 is changed."""

    def meddle(asked: Message, answer: Message) -> Message:
        if grid.names([asked]) != ["job"]:
            return answer
        parts = parted(unwrap(answer.content, 2**31))
        for k, part in enumerate(parts):
            reply = reply_from_bytes(part)
            if reply.client == 1 and reply.round == 1 and reply.samples:
                changed = change(reply)
                parts[k] = changed if isinstance(changed, bytes) else reply_to_bytes(changed)
        return Message(wrap(joined(parts)), reply_to=asked)

    return meddle


def refused(records: list[Any]) -> str:
    """Why client 1 was refused in round 1; the rest went on."""
    assert records[0].refused == [1] and list(records[0].failures) == [1]
    assert len(records) == 2 and not records[1].failures
    assert records[1].accuracy is not None
    return str(records[0].failures[1])


def test_an_oversized_payload_is_refused_and_the_round_goes_on(tmp_path: Path) -> None:
    big = changing(lambda reply: replace(reply, up={"vectors": torch.zeros(3_000_000), "counts": torch.zeros(6)}))
    assert "12,000,024 bytes arrived" in refused(run(tmp_path, big))


def test_a_message_beyond_the_limit_is_not_even_looked_at(tmp_path: Path) -> None:
    big = changing(lambda reply: replace(reply, up={"vectors": torch.zeros(3_000_000), "counts": torch.zeros(6)}))
    records = run(tmp_path, big, limit=1_000_000)
    assert records[0].refused == [1, 3]  # both are at that node
    assert "bytes arrived" in records[0].failures[1] and not records[1].failures


def test_a_misshapen_payload_is_refused_and_the_round_goes_on(tmp_path: Path) -> None:
    odd = changing(lambda reply: replace(reply, up={**reply.up, "counts": reply.up["counts"][:-1]}))
    assert "client 1, round 1" in refused(run(tmp_path, odd))


def test_a_payload_with_nan_is_refused_and_the_round_goes_on(tmp_path: Path) -> None:
    nan = changing(lambda reply: replace(reply, up={**reply.up, "vectors": reply.up["vectors"] * torch.nan}))
    assert "not finite" in refused(run(tmp_path, nan))


def test_a_payload_of_the_wrong_round_is_refused_and_the_round_goes_on(tmp_path: Path) -> None:
    assert "of round 9" in refused(run(tmp_path, changing(lambda reply: replace(reply, round=9))))


def test_a_payload_for_another_client_is_refused_and_the_round_goes_on(tmp_path: Path) -> None:
    assert "of client 3" in refused(run(tmp_path, changing(lambda reply: replace(reply, client=3))))


def test_bytes_that_are_no_payload_are_refused_and_the_round_goes_on(tmp_path: Path) -> None:
    assert "client 1, round 1" in refused(run(tmp_path, changing(lambda reply: b"no tensors at all")))


def test_a_replayed_payload_is_refused_and_the_round_goes_on(tmp_path: Path) -> None:
    """What client 1 sent in round 1 comes again in round 2."""
    kept: list[Reply] = []

    def meddle(asked: Message, answer: Message) -> Message:
        if grid.names([asked]) != ["job"]:
            return answer
        parts = parted(unwrap(answer.content, 2**31))
        for k, part in enumerate(parts):
            reply = reply_from_bytes(part)
            if reply.client == 1 and reply.samples:
                kept.append(reply)
                parts[k] = reply_to_bytes(kept[0])
        return Message(wrap(joined(parts)), reply_to=asked)

    records = run(tmp_path, meddle)
    assert not records[0].refused
    assert records[1].refused == [1] and "of round 1" in records[1].failures[1]


def test_too_few_replies_in_a_message_are_refused(tmp_path: Path) -> None:
    def meddle(asked: Message, answer: Message) -> Message:
        if grid.names([asked]) != ["job"] or asked.metadata.dst_node_id == grid.FIRST:
            return answer
        return Message(wrap(joined(parted(unwrap(answer.content, 2**31))[:1])), reply_to=asked)

    records = run(tmp_path, meddle)
    assert records[0].refused == [1, 3] and "1 replies arrived to 2 jobs" in records[0].failures[1]


def test_a_record_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    def meddle(asked: Message, answer: Message) -> Message:
        if grid.names([asked]) == ["job"] and asked.metadata.dst_node_id == grid.FIRST:
            answer.content["other"] = answer.content["protea"]
        return answer

    records = run(tmp_path, meddle)
    assert records[0].refused == [0, 2] and "not one of Protea's" in records[0].failures[0]


def test_an_answer_that_never_comes_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    def meddle(asked: Message, answer: Message) -> Message | None:
        lost = grid.names([asked]) == ["job"] and asked.metadata.dst_node_id == grid.FIRST
        return None if lost and asked.metadata.group_id == "1" else answer

    records = run(tmp_path, meddle, deadline=1.0)
    assert sorted(records[0].failures) == [0, 2] and "no answer within 1 s" in records[0].failures[0]
    assert not records[0].refused and not records[1].failures


def test_a_message_lost_with_its_node_is_sent_again_and_trains_once(tmp_path: Path) -> None:
    """The node is gone after it has trained, before its answer came; the end is as if nothing had been."""
    method, seen, ran = FedProto(), list[Message](), list[Job]()

    def meddle(asked: Message, answer: Message) -> Message:
        seen.append(asked)
        first = grid.names(seen).count("job") == 1
        return grid.error(asked, ErrorCode.NODE_UNAVAILABLE, "Node Unavailable") if first else answer

    def make(plan: WorkerPlan) -> grid.OneProcess:
        engine = grid.OneProcess(plan, tmp_path)
        engine.wire.meddle = meddle
        for durable in engine.workers:
            plain = durable.worker.run
            durable.worker.run = lambda job, plain=plain: (ran.append(job), plain(job))[1]  # type: ignore[method-assign]
        return engine

    assert play(method, make, rounds=2, fraction=1.0) == two_rounds(method)
    trained = [(job.client, job.round) for job in ran if job.task == "train"]
    assert len(trained) == len(set(trained)) == 2 * toy.CLIENTS


def test_a_node_that_was_started_anew_gets_its_message_again(tmp_path: Path) -> None:
    method, lost = FedProto(), []

    def make(plan: WorkerPlan) -> grid.OneProcess:
        engine = grid.OneProcess(plan, tmp_path)

        def meddle(asked: Message, answer: Message) -> Message | None:
            if grid.names([asked]) == ["job"] and not lost:
                lost.append(asked)
                engine.wire.starts[asked.metadata.dst_node_id - grid.FIRST] = 1  # it is another process now
                return None
            return answer

        engine.wire.meddle = meddle
        return engine

    assert play(method, make, rounds=2, fraction=1.0) == two_rounds(method)
    assert lost


def test_a_node_that_is_lost_again_and_again_fails(tmp_path: Path) -> None:
    def meddle(asked: Message, answer: Message) -> Message:
        if grid.names([asked]) == ["job"] and asked.metadata.dst_node_id == grid.FIRST:
            return grid.error(asked, ErrorCode.NODE_UNAVAILABLE, "Node Unavailable")
        return answer

    records = run(tmp_path, meddle, retries=2)
    assert "lost 3 times" in records[0].failures[0] and records[1].accuracy is not None


def test_a_connection_that_is_lost_is_made_anew_and_nothing_changes(tmp_path: Path) -> None:
    method, pulls = FedProto(), []

    class Shaky(grid.Wire):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            pulls.append(1)
            if len(pulls) in (2, 5):
                raise ConnectionError("gone")
            return super().pull_messages(message_ids)

    def make(plan: WorkerPlan) -> grid.OneProcess:
        engine = grid.OneProcess(plan, tmp_path)
        engine.carrier = engine.grid = Shaky(engine.wire.handles)
        return engine

    assert play(method, make, rounds=2, fraction=1.0) == two_rounds(method)
    assert len(pulls) > 5


def test_a_client_that_fails_is_told_in_its_own_words(tmp_path: Path) -> None:
    method = FedProto()
    engine = grid.OneProcess(toy.plan(method, builder(method), 7), tmp_path)
    (reply,) = engine.map([Job("train", 1, 99)])
    assert reply.error is not None and "client 99, round 1" in reply.error


def test_a_stranger_gets_no_jobs(tmp_path: Path) -> None:
    from protea.core.errors import PayloadError

    def name(node: Any, about: Any) -> int:
        if about["node"] == 1:
            raise PayloadError("not invited")
        return 0

    method = FedProto()
    engine = grid.OneProcess(toy.plan(method, builder(method), 7), tmp_path, deadline=1.0)
    engine.name = name
    replies = engine.map([Job("train", 1, 0), Job("train", 1, 1)])
    assert replies[0].error is None and "no answer" in str(replies[1].error)
    assert [why for why, _ in engine.strangers.values()] == ["not invited"]
    assert [m.metadata.dst_node_id for m in engine.wire.pushed if grid.names([m]) == ["job"]] == [grid.FIRST]


def test_a_client_process_that_raises_still_sends_an_answer(tmp_path: Path) -> None:
    """A node that gets no answer from its client side stands still for ever."""
    method = FedProto()
    engine = grid.OneProcess(toy.plan(method, builder(method), 7), tmp_path)

    def broken(kind: str, message: bytes) -> bytes:
        if kind == "hello":
            return engine.handle(0)(kind, message)
        raise RuntimeError("out of luck")

    engine.wire.handles[0] = broken
    (reply,) = engine.map([Job("train", 1, 0)])
    assert "RuntimeError: out of luck" in str(reply.error)


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
def test_filters_hold_over_messages(filters: tuple[Filter, ...], tmp_path: Path) -> None:
    def make(plan: WorkerPlan) -> grid.OneProcess:
        return grid.OneProcess(plan, tmp_path)

    method = FedProto()
    there = play(method, partial(filtered, make, filters), filters=filters)
    assert there == play(method, partial(filtered, Inline, filters), filters=filters)
