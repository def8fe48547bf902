"""Who gets which job, without any process."""

from __future__ import annotations

import math

from protea.engines.host_queue import HostQueue
from protea.federation.jobs import Job

JOBS = [Job("train", 1, client) for client in range(5)]


def queue(host_of: dict[int, str] | None = None, retries: int = 1) -> HostQueue[str]:
    return HostQueue(JOBS, ["a", "b"], host_of or {}, retries)


def clients(jobs: list[Job | None]) -> list[int | None]:
    return [None if job is None else job.client for job in jobs]


def test_a_host_takes_its_own_clients_in_order_and_then_those_of_nobody():
    found = queue({1: "a", 3: "a", 0: "b"})
    assert clients([found.begin("a") for _ in range(4)]) == [1, 3, 2, 4]
    assert clients([found.begin("b"), found.begin("b"), found.begin("a")]) == [0, None, None]


def test_a_host_is_idle_until_it_begins_and_after_it_has_finished():
    found = queue()
    assert found.idle() == ["a", "b"]
    found.begin("a")
    assert found.idle() == ["b"] and found.working == {"a": JOBS[0]}
    assert found.finish("a") is JOBS[0] and found.idle() == ["a", "b"] and not found.working


def test_a_host_is_late_once_its_time_is_over():
    found = queue()
    for host in ("a", "b"):
        found.begin(host)
    assert found.due == {"a": math.inf, "b": math.inf} and not found.late("a")
    found.must_answer("a", 60.0)
    found.must_answer("b", -0.001)
    assert not found.late("a") and found.late("b")


def test_jobs_of_a_lost_host_go_to_any_other_and_the_one_it_worked_on_is_first():
    found = queue({0: "a", 2: "a", 4: "a"})
    found.begin("a")
    assert found.lose("a", to_blame=True) is None and not found.working and "a" not in found.own
    assert clients([found.begin("b") for _ in range(6)]) == [0, 2, 4, 1, 3, None]


def test_a_new_host_takes_jobs_too():
    found = queue({0: "a"})
    found.begin("a")
    found.lose("a", to_blame=True)
    found.add("c")
    assert found.idle() == ["b", "c"] and clients([found.begin("c")]) == [0]


def test_a_job_that_is_lost_too_often_is_given_up():
    found = queue({0: "a"}, retries=1)
    found.begin("a")
    assert found.lose("a", to_blame=True) is None
    found.begin("b")
    assert found.lose("b", to_blame=True) is JOBS[0]
    assert clients(list(found.free)) == [1, 2, 3, 4]


def test_a_loss_that_is_no_fault_of_the_job_does_not_count():
    found = queue({0: "a"}, retries=0)
    found.begin("a")
    assert found.lose("a", to_blame=False) is None and found.losses[0] == 0
    found.begin("b")
    assert found.lose("b", to_blame=True) is JOBS[0]
