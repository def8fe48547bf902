"""Worker processes: who lives where, and what happens when one of them, or the parent, goes away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch.nn.functional as F
import toy

import protea
from protea import Client, Data, Experiment, Method
from protea.config import load
from protea.data.sources.spiral import Spiral
from protea.engines import EngineSettings, Job, Reply
from protea.engines.inline import Inline
from protea.engines.processes import Processes
from protea.errors import ClientError, ConfigError
from protea.experiment import resume
from protea.federation import Federation
from protea.methods.fedproto import FedProto
from protea.methods.local import Local
from protea.models import Models
from protea.record import Record
from protea.training import Training
from protea.worker import Worker

pytestmark = pytest.mark.xdist_group("engines")

TWO = EngineSettings(workers=2)


def federation(engine: Any, rounds: int = 3, **options: Any) -> Federation:
    return Federation(engine.worker.method, engine, toy.server(), toy.CLIENTS, rounds, **options)


def engine(method: Method[Any, Any], settings: EngineSettings = TWO, build: Any = toy.build) -> Processes:
    worker = Worker(method, build, seed=7)
    made = Processes(worker, settings)
    made.worker = worker  # type: ignore[attr-defined]
    return made


def pids(engine: Processes) -> set[int]:
    found = {process.process.pid for process in engine.pool}
    assert None not in found and os.getpid() not in found
    return found  # type: ignore[return-value]


def without_cost(records: Any) -> list[Record]:
    return [replace(record, cost={}) for record in records]


def until(true: Callable[[], bool]) -> bool:
    """Whether it comes true within a minute, which is for ever."""
    for _ in range(1200):
        if true():
            return True
        time.sleep(0.05)
    return False


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


# Lending


def test_processes_serve_one_run_after_another():
    with closing(engine(Local())) as first:
        assert len(pids(first)) == 2
    with closing(engine(Local())) as second:
        assert pids(second) == pids(first)


def test_two_runs_at_once_do_not_share_processes_and_do_not_mix():
    with closing(engine(Local())) as one, closing(engine(FedProto())) as other:
        assert not pids(one) & pids(other)
        pairs = list(zip(federation(one).run(), federation(other).run(), strict=True))
    for index, method in enumerate((Local(), FedProto())):
        alone = federation(Inline(Worker(method, toy.build, seed=7))).run()
        assert without_cost(pair[index] for pair in pairs) == without_cost(alone)


def test_a_client_stays_in_its_process():
    jobs = [Job("train", round, client) for round in (1, 2, 3) for client in range(4)]
    with closing(engine(Tells())) as workers:
        homes = [[reply.error for reply in workers.map(jobs[start : start + 4])] for start in (0, 4, 8)]
    assert homes[0] == homes[1] == homes[2] and all(home is not None for home in homes[0])


def test_processes_work_where_their_parent_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    engine(Local()).close()
    monkeypatch.chdir(tmp_path)
    with closing(engine(Tells())) as workers:
        (reply,) = workers.map([Job("train", 1, 0)])
        assert str(reply.error).endswith(f"at {tmp_path}")
        workers.save(Path())
    assert [path.name for path in tmp_path.iterdir()] == ["client-000.safetensors"]


def test_an_experiment_gives_the_same_numbers_as_in_one_process():
    """Here data are mapped from a file, unlike in the contract tests."""
    experiment = Experiment(
        rounds=2, clients=3, models=Models(dim=16), training=Training(batch=64), engine=TWO,
        data=Data(source=Spiral(classes=3, points=60), public=9),
    )  # fmt: skip
    here = replace(experiment, engine=EngineSettings("inline"))
    assert without_cost(protea.rounds(experiment)) == without_cost(protea.rounds(here))


# A client that fails


def test_a_client_that_raises_is_an_error_value_and_its_process_lives_on():
    with closing(engine(Stumbles())) as workers:
        before = pids(workers)
        records = list(federation(workers, failures="skip").run())
        assert pids(workers) == before and not any(gone(pid) for pid in before)
    assert [sorted(record.failures) for record in records] == [[], [1], []]
    assert "client 1, round 2:" in records[1].failures[1]
    assert "in local_update" in records[1].failures[1] and "RuntimeError: it stumbled" in records[1].failures[1]


def test_a_killed_process_is_an_error_value_for_each_of_its_clients():
    seen: list[Reply] = []
    with closing(engine(Dies())) as workers:
        records = list(federation(workers, failures="skip", watch=seen.append).run())
    lost = sorted(records[1].failures)
    assert [sorted(record.failures) for record in records] == [[], lost, lost] and 1 in lost and len(lost) < 4
    for client in lost:
        assert records[1].failures[client].startswith(f"client {client}: its worker process was killed (SIGKILL)")
    others = [client for client in range(4) if client not in lost]
    judged = [[line["client"] for line in record.clients if "test/method" in line] for record in records]
    tested = [client for client in range(4) if client != 1]  # which has no test samples
    assert judged == [tested, *2 * [[client for client in others if client in tested]]]
    assert len(seen) == 3 * (4 + 4)  # a reply to every job of training and evaluation, also to those lost


def test_a_killed_process_stops_a_run_that_wants_all_clients():
    with closing(engine(Dies())) as workers:
        with pytest.raises(
            ClientError, match=r"client \d: its worker process was killed \(SIGKILL\), and the client's st"
        ):
            list(federation(workers).run())
        dead = {process.process.pid for process in workers.pool if process.dead}
        assert len(dead) == 1
    with closing(engine(Local())) as again:  # with a new process in place of the dead one
        assert not pids(again) & dead
        assert len(list(federation(again).run())) == 3


def test_a_run_ends_when_no_process_is_left():
    with closing(engine(Dies(client=0, round=1), EngineSettings(workers=1))) as workers:
        loop = federation(workers, failures="skip")
        with pytest.raises(ClientError, match="No worker process is left: all were killed"):
            list(loop.run())


# What cannot be sent


def test_what_cannot_be_pickled_is_named_at_once_and_the_processes_stay_usable():
    @dataclass(frozen=True)
    class Inner(Local): ...

    for method, build in ((Inner(), toy.build), (Local(), lambda id, streams: toy.build(id, streams))):
        with pytest.raises(ConfigError, match=r"(?s)cannot be sent to worker processes: .*set engine\.name=inline"):
            engine(method, build=build)
    with closing(engine(Local())) as workers:
        assert len(list(federation(workers).run())) == 3


def test_what_cannot_be_found_by_the_workers_is_named_at_once(monkeypatch: pytest.MonkeyPatch):
    """As with a class that only a notebook has."""
    ghost = ModuleType("ghost")
    monkeypatch.setitem(sys.modules, "ghost", ghost)
    exec("from protea.methods.local import Local\nclass Ghost(Local): ...", vars(ghost))
    with pytest.raises(ConfigError, match="No module named 'ghost'"):
        engine(ghost.Ghost())
    with closing(engine(Local())) as workers:
        assert len(list(federation(workers).run())) == 3


# A parent that goes away


def test_an_exception_in_the_middle_of_a_round_ends_the_processes():
    def interrupt(reply: Reply) -> None:
        raise KeyboardInterrupt

    with closing(engine(Local())) as workers:
        old = pids(workers)
        with pytest.raises(KeyboardInterrupt):
            list(federation(workers, watch=interrupt).run())
    assert all(until(lambda pid=pid: gone(pid)) for pid in old)
    with closing(engine(Local())) as fresh:
        assert not pids(fresh) & old
        assert len(list(federation(fresh).run())) == 3


WAITING = """
rounds = 4
clients = 4
method = "test_processes:Waits"
engine = { name = "processes", workers = 2 }
checkpoint.every = 1
data.source = { kind = "spiral", classes = 3, points = 60 }
models = { family = "tiny_mlp", dim = 16 }
training.batch = 64
"""


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """A run of its own, in round 3 of which every client waits for a file called ``go``."""
    monkeypatch.chdir(tmp_path)
    Path("exp.toml").write_text(WAITING)
    command = "from protea.cli import main; main()"
    run = subprocess.Popen(
        [sys.executable, "-c", command, "run", "exp.toml", "--out", "broken"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # it and all that it starts can be told from other processes
    )
    try:
        assert until(lambda: bool(list(Path.cwd().glob("waits-*"))) or run.poll() is not None)
        yield run
    finally:
        run.kill()
        run.communicate()


def session(leader: int) -> set[int]:
    """All running processes of a session."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(session) == leader and state != "Z":
            found.add(int(stat.parent.name))
    return found


