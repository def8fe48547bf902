"""Notices: a question for messages waits until there is one, and never takes a message with it to nowhere."""

from __future__ import annotations

import asyncio
import threading

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

from protea.engines.flower.node import FAST, SLOW, pause
from protea.engines.flower.notices import Notices

NORTH, SOUTH = b"north", b"south"


def here() -> bool:
    return False


async def asking(notices: Notices, key: bytes, gone: object = here) -> asyncio.Task[bool]:
    task = asyncio.create_task(notices.until_message(key, gone, 10.0))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert not task.done()
    return task


def test_a_question_waits_for_a_message_to_its_own_site() -> None:
    async def play() -> None:
        notices = Notices()
        north, south = await asking(notices, NORTH), await asking(notices, SOUTH)
        thread = threading.Thread(target=notices.message_for, args=(NORTH,))  # as the coordinator's is another one
        thread.start()
        thread.join()
        assert await north
        assert not south.done()
        south.cancel()

    asyncio.run(play())


def test_a_message_before_the_question_lets_just_one_pass() -> None:
    async def play() -> None:
        notices = Notices()
        notices.message_for(NORTH)
        assert await notices.until_message(NORTH, here, 10.0)
        second = await asking(notices, NORTH)
        second.cancel()

    asyncio.run(play())


def test_a_question_passes_after_a_while_without_any_notice() -> None:
    assert asyncio.run(Notices().until_message(NORTH, here, 0.0))


def test_the_newest_question_of_a_site_gets_the_message() -> None:
    """The former one is of a process that was killed, or of a line that was cut: what it took would be lost."""

    async def play() -> None:
        notices = Notices()
        former = await asking(notices, NORTH)
        newest = await asking(notices, NORTH)
        assert not await former
        notices.message_for(NORTH)
        assert await newest

    asyncio.run(play())


def test_nobody_asks_for_who_has_gone() -> None:
    async def play() -> None:
        notices, left = Notices(), list[bool]()
        question = await asking(notices, NORTH, lambda: bool(left))
        left.append(True)
        notices.message_for(NORTH)
        assert not await question
        assert await notices.until_message(NORTH, here, 10.0)  # the message waits for whoever comes back

    asyncio.run(play())


def test_all_questions_pass_when_the_server_is_another_one() -> None:
    async def play() -> None:
        notices = Notices()
        questions = [await asking(notices, key) for key in (NORTH, SOUTH)]
        notices.wake()
        assert await asyncio.gather(*questions) == [True, True]

    asyncio.run(play())


def test_the_coordinator_asks_once_for_each_reply() -> None:
    notices = Notices()
    assert not notices.until_reply(0.0)
    notices.reply_came()
    assert notices.until_reply(0.0) and not notices.until_reply(0.0)


def test_a_site_that_was_held_asks_again_at_once_and_one_that_was_not_more_and_more_seldom() -> None:
    assert pause(0.0, 0.001) == pause(100.0, 20.0) == FAST
    assert FAST < pause(10.0, 0.001) < pause(20.0, 0.001) < pause(1000.0, 0.001) == SLOW
