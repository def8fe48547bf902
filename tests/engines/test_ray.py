"""Actors of Ray on one machine: the same numbers as in one process, and what happens when an actor goes away."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("ray", reason="lacking: extra ray")

import ray
import toy
import warm_ray
from contract import play
from night import by_night
from ray import cloudpickle
from ray.cluster_utils import Cluster
from test_processes import WAITING, Frail, begin, ends, gone, linux, method_of, session, without_cost
from waiting import until

import protea
from protea import Client, Data, Experiment, Method
from protea.clients import offload
from protea.clients.builder import Builder
from protea.config.experiment import load_experiment
from protea.config.families import Models
from protea.config.sections import Checkpoint, Engine
from protea.core.errors import CheckpointError, ConfigError
from protea.core.training import Training
from protea.data.sources.spiral import Spiral
from protea.engines.inline import Inline
from protea.engines.messages import job_to_bytes, reply_from_bytes
from protea.engines.ray import cluster
from protea.engines.ray.actor import WorkerActor
from protea.engines.ray.engine import Ray
from protea.engines.ray.handle import ActorHandle
from protea.federation.jobs import Job, Reply, Watch, ignore
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.federation.record import Record
from protea.filters.clip import Clip
from protea.filters.quantize import Quantize
from protea.filters.secure_sum import SecureSum
from protea.methods.fedpkd import FedPKD
from protea.methods.fedproto import FedProto
from protea.methods.fedtgp import FedTGP
from protea.methods.local import Local
from protea.runs.run import resume

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),  # Ray's
]

ONE, TWO = (Engine("ray", workers=count) for count in (1, 2))


@pytest.fixture(scope="module", autouse=True)
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Ray that all engines of this file share; its workers can be forked, see ``warm``."""
    folder = tmp_path_factory.mktemp("ray")
    with cluster.loopback():
        node = {
            "num_cpus": 2, "num_gpus": 1, "object_store_memory": 200 * 2**20, "node_ip_address": "127.0.0.1",
            "include_dashboard": False, "include_log_monitor": False, "setup_worker_path": str(warm_ray.setup(folder)),
            "_system_config": {
                "enable_worker_prestart": False, "prestart_worker_first_driver": False, "num_workers_soft_limit": 0,
            },  # no worker before there is work, and none stays that has done its own
        }  # fmt: skip
        made = Cluster(True, head_node_args=node)
        ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
    assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]
    yield folder
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def warm(here: Path) -> Iterator[None]:
    """From here on workers are forked.  Those of the tests before start as Ray starts them."""
    with warm_ray.nest(here):
        yield


def engine(method: Method[Any, Any], settings: Engine = TWO, build: Any = toy.build, **options: Any) -> Ray:
    return Ray(toy.plan(method, build, seed=7, **options), settings)


def federation(engine: Any, rounds: int = 3, watch: Watch = ignore, **options: Any) -> Federation:
    plan = FederationPlan(clients=toy.CLIENTS, rounds=rounds, **options)
    return Federation(method_of(engine), engine, toy.server(), plan, watch=watch)


# The same numbers


@pytest.mark.nightly  # by day on processes and over the grid
def test_secure_sums_equal_those_of_the_inline_engine_to_the_bit():
    """Each client's keys and shares stay with it in its actor, from step to step of the protocol."""
    filters = (SecureSum(),)
    there = play(
        FedProto(), lambda plan: Ray(replace(plan, filters=filters), TWO), rounds=2, filters=filters, fraction=1
    )
    here = play(FedProto(), lambda plan: Inline(replace(plan, filters=filters)), rounds=2, filters=filters, fraction=1)
    assert there == here


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("method", "alone", "first", "then"),
    [
        (FedTGP(), False, replace(TWO, address="auto"), Engine("inline")),
        (FedPKD(), False, Engine("inline"), TWO),
        (FedPKD(), True, TWO, Engine("inline")),
    ],
    ids=["two there", "here and there", "each client alone"],
)
def test_a_run_goes_on_in_another_engine(
    method: Method[Any, Any], alone: bool, first: Engine, then: Engine, tmp_path: Path
):
    """With public samples, a model on the server, filters, and data from a file of the node's."""
    there_and_back(method, alone, first, then, tmp_path)


