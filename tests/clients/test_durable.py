"""Clients whose state is on disk: killed, asked twice, or asked to go back, they end where they would have ended."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import toy

from protea.clients import durable as stations
from protea.clients.durable import KEEP, Station
from protea.clients.worker import Worker
from protea.core.payload import Named
from protea.core.prototypes import Prototypes
from protea.engines.messages import job_to_bytes, reply_from_bytes
from protea.federation.jobs import Job, Task
from protea.methods.fedproto import FedProto
from protea.methods.fml import FML


def worker() -> Worker:
    return Worker(FedProto(), toy.build, seed=4, careful=True)


def down(seed: int) -> Named:
    """Prototypes as a server would send them: other ones for each seed."""
    vectors = torch.randn(toy.CLASSES, toy.DIM, generator=torch.Generator().manual_seed(seed))
    return {"vectors": vectors, "counts": torch.ones(toy.CLASSES)}


def ask(station: Station, round: int, task: Task = "train", client: int = 2, seed: int | None = None) -> bytes:
    return station.answer(job_to_bytes(Job(task, round, client, down(round if seed is None else seed))))


def up(answer: bytes) -> dict[str, bytes]:
    """What was sent, to the bit; seconds differ from machine to machine."""
    reply = reply_from_bytes(answer)
    assert reply.error is None
    return {"loss": repr(reply.metrics).encode()} | {
        name: tensor.numpy().tobytes() for name, tensor in sorted(reply.up.items())
    }


def states(folder: Path, client: int = 2) -> dict[str, bytes]:
    """Everything that is kept of a client's rounds, without the answers."""
    home = folder / f"client-{client:03d}"
    return {p.relative_to(home).as_posix(): p.read_bytes() for p in home.rglob("*.safetensors")}


@pytest.fixture
def station(tmp_path: Path) -> Station:
    return Station(worker(), tmp_path / "state")


def expected(tasks: list[tuple[Task, int]], client: int = 2) -> list[dict[str, bytes]]:
    """The same by a plain worker, that is never killed and never asked twice."""
    plain, found = worker(), []
    for task, round in tasks:
        reply = plain.run(Job(task, round, client, down(round)))
        assert reply.error is None
        named = {name: tensor.numpy().tobytes() for name, tensor in sorted(reply.up.items())}
        found.append({"loss": repr(reply.metrics).encode()} | named)
    return found


ROUNDS: list[tuple[Task, int]] = [
    ("train", 1), ("evaluate", 1), ("train", 2), ("evaluate", 2), ("train", 5), ("evaluate", 5), ("train", 6),
]  # fmt: skip


@pytest.mark.parametrize("client", range(toy.CLIENTS))
def test_it_answers_as_a_plain_worker_does(station: Station, client: int) -> None:
    answers = [up(ask(station, round, task, client)) for task, round in ROUNDS]
    assert answers == expected(ROUNDS, client)
    assert len({answer["vectors"] for answer in answers if "vectors" in answer}) == 4  # no two rounds are alike


def test_it_does_so_if_its_process_is_a_new_one_each_time(tmp_path: Path) -> None:
    assert [up(ask(Station(worker(), tmp_path), round, task)) for task, round in ROUNDS] == expected(ROUNDS)


def test_a_method_with_a_model_in_the_clients_memory_goes_on_too(tmp_path: Path) -> None:
    def make() -> Worker:
        return Worker(FML(), toy.build, seed=4, careful=True)

    plain = make()
    for round in range(1, 4):
        job = Job("train", round, 0)
        arrived = reply_from_bytes(Station(make(), tmp_path).answer(job_to_bytes(job)))
        alone = plain.run(job)
        assert alone.error is None and arrived.error is None and arrived.up.keys() == alone.up.keys()
        assert all(torch.equal(arrived.up[name], alone.up[name]) for name in alone.up)


def test_a_job_asked_twice_is_answered_from_disk(station: Station) -> None:
    ask(station, 1)
    first, kept = ask(station, 2), states(station.folder)
    assert ask(station, 2) == first  # with the same seconds: nothing was trained
    assert ask(Station(worker(), station.folder), 2) == first
    assert states(station.folder) == kept


def test_a_server_that_goes_back_one_round_has_it_trained_from_the_state_before(station: Station) -> None:
    for round in (1, 2, 3):
        ask(station, round)
    again = ask(station, 3, seed=33)  # another job of that round
    plain = worker()
    for round, seed in ((1, 1), (2, 2), (3, 33)):
        alone = plain.run(Job("train", round, 2, down(seed)))
    assert all(torch.equal(tensor, alone.up[name]) for name, tensor in reply_from_bytes(again).up.items())
    assert sorted({name.partition("/")[0] for name in states(station.folder)}) == ["000002", "000003"]


def test_a_server_that_goes_back_too_far_is_told_so(station: Station) -> None:
    for round in (1, 2, 3):
        ask(station, round)
    kept = states(station.folder)
    reply = reply_from_bytes(ask(station, 2, seed=22))
    assert reply.error is not None and "trained up to round 3, and its state before round 2 is kept no longer" in (
        reply.error
    )
    assert reply.up == {} and states(station.folder) == kept
    assert up(ask(station, 4)) == expected([("train", round) for round in (1, 2, 3, 4)])[-1]  # and no harm is done


