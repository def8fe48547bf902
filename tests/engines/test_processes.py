"""Worker processes: who lives where, and what happens when one of them, or the parent, goes away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch.nn.functional as F
import toy
from night import by_night
from torch import Tensor
from waiting import until
from warm_session import Session

import protea
from protea import Client, Data, Experiment, Method, Prototypes
from protea.config.experiment import load_experiment
from protea.config.families import Models
from protea.config.sections import Engine
from protea.core.errors import ClientError, ConfigError
from protea.core.training import Training
from protea.data.sources.spiral import Spiral
from protea.engines import scheduler
from protea.engines.inline import Inline
from protea.engines.processes.engine import Processes
from protea.engines.processes.forkserver import processes
from protea.federation.jobs import Job, Reply, Watch, ignore
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.federation.record import Cost, Record
from protea.methods.fedproto import FedProto
from protea.methods.local import Local
from protea.runs.run import resume

TWO = Engine(workers=2)


def federation(engine: Any, rounds: int = 3, watch: Watch = ignore, **options: Any) -> Federation:
    plan = FederationPlan(clients=toy.CLIENTS, rounds=rounds, **options)
    return Federation(method_of(engine), engine, toy.server(), plan, watch=watch)


def engine(method: Method[Any, Any], settings: Engine = TWO, build: Any = toy.build) -> Processes:
    return Processes(toy.plan(method, build, seed=7), settings)


def method_of(engine: Any) -> Method[Any, Any]:
    """The method that an engine was made for."""
    found: Method[Any, Any] = engine.worker.method if isinstance(engine, Inline) else engine.plan.method
    return found


def pids(engine: Processes) -> set[int]:
    found = {process.process.pid for process in engine.pool}
    assert None not in found and os.getpid() not in found
    return found  # type: ignore[return-value]


def without_cost(records: Any) -> list[Record]:
    return [replace(record, cost=Cost()) for record in records]


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
        alone = federation(Inline(toy.worker(method, toy.build, seed=7))).run()
        assert without_cost(pair[index] for pair in pairs) == without_cost(alone)


def test_a_client_stays_in_its_process():
    jobs = [Job("train", round, client) for round in (1, 2, 3) for client in range(4)]
    with closing(engine(Tells())) as workers:
        hosts = [[reply.error for reply in workers.map(jobs[start : start + 4])] for start in (0, 4, 8)]
    assert hosts[0] == hosts[1] == hosts[2] and all(host is not None for host in hosts[0])


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
    here = replace(experiment, engine=Engine("inline"))
    assert without_cost(protea.Run(experiment)) == without_cost(protea.Run(here))


# A client that fails


def test_a_client_that_raises_is_an_error_value_and_its_process_lives_on():
    with closing(engine(Stumbles())) as workers:
        before = pids(workers)
        records = list(federation(workers, failures="skip").run())
        assert pids(workers) == before and not any(gone(pid) for pid in before)
    assert [sorted(record.failures) for record in records] == [[], [1], []]
    assert "client 1, round 2:" in records[1].failures[1]
    assert "in local_update" in records[1].failures[1] and "RuntimeError: it stumbled" in records[1].failures[1]


def ends(loop: Federation, folder: Path) -> tuple[list[Record], dict[str, bytes]]:
    """All that a federation leaves behind."""
    records = without_cost(loop.run())
    folder.mkdir()
    loop.engine.save(folder)
    return records, {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("where", ["train", "evaluate", "twice"])
def test_a_killed_process_is_replaced_and_all_ends_as_if_it_had_lived(where: str, tmp_path: Path):
    method = Frail(where=where, folder=str(tmp_path))
    calm = Inline(toy.worker(replace(method, where="never"), toy.build, seed=7))
    whole = ends(federation(calm, failures="skip"), tmp_path / "calm")
    with closing(engine(method, Engine(workers=2, retries=2))) as workers:
        before = pids(workers)
        assert ends(federation(workers, failures="skip"), tmp_path / "frail") == whole
        killed = len(list(tmp_path.glob("killed-*")))
        assert killed == (2 if where == "twice" else 1) and pids(workers) != before


def test_clients_are_repeated_from_where_they_were_saved(tmp_path: Path):
    """Rounds 1 and 2 are in the checkpoint; of a process that dies in round 4, round 3 is done again."""
    method = Frail(where="train", folder=str(tmp_path), round=4)
    calm = Inline(toy.worker(replace(method, where="never"), toy.build, seed=7))
    whole = ends(federation(calm, rounds=4), tmp_path / "calm")
    with closing(engine(method)) as workers:
        loop = federation(workers, rounds=4)
        records = []
        for record in loop.run():
            records.append(record)
            if record.round == 2:
                (tmp_path / "two").mkdir()
                workers.save(tmp_path / "two")
                assert workers.done == {}
        (tmp_path / "end").mkdir()
        assert sorted(map(len, workers.done.values())) == [2, 2, 2, 2]
        workers.save(tmp_path / "end")
    assert without_cost(records) == whole[0] and len(list(tmp_path.glob("killed-*"))) == 1
    assert {path.name: path.read_bytes() for path in sorted((tmp_path / "end").iterdir())} == whole[1]


def test_a_process_that_dies_while_nobody_looks_is_replaced_when_it_is_saved(tmp_path: Path):
    whole = ends(federation(Inline(toy.worker(FedProto(), toy.build, seed=7))), tmp_path / "calm")
    with closing(engine(FedProto())) as workers:
        records = without_cost(federation(workers).run())
        os.kill(min(pids(workers)), signal.SIGKILL)
        (tmp_path / "end").mkdir()
        workers.save(tmp_path / "end")
    assert records == whole[0]
    assert {path.name: path.read_bytes() for path in sorted((tmp_path / "end").iterdir())} == whole[1]


def test_jobs_to_repeat_do_not_pile_up_where_nobody_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scheduler, "KEPT", 0)
    method = Frail(where="train", folder=str(tmp_path), round=3)
    calm = Inline(toy.worker(replace(method, where="never"), toy.build, seed=7))
    whole = ends(federation(calm), tmp_path / "calm")
    with closing(engine(method)) as workers:
        assert ends(federation(workers), tmp_path / "frail") == whole
        assert workers.done == {} and len(list(Path(workers.folder.name).glob("kept-*"))) == 1


def test_a_client_that_kills_every_process_is_left_out_and_stays_as_it_was(tmp_path: Path):
    """As one that raises at the same moment does."""
    raises = Inline(toy.worker(Dies(kind="raise"), toy.build, seed=7, careful=True))
    records, states = ends(federation(raises, failures="skip"), tmp_path / "raises")
    seen: list[Reply] = []
    with closing(engine(Dies())) as workers:
        again, same = ends(federation(workers, failures="skip", watch=seen.append), tmp_path / "dies")
    assert same == states
    assert [sorted(record.failures) for record in again] == [sorted(r.failures) for r in records] == [[], [1], []]
    assert again[1].failures[1].startswith("client 1, round 2: its worker process was killed (SIGKILL)")
    assert [replace(record, failures={}) for record in again] == [replace(record, failures={}) for record in records]
    assert len(seen) == 3 * (4 + 4)  # a reply to every job of training and evaluation


def test_a_killed_process_stops_a_run_that_wants_all_clients():
    killed = r"client 1, round 2: its worker process was killed \(SIGKILL\)"
    with closing(engine(Dies())) as workers, pytest.raises(ClientError, match=killed):
        list(federation(workers).run())
    with closing(engine(Local())) as again:
        assert len(list(federation(again).run())) == 3


def test_a_client_that_takes_too_long_is_ended_and_tried_again(tmp_path: Path):
    method = Frail(where="sleep", folder=str(tmp_path))
    calm = Inline(toy.worker(replace(method, where="never"), toy.build, seed=7))
    whole = ends(federation(calm), tmp_path / "calm")
    with closing(engine(method, Engine(workers=2, limit=2.0))) as workers:
        assert ends(federation(workers), tmp_path / "frail") == whole
    with (
        closing(engine(Dies(kind="sleep"), Engine(workers=2, limit=1.0, retries=0))) as workers,
        pytest.raises(ClientError, match=r"client 1, round 2: it took longer than engine.limit, 1 s\."),
    ):
        list(federation(workers).run())
    with pytest.raises(ConfigError, match=r"engine.limit is set, and engine.name=inline cannot end a client"):
        Inline(toy.worker(Local(), toy.build, seed=7), Engine("inline", limit=1.0))


# What cannot be sent


def test_what_cannot_be_pickled_is_named_at_once_and_the_processes_stay_usable():
    @dataclass(frozen=True)
    class Inner(Local): ...

    for method, build in ((Inner(), toy.build), (Local(), lambda id, streams: toy.build(id, streams))):
        with pytest.raises(ConfigError, match=r"(?s)cannot be sent to other processes: .*set engine\.name=inline"):
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
    until(lambda: all(map(gone, old)))
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


def begin() -> subprocess.Popen[str]:
    """A run of ``exp.toml`` in ``broken``, by a process of its own."""
    # A suite that was started in the background has Ctrl-C switched off, and so would all that it starts.
    command = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command += "from protea.cli.app import main; main()"
    here = Path(__file__)
    places = (here.parent, here.parents[1] / "helpers", here.parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", command, "run", "exp.toml", "--out", "broken"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # it and all that it starts can be told from other processes
    )


def begin_warm() -> Session:
    """The same, forked."""
    return Session(Path.cwd(), "run", "exp.toml", "--out", "broken")


Leader = subprocess.Popen[str] | Session


@pytest.fixture(params=[begin_warm, *by_night(begin)], ids=["warm", "cold"])
def waiting(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leader]:
    """A run of its own, in round 3 of which every client waits for a file called ``go``."""
    monkeypatch.chdir(tmp_path)
    Path("exp.toml").write_text(WAITING)
    run = request.param()
    try:
        until(lambda: bool(list(Path.cwd().glob("waits-*"))) or run.poll() is not None)
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
    assert without_cost(broken.records) == without_cost(protea.Run(load_experiment(Path("exp.toml"))))


linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@linux
def test_ctrl_c_leaves_no_process_and_a_run_that_can_go_on(waiting: Leader):
    assert len(session(waiting.pid)) >= 3  # itself and two workers
    os.killpg(waiting.pid, signal.SIGINT)  # as a terminal does: all of them get it
    out, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 130 and err.strip() == "Stopped.  Go on after round 2: protea resume broken"
    assert [line.split()[2] for line in out.splitlines()] == ["1/4", "2/4"]
    until(lambda: not session(waiting.pid))
    goes_on_to_the_same_end()


@linux
def test_a_killed_parent_leaves_no_process_and_a_run_that_can_go_on(waiting: Leader):
    assert len(session(waiting.pid)) >= 3
    waiting.kill()
    waiting.wait(timeout=60)
    Path("go").touch()  # workers notice when they are done with what they do
    until(lambda: not session(waiting.pid))
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
    """Client 1 in round 2, whenever it is tried."""

    kind: str = "kill"

    def local_update(self, client: Client, down: None) -> None:
        client.fit(lambda x, y: F.cross_entropy(client.model(x), y))
        if (client.id, client.round) == (1, 2):
            if self.kind == "raise":
                raise RuntimeError("it stumbled")
            time.sleep(600) if self.kind == "sleep" else os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Frail(FedProto):
    """Its process is killed once, or twice, in the middle of a job of client 1."""

    where: str = "train"
    folder: str = ""
    round: int = 2

    def local_update(self, client: Client, down: Prototypes | None) -> Prototypes:
        found = super().local_update(client, down)
        if (client.id, client.round) == (1, self.round):
            for number in {"train": [1], "twice": [1, 2], "sleep": [1]}.get(self.where, []):
                self.fall(number)
        return found

    def predict(self, client: Client, x: Tensor, down: Prototypes | None) -> Tensor:
        if self.where == "evaluate" and (client.id, client.round) == (2, self.round):
            self.fall(1)
        return super().predict(client, x, down)

    def fall(self, number: int) -> None:
        mark = Path(self.folder) / f"killed-{number}"
        if not mark.exists():
            mark.touch()
            time.sleep(600) if self.where == "sleep" else os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Waits(Local):
    def local_update(self, client: Client, down: None) -> None:
        super().local_update(client, down)
        if client.round == 3:
            Path(f"waits-{client.id}").touch()
            until(Path("go").exists)


def test_the_forkserver_has_what_the_first_optimizer_would_import():
    """Or every worker would import it by itself, which takes seconds."""
    look = "import sys; sys.exit('torch._dynamo' not in sys.modules)"
    process = processes().Process(target=exec, args=(look,))
    process.start()
    process.join()
    assert process.exitcode == 0
