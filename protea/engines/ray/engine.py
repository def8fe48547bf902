"""The engine: actors that clients are pinned to, the data on every node, jobs and state."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from protea.clients.plan import WorkerPlan
from protea.clients.state_files import path_of
from protea.config.sections import Engine
from protea.core.errors import ClientError, ConfigError
from protea.engines.processes.pool import sendable
from protea.engines.ray.actor import versions
from protea.engines.ray.cluster import enter, gpu_share, leave, living, room_for
from protea.engines.ray.handle import ActorHandle, words
from protea.engines.scheduler import PinnedEngine

START = 180.0  # seconds within which an actor must have started
NOTICE = 60.0  # seconds within which Ray must have noticed that a node is gone
ROOM = 10.0  # seconds to wait for room for an actor that replaces another
PART = 32 * 2**20  # bytes of a file that travel at once


class Ray(PinnedEngine[ActorHandle]):
    """Actors of Ray, here or on a cluster, clients pinned to them."""

    host_name = "actor"

    def __init__(self, plan: WorkerPlan, settings: Engine | None = None) -> None:
        settings = settings or Engine("ray")
        refuse_device(plan.builder.device, settings.gpus)
        enter(settings)
        super().__init__(plan, settings)
        self.places: dict[str, Path] = {}  # on each node, for its data
        try:
            there = ray.cluster_resources()
            count = settings.workers or int(there.get("CPU", 0))
            self.share = gpu_share(settings.gpus, count)
            if not count or not room_for({"CPU": count, "GPU": settings.gpus}, there):
                raise ConfigError(
                    f"The Ray cluster has {there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} GPUs; "
                    f"engine.workers={count} needs one CPU each, and engine.gpus is {settings.gpus}."
                )
            with sendable(plan):
                self.sent = cloudpickle.dumps(plan.for_processes(Path(self.folder.name), count))
            self._open([ActorHandle(self.share) for _ in range(count)])
        except RayError as error:
            self.close()
            raise ConfigError(f"An actor {words(error)}, before it had any work.") from error
        except BaseException:
            self.close()
            raise

    def _open(self, actors: Sequence[ActorHandle]) -> None:
        """Add actors to the pool and get them ready for jobs; an error of Ray's if one of them is lost meanwhile."""
        self.pool += actors
        told = [actor.tell("move", Path.cwd(), sys.path) for actor in actors]
        try:
            found = ray.get(told, timeout=START)
        except GetTimeoutError:
            raise ConfigError(
                f"After {START:g} s the Ray cluster has not started {len(actors)} actors of one CPU and "
                f"{self.share:g} GPUs.  Others may use it; take fewer engine.workers."
            ) from None
        for actor, (node, theirs) in zip(actors, found, strict=True):
            actor.node = node
            if theirs != versions():
                raise ConfigError(f"Node {node} has {theirs}, and here are {versions()}.  Install the same.")
        self._place({actor.node: actor for actor in actors if actor.node not in self.places})
        told = [actor.tell("open", self.sent, self.places[actor.node]) for actor in actors]
        for actor, problem in zip(actors, ray.get(told), strict=True):
            actor.asked.clear()
            if problem:
                raise ConfigError(
                    f"An actor on node {actor.node} cannot begin: {problem}\n"
                    f"  Every node needs what the experiment imports; see docs/ray.md."
                )

    def _place(self, first: dict[str, ActorHandle]) -> None:
        """Write the data to new nodes, by one actor on each."""
        folders = {node: actor.ask("make_folder") for node, actor in first.items()}
        for path in Path(self.folder.name).glob("*.safetensors") if folders else ():
            for part, last in parts(path):
                sent = ray.put(part)
                ray.get([actor.remote.write.remote(path.name, sent, last) for actor in first.values()])
        self.places |= folders

    @classmethod
    def check(cls, settings: Engine) -> None:
        """Accept all settings: those of a cluster are for this engine."""

    def _answered(self, hosts: Collection[ActorHandle]) -> Collection[ActorHandle]:
        last = {actor.asked[-1]: actor for actor in hosts}
        ready, _ = ray.wait(list(last), num_returns=1, timeout=1)
        return {last[answer] for answer in ready}

    def _bring(self, host: ActorHandle, client: int, jobs: list[bytes]) -> None:
        state = self._state(client)
        host.tell("bring", client, None if state is None else state.read_bytes(), jobs)

    def _absent(self, client: int) -> bool:
        return super()._absent(client) or self._state(client) is not None

    def _state(self, client: int) -> Path | None:
        """Give the file of a client's saved state, if there is one."""
        if self.saved is None:
            return None
        path = path_of(client, self.saved)
        return path if path.exists() else None

    def _new(self) -> ActorHandle | None:
        """Start one more actor.  It may come to a node that is about to be lost as well: try again."""
        for _ in range(3):
            if not self._room():
                break
            new, others = ActorHandle(self.share), list(self.pool)
            try:
                self._open([new])
                return new
            except RayError:
                new.stop()
            except ConfigError:
                new.stop()
                if not others:
                    raise
                break
            finally:
                self.pool = others  # to which whoever asked adds it
        if not self.pool:
            raise ClientError("No actor is left, and the Ray cluster has no room for another.")
        return None

    def _to_blame(self, host: ActorHandle) -> bool:
        return living().get(host.node, False)  # or all of its node is gone

    def _room(self) -> bool:
        """Whether the cluster has room for one more actor; the room of a lost one is free after a moment."""
        until = time.monotonic() + NOTICE
        while not all(living().values()) and time.monotonic() < until:
            time.sleep(0.5)
        until = time.monotonic() + ROOM
        while not (found := room_for({"CPU": 1, "GPU": self.share}, ray.available_resources())):
            if time.monotonic() > until:
                break
            time.sleep(0.1)
        return found

    def close(self) -> None:
        for actor in self.pool:
            actor.stop()
        with suppress(RayError):  # a node may be lost at any time
            ray.get([remove_at(node, place) for node, place in self._left()], timeout=10)
        self.folder.cleanup()
        leave()

    def _left(self) -> Iterator[tuple[str, Path]]:
        """Give the folders on nodes that are alive."""
        there = living() if self.places and ray.is_initialized() else {}
        return ((node, place) for node, place in self.places.items() if there.get(node))


def refuse_device(device: str, gpus: int) -> None:
    """Raise :class:`ConfigError` if the device and the number of GPUs do not fit each other."""
    if device == "cuda" and not gpus:
        raise ConfigError(
            "device is cuda, and engine.gpus is 0: actors would see no GPU.  Set engine.gpus, or device=cpu."
        )
    if device != "cuda" and gpus:
        raise ConfigError(f"engine.gpus is {gpus}, and device is {device}.  Set device=cuda, or engine.gpus=0.")


def parts(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Give the parts of a file, each with whether it is the last."""
    left = path.stat().st_size
    with path.open("rb") as file:
        while part := file.read(PART):
            left -= len(part)
            yield part, not left


def remove_at(node: str, folder: Path) -> Any:
    """Begin to remove a folder on a node; give what can be waited for."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    remove: Any = ray.remote(shutil.rmtree)
    return remove.options(num_cpus=0, scheduling_strategy=there).remote(folder, ignore_errors=True)
