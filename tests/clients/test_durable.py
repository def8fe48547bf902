"""Clients whose state is on disk: killed, asked twice, or asked to go back, they end where they would have ended."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import toy

from protea.clients import durable as durables
from protea.clients.durable import KEEP, DurableWorker, newest_state
from protea.clients.worker import Worker
from protea.core.message import Named
from protea.core.prototypes import Prototypes
from protea.engines.messages import job_to_bytes, reply_from_bytes, reply_to_bytes
from protea.engines.processes.forkserver import processes
from protea.federation.jobs import Job, JobKind
from protea.methods.fedproto import FedProto
from protea.methods.fml import FML


def worker() -> Worker:
    return toy.worker(FedProto(), toy.build, seed=4, careful=True)


def down(seed: int) -> Named:
    """Prototypes as a server would send them: other ones for each seed."""
    vectors = torch.randn(toy.CLASSES, toy.DIM, generator=torch.Generator().manual_seed(seed))
    return {"vectors": vectors, "counts": torch.ones(toy.CLASSES)}


def durable(folder: Path, first: Path | None = None) -> DurableWorker:
    return DurableWorker(worker().plan, folder, reply_to_bytes, first)


def ask(durable: DurableWorker, round: int, task: JobKind = "train", client: int = 2, seed: int | None = None) -> bytes:
    return answer(durable, Job(task, round, client, down(round if seed is None else seed)))


def answer(durable: DurableWorker, job: Job) -> bytes:
    return durable.answer(job, job_to_bytes(job))


def up(answer: bytes) -> dict[str, bytes]:
    """What was sent, to the bit; seconds differ from machine to machine."""
    reply = reply_from_bytes(answer)
    assert reply.error is None
    return {"loss": repr(reply.metrics).encode()} | {
        name: tensor.numpy().tobytes() for name, tensor in sorted(reply.up.items())
    }


def states(folder: Path, client: int = 2) -> dict[str, bytes]:
    """Everything that is kept of a client's rounds, without the answers."""
    own = folder / f"client-{client:03d}"
    return {p.relative_to(own).as_posix(): p.read_bytes() for p in own.rglob("*.safetensors")}


@pytest.fixture
def trained(tmp_path: Path) -> DurableWorker:
    return durable(tmp_path / "state")


def expected(tasks: list[tuple[JobKind, int]], client: int = 2) -> list[dict[str, bytes]]:
    """The same by a plain worker, that is never killed and never asked twice."""
    plain, found = worker(), []
    for task, round in tasks:
        reply = plain.run(Job(task, round, client, down(round)))
        assert reply.error is None
        named = {name: tensor.numpy().tobytes() for name, tensor in sorted(reply.up.items())}
        found.append({"loss": repr(reply.metrics).encode()} | named)
    return found


ROUNDS: list[tuple[JobKind, int]] = [
    ("train", 1), ("evaluate", 1), ("train", 2), ("evaluate", 2), ("train", 5), ("evaluate", 5), ("train", 6),
]  # fmt: skip


@pytest.mark.parametrize("client", range(toy.CLIENTS))
def test_it_answers_as_a_plain_worker_does(trained: DurableWorker, client: int) -> None:
    answers = [up(ask(trained, round, task, client)) for task, round in ROUNDS]
    assert answers == expected(ROUNDS, client)
    assert len({answer["vectors"] for answer in answers if "vectors" in answer}) == 4  # no two rounds are the same


def test_it_does_so_if_its_process_is_a_new_one_each_time(tmp_path: Path) -> None:
    assert [up(ask(durable(tmp_path), round, task)) for task, round in ROUNDS] == expected(ROUNDS)


def test_a_method_with_a_model_in_the_clients_memory_goes_on_too(tmp_path: Path) -> None:
    plain = toy.worker(FML(), toy.build, seed=4, careful=True)
    for round in range(1, 4):
        job = Job("train", round, 0)
        arrived = reply_from_bytes(answer(DurableWorker(plain.plan, tmp_path, reply_to_bytes), job))
        alone = plain.run(job)
        assert alone.error is None and arrived.error is None and arrived.up.keys() == alone.up.keys()
        assert all(torch.equal(arrived.up[name], alone.up[name]) for name in alone.up)


