"""Tasks of Flower's Runtime API: who may take them, and signs of life while one is worked on."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import httpx
from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient

from protea.core.files import write_text


def make_secret(folder: Path) -> Path:
    """What a process must know to take tasks, in a file that only its owner can read."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "secret"
    if not path.exists():
        before = os.umask(0o077)
        try:
            write_text(path, secrets.token_hex(32))
        finally:
            os.umask(before)
    return path


def taker(address: str, folder: Path, insecure: bool = True, trusted: bytes | None = None) -> RuntimeHttpClient:
    """A connection by which tasks are taken."""
    signed = SuperExecAuthHttpInterceptor(
        master_secret=(folder / "secret").read_bytes(),
        protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"}),
    )
    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    return RuntimeHttpClient.from_server_address(address, insecure, trusted, [version, signed])


def worker(address: str, token: str) -> RuntimeHttpClient:
    """A connection by which the client side of a node's task is done."""
    version = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    return RuntimeHttpClient.from_server_address(address, True, None, [version, RuntimeTokenHttpInterceptor(token)])


def heartbeat(client: RuntimeHttpClient) -> HeartbeatSender:
    """Signs of life for a task, sent until told to stop.  A task that is lost is noticed by whoever works on it."""

    def beat() -> bool:
        try:
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except httpx.HTTPStatusError:
            return True  # it is over
        except httpx.HTTPError:
            return False
        return True

    return HeartbeatSender(beat)
