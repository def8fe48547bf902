"""The Ray that engines of this process use: one by address, one that is there, or one of their own."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import ray_constants

from protea.config.sections import Engine
from protea.core.errors import ConfigError
from protea.engines.processes.pool import cores

STORE = 500 * 2**20  # bytes of shared memory for what is under way, of a Ray that is started here

_users = 0  # engines that use a Ray which one of them has started


def enter(settings: Engine) -> None:
    """Connect to the Ray that the settings name, or start one.  A Ray that this process uses already stays in use."""
    global _users
    if settings.address.startswith("ray://"):
        raise ConfigError(
            f"engine.address is {settings.address!r}: start the run on a machine of the cluster, and give the "
            f"address of its head, such as 10.0.0.1:6379, or auto."
        )
    if ray.is_initialized():
        there = ray.get_runtime_context().gcs_address
        if settings.address not in ("", "auto", there):
            raise ConfigError(f"engine.address is {settings.address!r}, and this process uses the Ray at {there}.")
        _users += bool(_users)
        return
    if settings.address:
        try:
            knock(settings.address)
            ray.init(address=settings.address, logging_level=logging.ERROR, log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"engine.address is {settings.address!r}, where no Ray cluster answers: {error}\n"
                f"  ray start --head prints the address; this process must be on a machine of the cluster."
            ) from error
    else:
        with loopback():
            ray.init(
                address="local",
                num_cpus=settings.workers or cores(),
                num_gpus=settings.gpus,
                object_store_memory=STORE,
                include_dashboard=False,
                logging_level=logging.ERROR,
                log_to_driver=False,
                _node_ip_address="127.0.0.1",
            )
    _users = 1


def leave() -> None:
    """Disconnect.  The last engine to leave ends the Ray, or the connection to it, that :func:`enter` opened."""
    global _users
    if _users:
        _users -= 1
        if not _users:
            ray.shutdown()


def knock(address: str) -> None:
    """Raise :class:`OSError` unless somebody listens at an address, which Ray itself notices after minutes only."""
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


@contextmanager
def loopback() -> Iterator[None]:
    """Let Ray, within, listen on this machine only, as it does on macOS and Windows.

    Otherwise it would listen to the whole network, and whoever can talk to Ray can run code.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def gpu_share(gpus: int, workers: int) -> float:
    """Give the part of a GPU for each worker, so that all of them fit and none is on two GPUs.

    >>> gpu_share(1, 4), gpu_share(2, 3), gpu_share(4, 2), gpu_share(0, 2)
    (0.25, 0.5, 1.0, 0.0)
    """
    return 1 / math.ceil(workers / gpus) if gpus else 0.0


def living() -> dict[str, bool]:
    """Give for each node that Ray takes to be alive whether it answers: Ray notices late that a node is gone."""
    return {node["NodeID"]: answers(node) for node in ray.nodes() if node["Alive"]}


def answers(node: dict[str, Any]) -> bool:
    """Whether a node of Ray's can be reached."""
    try:
        knock(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
    except OSError:
        return False
    return True


def room_for(needs: dict[str, float], among: dict[str, float]) -> bool:
    """Whether there is enough of every resource that is needed."""
    return all(among.get(name, 0.0) >= amount for name, amount in needs.items())