def test_a_job_asked_twice_is_answered_from_disk(trained: DurableWorker) -> None:
    ask(trained, 1)
    first, kept = ask(trained, 2), states(trained.store.folder)
    assert ask(trained, 2) == first  # with the same seconds: nothing was trained
    assert ask(durable(trained.store.folder), 2) == first
    assert states(trained.store.folder) == kept


def test_a_server_that_goes_back_one_round_has_it_trained_from_the_state_before(trained: DurableWorker) -> None:
    for round in (1, 2, 3):
        ask(trained, round)
    again = ask(trained, 3, seed=33)  # another job of that round
    plain = worker()
    for round, seed in ((1, 1), (2, 2), (3, 33)):
        alone = plain.run(Job("train", round, 2, down(seed)))
    assert all(torch.equal(tensor, alone.up[name]) for name, tensor in reply_from_bytes(again).up.items())
    assert sorted({name.partition("/")[0] for name in states(trained.store.folder)}) == ["000001", "000002", "000003"]


def test_a_server_that_goes_back_too_far_is_told_so(trained: DurableWorker) -> None:
    for round in (1, 2, 3, 4):
        ask(trained, round)
    kept = states(trained.store.folder)
    reply = reply_from_bytes(ask(trained, 2, seed=22))
    assert reply.error is not None and "trained up to round 4, and its state before round 2 is kept no longer" in (
        reply.error
    )
    assert reply.up == {} and states(trained.store.folder) == kept
    assert up(ask(trained, 5)) == expected([("train", round) for round in (1, 2, 3, 4, 5)])[-1]  # and no harm is done


def test_an_older_round_is_evaluated_as_it_was_and_the_next_goes_on_from_the_newest(trained: DurableWorker) -> None:
    """A look back must not be trained upon."""
    tasks: list[tuple[JobKind, int]] = [("train", 1), ("evaluate", 1), ("train", 2), ("evaluate", 2), ("train", 3)]
    wanted = expected(tasks)
    ask(trained, 1), ask(trained, 2)
    assert up(ask(trained, 1, "evaluate")) == wanted[1]
    assert up(ask(trained, 2)) == wanted[2]  # asked again: answered from disk
    assert up(ask(trained, 2, "evaluate")) == wanted[3]
    assert up(ask(trained, 1, "evaluate")) == wanted[1]
    assert up(ask(trained, 3)) == wanted[4]


def test_the_newest_rounds_are_on_disk_and_no_others(trained: DurableWorker) -> None:
    for round in range(1, 6):
        ask(trained, round)
        ask(trained, round, "evaluate")
    names = sorted(path.name for path in (trained.store.folder / "client-002").iterdir())
    assert KEEP == 3 and names == ["000003", "000004", "000005"]
    files = sorted(path.name for path in (trained.store.folder / "client-002" / "000005").iterdir())
    assert files == ["client-002.safetensors", "job", "reply"]
    assert newest_state(trained.store.folder, 2) == trained.store.folder / "client-002" / "000005"
    assert newest_state(trained.store.folder, 3) is None


def test_a_training_that_failed_leaves_nothing(trained: DurableWorker) -> None:
    ask(trained, 1)
    kept = states(trained.store.folder)
    wrong = Job("train", 2, 2, {"vectors": torch.ones(1, 1), "counts": torch.ones(1)})
    assert reply_from_bytes(answer(trained, wrong)).error is not None
    assert states(trained.store.folder) == kept
    assert up(ask(trained, 2)) == expected([("train", 1), ("train", 2)])[-1]


