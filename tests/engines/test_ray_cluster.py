"""A Ray cluster of several nodes: an actor is killed, a node is removed in the middle of a round."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="lacking: extra ray")

import ray
from ray.cluster_utils import Cluster
from test_processes import linux, without_cost
from waiting import until

from protea import Client, Data, Experiment, Prototypes
from protea.config.families import Models
from protea.config.sections import Engine
from protea.core.errors import ConfigError
from protea.core.training import Training
from protea.data.sources.spiral import Spiral
from protea.engines.ray import engine as engines
from protea.engines.ray.cluster import loopback
from protea.engines.ray.engine import Ray
from protea.federation.jobs import Reply
from protea.methods.fedproto import FedProto
from protea.runs.prepare import prepare
from protea.runs.simulation import federation, open_engine

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),  # Ray's
]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head that works for nobody, and two nodes with two CPUs each."""
    common = {"object_store_memory": 100 * 2**20, "node_ip_address": "127.0.0.1"}
    with loopback():
        made = Cluster(True, head_node_args={**common, "num_cpus": 0, "include_dashboard": False})
        try:
            for _ in range(2):
                made.add_node(**common, num_cpus=2)
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


@dataclass(frozen=True)
class Held(FedProto):
    """In round 3 nobody ends his training before there is a file called ``go``."""

    folder: str = ""

    def local_update(self, client: Client, down: Prototypes | None) -> Prototypes:
        found = super().local_update(client, down)
        if client.round == 3:
            (Path(self.folder) / f"held-{os.getpid()}").touch()
            until((Path(self.folder) / "go").exists)
        return found


def states(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@linux
@pytest.mark.nightly
def test_a_killed_actor_and_a_removed_node_change_nothing(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Three actors; after the second node is gone there is room for two, and the clients of the third go to them."""
    monkeypatch.setattr(engines, "PART", 1000)  # bytes: so that the data travel in many parts
    monkeypatch.setattr(engines, "ROOM", 3.0)
    experiment = Experiment(
        rounds=4, clients=5, method=Held(folder=str(tmp_path)), models=Models(dim=16), training=Training(batch=64),
        data=Data(source=Spiral(classes=3, points=60)), engine=Engine("ray", 3, address=cluster.address),
    )  # fmt: skip
    factory = prepare(experiment)
    where: dict[int, int] = {}  # each client's process

    def watch(reply: Reply) -> None:
        where[reply.client] = reply.process

    def remove() -> None:
        """A node on which somebody trains; the driver is busy with the round."""
        until(lambda: all((tmp_path / f"held-{pid}").exists() for pid in nodes))
        held = list(nodes.values())
        cluster.remove_node(next(node for node in cluster.list_all_nodes() if node.node_id == held[0]), False)
        (tmp_path / "go").touch()

    with closing(open_engine(experiment, factory)) as engine:
        assert isinstance(engine, Ray)
        loop = federation(experiment, factory, engine, watch)
        records, rounds = [], loop.run()
        records.append(next(rounds))
        assert len(engine.pool) == len(set(where.values())) == 3
        places = dict(engine.places)
        data = [place / "data.safetensors" for place in places.values()]
        assert len(data) == 2 and data[0].read_bytes() == data[1].read_bytes()
        for pid in set(where.values()):  # every actor maps the one file of its node
            maps = Path(f"/proc/{pid}/maps").read_text()
            assert sum(str(path) in maps for path in data) == 1 and engine.folder.name not in maps

        os.kill(where[0], signal.SIGKILL)
        records.append(next(rounds))
        (tmp_path / "two").mkdir()
        engine.save(tmp_path / "two")
        assert len(engine.pool) == 3

        pids = ray.get([actor.remote.process.remote() for actor in engine.pool])
        nodes = {
            pid: actor.node for pid, actor in zip(pids, engine.pool, strict=True) if actor in engine.host_of.values()
        }
        thread = threading.Thread(target=remove)
        thread.start()
        records.append(next(rounds))
        thread.join()
        records += rounds
        (tmp_path / "end").mkdir()
        engine.save(tmp_path / "end")
        assert len(engine.pool) == 2 and len({actor.node for actor in engine.pool}) == 1
    left = [place for place in places.values() if place.exists()]
    assert len(left) == 1  # of the node that is no more
    shutil.rmtree(left[0])

    calm = replace(experiment, engine=Engine("inline"))
    with closing(open_engine(calm, factory)) as inline:
        assert without_cost(records) == without_cost(federation(calm, factory, inline).run())
        (tmp_path / "calm").mkdir()
        inline.save(tmp_path / "calm")
    assert states(tmp_path / "end") == states(tmp_path / "calm") and len(states(tmp_path / "end")) == 5


def test_an_address_where_nobody_is_is_named():
    experiment = Experiment(engine=Engine("ray", 1, address="127.0.0.1:1"))
    with loopback(), pytest.raises(ConfigError, match=r"engine\.address is '127\.0\.0\.1:1', where no Ray cluster"):
        open_engine(experiment, prepare(experiment))