def there_and_back(method: Method[Any, Any], alone: bool, first: Engine, then: Engine, tmp_path: Path) -> None:
    experiment = Experiment(
        rounds=3, clients=4, fraction=0.75, method=method, alone=alone, engine=Engine("inline"),
        models=Models(dim=16, server="tiny_mlp"), training=Training(batch=64),
        data=Data(source=Spiral(classes=3, points=60), public=9), checkpoint=Checkpoint(every=1),
        filters=(Clip(norm=2.0), Quantize("int8")),
    )  # fmt: skip

    def stop(record: Record) -> None:
        if record.round == 2:
            raise InterruptedError

    whole = protea.run(experiment, tmp_path / "whole")
    with pytest.raises(InterruptedError):
        protea.run(replace(experiment, engine=first), tmp_path / "parts", observers=[stop])
    parts = resume(tmp_path / "parts", replace(experiment, engine=then))
    assert without_cost(parts.records) == without_cost(whole.records)
    for path in sorted((tmp_path / "whole/checkpoints/000003").glob("*.safetensors")):
        assert path.read_bytes() == (tmp_path / "parts/checkpoints/000003" / path.name).read_bytes(), path.name


@pytest.mark.usefixtures("warm")
def test_a_run_goes_there_and_back(tmp_path: Path):
    """By night the same with workers that start as Ray starts them."""
    there_and_back(FedTGP(), False, replace(ONE, address="auto"), Engine("inline"), tmp_path)


# Actors that are lost


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("settings", "deaths"),
    [(ONE, {"train"}), *by_night((TWO, {"train", "later", "end"}))],
    ids=["one", "three"],
)
def test_lost_actors_are_replaced_and_all_ends_as_if_they_had_lived(settings: Engine, deaths: set[str], tmp_path: Path):
    """One is killed in training, one later after a save, so that one round is repeated, one before the last save."""
    rounds = 4 if "later" in deaths else 2
    method = Frail(where="train", folder=str(tmp_path))
    calm = Inline(toy.worker(replace(method, where="never"), toy.build, seed=7))
    whole = ends(federation(calm, rounds=rounds), tmp_path / "calm")
    seen: dict[int, int] = {}  # where each client is
    with closing(engine(method, settings)) as actors:
        records = []
        for record in federation(
            actors, rounds=rounds, watch=lambda reply: seen.update({reply.client: reply.process})
        ).run():
            records.append(record)
            if record.round == rounds // 2:
                (tmp_path / "half").mkdir()
                actors.save(tmp_path / "half")
                assert actors.done == {} and len(list((tmp_path / "half").iterdir())) == toy.CLIENTS
            if record.round == 3:
                os.kill(seen[0], signal.SIGKILL)
        before = set(seen.values())
        if "end" in deaths:
            os.kill(seen[1], signal.SIGKILL)
        (tmp_path / "end").mkdir()
        actors.save(tmp_path / "end")
        assert len(actors.pool) == len(before) == settings.workers
    assert without_cost(records) == whole[0] and (tmp_path / "killed-1").exists()
    assert {path.name: path.read_bytes() for path in sorted((tmp_path / "end").iterdir())} == whole[1]


@pytest.mark.usefixtures("warm")
def test_errors_are_replies_and_who_takes_too_long_is_ended_and_ctrl_c_ends_all():
    seen: list[Reply] = []

    def watch(reply: Reply) -> None:
        seen.append(reply)
        if reply.round == 3:
            raise KeyboardInterrupt

    with closing(engine(Trouble(), replace(ONE, limit=5.0, retries=0), careful=True)) as actors:
        loop = federation(actors, failures="skip", watch=watch)
        records = []
        with pytest.raises(KeyboardInterrupt):
            for record in loop.run():
                records.append(record)
        (folder,) = actors.places.values()
        assert folder.is_dir() and folder != Path(actors.folder.name)
    assert [sorted(record.failures) for record in records] == [[1], [2]]
    assert "RuntimeError: it stumbled" in records[0].failures[1]
    assert records[1].failures[2] == "client 2, round 2: it took longer than engine.limit, 5 s."
    until(lambda: all(gone(reply.process) for reply in seen if reply.process))
    until(lambda: not folder.exists() and not Path(actors.folder.name).exists())
    until(lambda: ray.available_resources().get("CPU") == 2)