def test_an_older_round_is_evaluated_as_it_was_and_the_next_goes_on_from_the_newest(station: Station) -> None:
    """A look back must not be trained upon."""
    tasks: list[tuple[Task, int]] = [("train", 1), ("evaluate", 1), ("train", 2), ("evaluate", 2), ("train", 3)]
    wanted = expected(tasks)
    ask(station, 1), ask(station, 2)
    assert up(ask(station, 1, "evaluate")) == wanted[1]
    assert up(ask(station, 2)) == wanted[2]  # asked again: answered from disk
    assert up(ask(station, 2, "evaluate")) == wanted[3]
    assert up(ask(station, 1, "evaluate")) == wanted[1]
    assert up(ask(station, 3)) == wanted[4]


def test_the_newest_rounds_are_on_disk_and_no_others(station: Station) -> None:
    for round in range(1, 6):
        ask(station, round)
        ask(station, round, "evaluate")
    names = sorted(path.name for path in (station.folder / "client-002").iterdir())
    assert KEEP == 2 and names == ["000004", "000005"]
    files = sorted(path.name for path in (station.folder / "client-002" / "000005").iterdir())
    assert files == ["client-002.safetensors", "job", "reply"]
    assert station.newest(2) == station.folder / "client-002" / "000005" and station.newest(3) is None


def test_a_training_that_failed_leaves_nothing(station: Station) -> None:
    ask(station, 1)
    kept = states(station.folder)
    wrong = Job("train", 2, 2, {"vectors": torch.ones(1, 1), "counts": torch.ones(1)})
    assert reply_from_bytes(station.answer(job_to_bytes(wrong))).error is not None
    assert states(station.folder) == kept
    assert up(ask(station, 2)) == expected([("train", 1), ("train", 2)])[-1]


def test_a_round_that_could_not_be_written_is_not_trained_twice(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after the training: the server hears of an error, and asks again later."""
    ask(station, 1)

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(stations, "write_bytes", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                ask(station, 2)
    assert up(ask(station, 2)) == expected([("train", 1), ("train", 2)])[-1]


def test_what_a_killed_process_left_is_cleared_away(station: Station) -> None:
    ask(station, 1), ask(station, 2)
    home = station.folder / "client-002"
    shutil.copytree(home / "000002", home / ".000003")
    (home / ".000003" / "reply").unlink()
    shutil.copytree(home / "000001", home / ".dropped-000000")
    (home / ".hidden").write_text("not ours")
    again = Station(worker(), station.folder)
    again.tidy()
    assert sorted(path.name for path in home.iterdir()) == [".hidden", "000001", "000002"]
    assert up(ask(again, 3)) == expected([("train", round) for round in (1, 2, 3)])[-1]


def test_leftovers_are_no_hindrance_where_nobody_tidies(station: Station) -> None:
    ask(station, 1), ask(station, 2)
    home = station.folder / "client-002"
    for left in (".000003", ".dropped-000001"):
        shutil.copytree(home / "000001", home / left)
    assert up(ask(station, 3)) == expected([("train", round) for round in (1, 2, 3)])[-1]
    assert sorted(path.name for path in home.iterdir()) == ["000002", "000003"]


DRIVER = """
import os, signal, sys
from pathlib import Path
import test_durable
from protea.federation.jobs import station as stations

def life(place, true):
    def killed(*given):
        if ".000003" in str(given):
            if place == "write_bytes":
                given[0].write_bytes(given[1][: len(given[1]) // 2])  # half of it
            if place == "sync":
                true(*given)
            os.kill(os.getpid(), signal.SIGKILL)
        return true(*given)

    setattr(stations, place, killed)
    station = stations.Station(test_durable.worker(), Path(sys.argv[1], place))
    for round in range(1, 4):
        test_durable.ask(station, round)

for place in sys.argv[2:]:
    if not (child := os.fork()):
        life(place, getattr(stations, place))
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
"""
PLACES = ["save_client", "write_bytes", "write_text", "sync"]  # before the first, in the second, after the last


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_killed_while_it_writes_it_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", DRIVER, str(tmp_path), *PLACES], env=environment, check=True)
    wanted = expected([("train", round) for round in (1, 2, 3, 4)])
    for place in PLACES:
        names = sorted(path.name for path in (tmp_path / place / "client-002").iterdir())
        assert names == [".000003", "000001", "000002"]
        station = Station(worker(), tmp_path / place)
        station.tidy()
        assert [up(ask(station, round)) for round in (2, 3, 4)] == wanted[1:]


def test_clients_go_on_from_where_an_earlier_run_left_them(tmp_path: Path) -> None:
    plain = worker()
    plain.run(Job("train", 1, 2, down(1)))
    (tmp_path / "saved").mkdir()
    plain.save(tmp_path / "saved")
    station = Station(worker(), tmp_path / "state", tmp_path / "saved")
    assert up(ask(station, 2)) == expected([("train", 1), ("train", 2)])[-1]
    assert up(ask(station, 2, seed=2)) == expected([("train", 1), ("train", 2)])[-1]
    assert Prototypes.from_flat(reply_from_bytes(ask(station, 2)).up).present.any()