def goes_on_to_the_same_end() -> None:
    Path("go").touch()
    broken = resume("broken")
    assert [record.round for record in broken.records] == [1, 2, 3, 4]
    assert without_cost(broken.records) == without_cost(protea.rounds(load(Path("exp.toml"))))


linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@linux
def test_ctrl_c_leaves_no_process_and_a_run_that_can_go_on(waiting: subprocess.Popen[str]):
    assert len(session(waiting.pid)) >= 3  # itself and two workers
    os.killpg(waiting.pid, signal.SIGINT)  # as a terminal does: all of them get it
    out, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 130 and err.strip() == "Stopped.  Go on after round 2: protea resume broken"
    assert [line.split()[2] for line in out.splitlines()] == ["1/4", "2/4"]
    assert until(lambda: not session(waiting.pid))
    goes_on_to_the_same_end()


@linux
def test_a_killed_parent_leaves_no_process_and_a_run_that_can_go_on(waiting: subprocess.Popen[str]):
    assert len(session(waiting.pid)) >= 3
    waiting.kill()
    waiting.wait(timeout=60)
    Path("go").touch()  # workers notice when they are done with what they do
    assert until(lambda: not session(waiting.pid))
    goes_on_to_the_same_end()


# Methods, here so that workers can import them


@dataclass(frozen=True)
class Tells(Local):
    """Where a client lives, as the only thing that it can say: an error."""

    def local_update(self, client: Client, down: None) -> None:
        raise ClientError(f"client {client.id} lives in {os.getpid()} at {Path.cwd()}")


@dataclass(frozen=True)
class Stumbles(Local):
    def local_update(self, client: Client, down: None) -> None:
        if (client.id, client.round) == (1, 2):
            raise RuntimeError("it stumbled")
        super().local_update(client, down)


@dataclass(frozen=True)
class Dies(Local):
    client: int = 1
    round: int = 2

    def local_update(self, client: Client, down: None) -> None:
        client.fit(lambda x, y: F.cross_entropy(client.model(x), y))
        if (client.id, client.round) == (self.client, self.round):
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Waits(Local):
    def local_update(self, client: Client, down: None) -> None:
        super().local_update(client, down)
        if client.round == 3:
            Path(f"waits-{client.id}").touch()
            until(Path("go").exists)


def test_the_forkserver_has_what_the_first_optimizer_would_import():
    """Or every worker would import it by itself, which takes seconds."""
    look = "import protea.engines.preload, sys; sys.exit('torch._dynamo' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], check=False).returncode == 0