@linux
@pytest.mark.nightly
def test_ctrl_c_leaves_no_process_and_a_run_that_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With a Ray that the run has started for itself."""
    monkeypatch.chdir(tmp_path)
    Path("exp.toml").write_text(WAITING.replace('"processes", workers = 2', '"ray", workers = 1'))
    run = begin()
    try:
        until(lambda: bool(list(tmp_path.glob("waits-*"))) or run.poll() is not None)
        os.killpg(run.pid, signal.SIGINT)
        _, err = run.communicate(timeout=60)
        assert run.returncode == 130 and err.strip() == "Stopped.  Go on after round 2: protea resume broken"
        until(lambda: not session(run.pid))
    finally:
        run.kill()
        run.communicate()
    Path("exp.toml").write_text(WAITING.replace('"processes", workers = 2', '"inline"'))
    Path("go").touch()
    broken = resume("broken", load_experiment(Path("exp.toml")))
    assert [record.round for record in broken.records] == [1, 2, 3, 4]


# What cannot work


def test_what_cannot_be_sent_is_named_at_once():
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"(?s)cannot be sent to other processes: .*set engine\.name=inline"):
        engine(Local(), build=lambda id, streams: (lock, toy.build(id, streams)))


def test_what_an_actor_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ghost", ModuleType("ghost"))
    exec("from protea.methods.local import Local\nclass Ghost(Local): ...", vars(sys.modules["ghost"]))
    plan = cloudpickle.dumps(toy.plan(sys.modules["ghost"].Ghost()).for_processes(tmp_path, 1))
    monkeypatch.delitem(sys.modules, "ghost")
    assert WorkerActor().open(plan, tmp_path) == "ModuleNotFoundError: No module named 'ghost'"


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("settings", [ONE, *by_night(TWO)], ids=["one", "two"])
def test_memory_is_for_all_actors_together(settings: Engine):
    """They share it, and torch alone takes more than this part."""
    leaves = r"An actor on node \w+ cannot begin: ConfigError: engine\.memory leaves 150,000,000 bytes"
    with pytest.raises(ConfigError, match=leaves):
        Ray(toy.plan(Local(), memory=150_000_000 * settings.workers), settings)
    until(lambda: ray.available_resources().get("CPU") == 2)


def test_clients_wait_on_the_disk_of_their_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    actor, whole = WorkerActor(), toy.worker(FedProto(), memory=10**15)
    monkeypatch.setattr(offload, "FULL", 1e-15)  # of that: one byte, which any process has
    monkeypatch.setattr(offload, "current_memory", lambda: 1)
    assert actor.open(cloudpickle.dumps(whole.plan.for_processes(tmp_path / "elsewhere", 1)), tmp_path) == ""
    monkeypatch.undo()
    assert actor.worker is not None
    jobs = [Job("train", round, client) for round in (1, 2) for client in range(3)]
    for job in jobs:
        assert reply_from_bytes(actor.job(job_to_bytes(job))).up.keys() == whole.run(job).up.keys()
    assert len(actor.worker.clients) == 1 and len(list(tmp_path.glob("clients-*/client-*"))) == 2
    names = actor.save()
    (tmp_path / "whole").mkdir()
    whole.save(tmp_path / "whole")
    assert names == [path.name for path in sorted((tmp_path / "whole").iterdir())]
    states = {name: actor.fetch(name) for name in names}
    assert states == {name: (tmp_path / "whole" / name).read_bytes() for name in names}


@dataclass(frozen=True)
class OnGPU(Builder):
    device: str = "cuda"

    def __call__(self, id: int, streams: Any) -> Client:
        return toy.build(id, streams)


@pytest.mark.usefixtures("warm")
def test_gpus_are_shared_out_and_an_actor_that_is_gone_saves_nothing(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"device is cuda, and engine\.gpus is 0"):
        engine(Local(), build=OnGPU())
    with pytest.raises(ConfigError, match=r"engine\.gpus is 1, and device is cpu"):
        engine(Local(), replace(TWO, gpus=1))
    with pytest.raises(ConfigError, match=r"has 2 CPUs and 1 GPUs; engine\.workers=2 .* engine\.gpus is 2"):
        engine(Local(), replace(TWO, gpus=2), build=OnGPU())
    actors = [ActorHandle(cluster.gpu_share(1, 2)) for _ in range(2)]
    until(lambda: ray.available_resources().get("GPU", 0) == 0)
    for actor in actors:
        actor.stop()
        assert not actor.alive()
        with pytest.raises(CheckpointError, match="save: an actor"):
            actor.save(tmp_path)
    until(lambda: ray.available_resources().get("GPU") == 1)
    assert [cluster.gpu_share(*each) for each in ((1, 4), (2, 3), (4, 2), (0, 2))] == [0.25, 0.5, 1.0, 0.0]


def test_more_actors_than_cpus_and_other_addresses_are_refused():
    with pytest.raises(ConfigError, match=r"has 2 CPUs and 1 GPUs; engine\.workers=3 needs one CPU each"):
        engine(Local(), replace(TWO, workers=3))
    with pytest.raises(ConfigError, match=r"engine\.address is 'ray://there'"):
        engine(Local(), replace(TWO, address="ray://there"))
    with pytest.raises(
        ConfigError, match=r"engine\.address is 'there:1', and this process uses the Ray at 127\.0\.0\.1:"
    ):
        engine(Local(), replace(TWO, address="there:1"))


# Methods, here so that actors can import them


@dataclass(frozen=True)
class Trouble(Local):
    """Client 1 stumbles in round 1, client 2 sleeps in round 2."""

    def local_update(self, client: Client, down: None) -> None:
        if (client.id, client.round) == (1, 1):
            raise RuntimeError("it stumbled")
        if (client.id, client.round) == (2, 2):
            time.sleep(600)
        super().local_update(client, down)