def test_a_round_that_could_not_be_written_is_not_trained_twice(
    trained: DurableWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after the training: the server hears of an error, and asks again later."""
    ask(trained, 1)

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(durables, "write_bytes", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                ask(trained, 2)
    assert up(ask(trained, 2)) == expected([("train", 1), ("train", 2)])[-1]


def test_what_a_killed_process_left_is_cleared_away(trained: DurableWorker) -> None:
    ask(trained, 1), ask(trained, 2)
    own = trained.store.folder / "client-002"
    shutil.copytree(own / "000002", own / ".000003")
    (own / ".000003" / "reply").unlink()
    shutil.copytree(own / "000001", own / ".dropped-000000")
    (own / ".hidden").write_text("not ours")
    again = durable(trained.store.folder)
    again.store.tidy()
    assert sorted(path.name for path in own.iterdir()) == [".hidden", "000000", "000001", "000002"]
    assert up(ask(again, 3)) == expected([("train", round) for round in (1, 2, 3)])[-1]


def test_leftovers_are_no_hindrance_where_nobody_tidies(trained: DurableWorker) -> None:
    ask(trained, 1), ask(trained, 2)
    own = trained.store.folder / "client-002"
    for left in (".000003", ".dropped-000000"):
        shutil.copytree(own / "000001", own / left)
    assert up(ask(trained, 3)) == expected([("train", round) for round in (1, 2, 3)])[-1]
    assert sorted(path.name for path in own.iterdir()) == ["000001", "000002", "000003"]


PLACES = ["save_client", "write_bytes", "write_text", "sync_folder"]  # before the first, in the second, after the last


def die(place: str, folder: Path) -> None:
    """Train three rounds in this process, and be killed at that place while the third is written."""
    true = getattr(durables, place)

    def killed(*given: Any) -> Any:
        if ".000003" in str(given):
            if place == "write_bytes":
                given[0].write_bytes(given[1][: len(given[1]) // 2])  # half of it
            if place == "sync_folder":
                true(*given)
            os.kill(os.getpid(), signal.SIGKILL)
        return true(*given)

    setattr(durables, place, killed)
    worker = durable(folder / place)
    for round in range(1, 4):
        ask(worker, round)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_killed_while_it_writes_it_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    for place in PLACES:
        process = processes().Process(target=die, args=(place, tmp_path))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    wanted = expected([("train", round) for round in (1, 2, 3, 4)])
    for place in PLACES:
        names = sorted(path.name for path in (tmp_path / place / "client-002").iterdir())
        assert names == [".000003", "000000", "000001", "000002"]
        again = durable(tmp_path / place)
        again.store.tidy()
        assert [up(ask(again, round)) for round in (2, 3, 4)] == wanted[1:]


def test_clients_go_on_from_where_an_earlier_run_left_them(tmp_path: Path) -> None:
    plain = worker()
    plain.run(Job("train", 1, 2, down(1)))
    (tmp_path / "saved").mkdir()
    plain.save(tmp_path / "saved")
    goes_on = durable(tmp_path / "state", tmp_path / "saved")
    assert up(ask(goes_on, 2)) == expected([("train", 1), ("train", 2)])[-1]
    assert up(ask(goes_on, 2, seed=2)) == expected([("train", 1), ("train", 2)])[-1]
    assert Prototypes.from_flat(reply_from_bytes(ask(goes_on, 2)).up).present.any()


def test_a_store_gives_its_newest_states_and_goes_on_from_saved_ones(trained: DurableWorker, tmp_path: Path) -> None:
    for round in (1, 2):
        ask(trained, round)
    saved = tmp_path / "saved"
    saved.mkdir()
    trained.store.save(saved)
    assert [path.name for path in saved.iterdir()] == ["client-002.safetensors"]
    third = up(ask(trained, 3))
    trained.store.load(saved)
    assert states(trained.store.folder) == {} and up(ask(trained, 3)) == third
    trained.store.forget(2)
    assert trained.store.get(2).id == 2 and trained.store.clients.keys() == {2}  # from disk
    assert up(ask(trained, 4)) == expected([("train", round) for round in (1, 2, 3, 4)])[-1]
