"""What waits for which node, without any network."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

from protea.engines.flower.node_queue import NodeQueue
from protea.federation.jobs import Job

JOBS = [Job("train", 1, client) for client in (3, 0, 2, 1)]
ONLINE = {0: 100, 1: 101}  # ids of nodes, by place


def queue(retries: int = 1, seconds: float = 60.0) -> NodeQueue:
    return NodeQueue(JOBS, lambda client: client % 2, retries, seconds)


def send(found: NodeQueue, *messages: str) -> None:
    """Send all that waits; messages are named in order."""
    for message, (place, node, _) in zip(messages, list(found.due(ONLINE)), strict=True):
        found.send(message, place, node, "monday")


def clients(jobs: list[Job]) -> list[int]:
    return [job.client for job in jobs]


def test_jobs_of_one_node_go_together_in_the_order_of_clients():
    found = queue()
    assert [(place, node, clients(jobs)) for place, node, jobs in found.due(ONLINE)] == [
        (0, 100, [0, 2]),
        (1, 101, [1, 3]),
    ]
    assert [place for place, _, _ in found.due({1: 101, 7: 107})] == [1]  # who is not there gets nothing


def test_it_is_over_when_all_is_answered():
    found = queue()
    send(found, "x", "y")
    assert not list(found.due(ONLINE)) and found
    answered = found.answer("x")
    assert answered is not None and clients(answered.jobs) == [0, 2] and (answered.place, answered.node) == (0, 100)
    assert found.answer("x") is None and found.answer("other") is None and found
    found.answer("y")
    assert not found


def test_jobs_that_were_lost_are_sent_again_until_their_node_is_given_up():
    found = queue(retries=1)
    for message in ("first", "second"):
        assert not list(found.give_up())
        place, node, _ = next(found.due(ONLINE))
        found.send(message, place, node, "monday")
        lost = found.answer(message)
        assert lost is not None
        found.lose(lost)
    assert [(job.client, times) for job, times in found.give_up()] == [(0, 2), (2, 2)]
    assert found.waiting.keys() == {1}


def test_jobs_of_a_node_that_was_started_anew_wait_again():
    found = queue()
    send(found, "x", "y")
    found.lose_restarted({100: "tuesday"})  # 101 is not there just now, and may come back as it was
    assert found.waiting.keys() == {0} and found.sent.keys() == {"y"} and found.losses == {0: 1}
    found.lose_restarted({101: "monday"})
    assert found.sent.keys() == {"y"}


def test_a_lost_connection_is_no_fault_of_the_nodes():
    found = queue()
    send(found, "x", "y")
    found.send_again()
    assert found.waiting.keys() == {0, 1} and not found.sent and not found.losses


def test_after_the_deadline_nothing_is_waited_for():
    found = queue()
    send(found, "x", "y")
    assert found.expire() == [] and 0 < found.left <= 60
    late = queue(seconds=-1.0)
    place, node, _ = next(late.due(ONLINE))
    late.send("x", place, node, "monday")
    assert sorted(clients(late.expire())) == [0, 1, 2, 3] and not late
