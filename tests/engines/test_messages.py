"""Jobs and replies as bytes: what is not as agreed is refused, and nothing else happens."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protea.core.errors import PayloadError
from protea.core.message import to_bytes
from protea.engines.messages import (
    WORDS,
    job_from_bytes,
    job_to_bytes,
    joined,
    parted,
    reply_from_bytes,
    reply_to_bytes,
)
from protea.federation.jobs import Job, Reply

sys.path.append(str(Path(__file__).parents[2]))
from fuzz.mutate import spoil

TENSORS = {"vectors": torch.arange(6.0).reshape(2, 3), "counts": torch.tensor([3.0, 1.0])}
JOB = Job("train", 3, 1, TENSORS)
REPLY = Reply(1, 3, TENSORS, 40, {"loss": 0.5}, 1.25, process=7, memory=2**33, error=None)

ABOUT_JOB: dict[str, Any] = {"task": "train", "round": 3, "client": 1}
ABOUT_REPLY: dict[str, Any] = {
    "client": 1,
    "round": 3,
    "samples": 40,
    "metrics": {"loss": 0.5},
    "seconds": 1.25,
    "process": 7,
    "memory": 2**33,
    "error": None,
}
NAN, INF = float("nan"), float("inf")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("task", ["train", "evaluate", "answer", "look"])
def test_a_job_arrives_as_it_was_sent(task: Any) -> None:
    arrived = job_from_bytes(job_to_bytes(Job(task, 12, 3, TENSORS)))
    assert (arrived.task, arrived.round, arrived.client) == (task, 12, 3) and same(arrived.down, TENSORS)
    assert job_from_bytes(job_to_bytes(Job(task, 1, 0))).down == {}


def test_a_reply_arrives_as_it_was_sent() -> None:
    arrived = reply_from_bytes(reply_to_bytes(REPLY))
    assert same(arrived.up, TENSORS)
    assert {name: getattr(arrived, name) for name in ABOUT_REPLY} == ABOUT_REPLY
    failed = Reply(0, 1, error="client 0, round 1:\n\tü\nZeroDivisionError")
    assert reply_from_bytes(reply_to_bytes(failed)) == failed


def test_nobody_can_say_of_himself_that_he_was_refused() -> None:
    assert reply_from_bytes(reply_to_bytes(Reply(0, 1, refused=True))).refused is False


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_parts_are_parted_as_they_were_joined(parts: list[bytes]) -> None:
    assert parted(joined(parts)) == parts


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=4), st.data())
def test_joined_parts_that_are_cut_are_refused_or_fewer(parts: list[bytes], data: st.DataObject) -> None:
    whole = joined(parts)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        assert parted(cut) == parts[: len(parted(cut))] != parts
    except PayloadError as error:
        assert f"{len(cut)} bytes arrived that is not whole" in str(error)


@given(st.binary(max_size=60))
def test_any_bytes_are_parted_or_refused(noise: bytes) -> None:
    with suppress(PayloadError):
        assert joined(parted(noise)) == noise


def test_a_part_that_claims_to_be_larger_than_any_memory_is_refused() -> None:
    with pytest.raises(PayloadError, match="not whole"):
        parted((2**64 - 1).to_bytes(8, "little") + b"x")


WRONG_JOBS = {
    "nothing": {},
    "something more": {**ABOUT_JOB, "more": 1},
    "another task": {**ABOUT_JOB, "task": "delete"},
    "no text as a task": {**ABOUT_JOB, "task": 1},
    "a task in a list": {**ABOUT_JOB, "task": ["train"]},
    "a round in words": {**ABOUT_JOB, "round": "3"},
    "a round that is true": {**ABOUT_JOB, "round": True},
    "half a round": {**ABOUT_JOB, "round": 2.5},
    "a whole round with a point": {**ABOUT_JOB, "round": 3.0},
    "a round before the first": {**ABOUT_JOB, "round": -1},
    "a client that is true": {**ABOUT_JOB, "client": True},
    "a client that is nobody": {**ABOUT_JOB, "client": None},
    "a client below zero": {**ABOUT_JOB, "client": -1},
    "a client of many digits": {**ABOUT_JOB, "client": 10**300},
    **{f"no {name}": {k: v for k, v in ABOUT_JOB.items() if k != name} for name in ABOUT_JOB},
}

WRONG_REPLIES = {
    "something more": {**ABOUT_REPLY, "refused": False},
    "a client that is true": {**ABOUT_REPLY, "client": True},
    "a round in words": {**ABOUT_REPLY, "round": "3"},
    "samples below zero": {**ABOUT_REPLY, "samples": -1},
    "samples that are true": {**ABOUT_REPLY, "samples": True},
    "more samples than a tensor can count": {**ABOUT_REPLY, "samples": 10**30},
    "metrics as a list": {**ABOUT_REPLY, "metrics": [0.5]},
    "metrics in words": {**ABOUT_REPLY, "metrics": {"loss": "0.5"}},
    "metrics that are true": {**ABOUT_REPLY, "metrics": {"loss": True}},
    "no metrics but null": {**ABOUT_REPLY, "metrics": None},
    "seconds below zero": {**ABOUT_REPLY, "seconds": -1.0},
    "seconds that are no number": {**ABOUT_REPLY, "seconds": NAN},
    "seconds without end": {**ABOUT_REPLY, "seconds": INF},
    "seconds that are true": {**ABOUT_REPLY, "seconds": True},
    "a process below zero": {**ABOUT_REPLY, "process": -1},
    "memory beyond any machine": {**ABOUT_REPLY, "memory": 2**63},
    "an error that is a number": {**ABOUT_REPLY, "error": 3},
    "an error that is false": {**ABOUT_REPLY, "error": False},
    **{f"no {name}": {k: v for k, v in ABOUT_REPLY.items() if k != name} for name in ABOUT_REPLY},
}


@pytest.mark.parametrize("about", WRONG_JOBS.values(), ids=WRONG_JOBS)
def test_a_job_that_is_not_as_agreed_is_refused(about: dict[str, Any]) -> None:
    with pytest.raises(PayloadError, match="not as agreed") as refusal:
        job_from_bytes(to_bytes(TENSORS, **about))
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize("about", WRONG_REPLIES.values(), ids=WRONG_REPLIES)
def test_a_reply_that_is_not_as_agreed_is_refused(about: dict[str, Any]) -> None:
    with pytest.raises(PayloadError, match="not as agreed") as refusal:
        reply_from_bytes(to_bytes(TENSORS, **about))
    assert len(str(refusal.value)) < 500


def test_a_job_is_no_reply_and_a_reply_no_job() -> None:
    with pytest.raises(PayloadError, match="not as agreed"):
        reply_from_bytes(job_to_bytes(JOB))
    with pytest.raises(PayloadError, match="not as agreed"):
        job_from_bytes(reply_to_bytes(REPLY))


def test_a_message_above_the_limit_is_refused() -> None:
    for message, read in ((job_to_bytes(JOB), job_from_bytes), (reply_to_bytes(REPLY), reply_from_bytes)):
        read(message, len(message))
        with pytest.raises(PayloadError, match="at most were expected"):
            read(message, len(message) - 1)


def test_what_was_sent_cannot_write_to_a_terminal() -> None:
    """An error and a name are shown to a coordinator; neither may hold a control sequence."""
    arrived = reply_from_bytes(to_bytes({}, **{**ABOUT_REPLY, "error": "bad\x1b[2J\r\x07\x9b1\u202eend\n\tnext"}))
    assert arrived.error == "bad?[2J???1?end\n\tnext"
    with pytest.raises(PayloadError) as refusal:
        reply_from_bytes(to_bytes({}, **{**ABOUT_REPLY, "\x1b]0;title\x07": 1}))
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("empty", ["", " ", "\n\t\n"])
def test_an_error_without_words_is_still_an_error(empty: str) -> None:
    """Whoever shows its first line must find one."""
    assert reply_from_bytes(reply_to_bytes(Reply(0, 1, error=empty))).error == "no reason was given."


def test_of_a_long_error_the_end_is_read() -> None:
    long = "\n".join(f"line {number}" for number in range(10_000))
    arrived = reply_from_bytes(reply_to_bytes(Reply(0, 1, error=long))).error
    assert arrived is not None and len(arrived) == WORDS and arrived.endswith("\nline 9999")


texts = st.sampled_from(["", "train", "loss", "3", "\x1b[2J", "\ud800", "ü" * 300])
plain = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = plain | st.lists(plain, max_size=2) | st.dictionaries(texts, plain, max_size=2)


@given(st.dictionaries(st.sampled_from(sorted({*ABOUT_JOB, *ABOUT_REPLY})), values, max_size=3))
def test_whatever_is_said_it_is_read_or_refused(changes: dict[str, Any]) -> None:
    for about, read in ((ABOUT_JOB, job_from_bytes), (ABOUT_REPLY, reply_from_bytes)):
        text = json.dumps({**about, **changes})
        header = json.dumps({"__metadata__": {"about": text}}).encode()
        try:
            read(len(header).to_bytes(8, "little") + header)
        except PayloadError:
            continue


def test_no_spoilt_message_does_anything_but_being_refused() -> None:
    seeds = {job_from_bytes: [job_to_bytes(JOB)], reply_from_bytes: [reply_to_bytes(REPLY)]}
    outcomes = {"read": 0, "refused": 0}
    for read, (good,) in seeds.items():
        rng, others = Random(6), [message for messages in seeds.values() for message in messages]
        for _ in range(800):
            spoilt = spoil(rng, good, others)
            try:
                read(spoilt, 1 << 21)
                outcomes["read"] += 1
            except PayloadError:
                outcomes["refused"] += 1
    assert outcomes["read"] > 30 and outcomes["refused"] > 500  # both sides are tried
