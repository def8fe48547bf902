"""Tasks of Flower's Runtime API: who may take them, and signs of life while one is worked on."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

import httpx
from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient

from protea.core.files import write_private


def make_secret(folder: Path) -> Path:
    """Write the secret that a process needs to take tasks, to a file that only its owner can read; give its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "secret"
    if not path.exists():
        write_private(path, secrets.token_hex(32).encode())
    return path


class ControlSecret:
    """What a call of the Control API needs, on this machine too: proof that the caller can read the secret."""

    def __init__(self, folder: Path) -> None:
        self.proof = hashlib.sha256(b"control" + (folder / "secret").read_bytes()).hexdigest()

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Send the proof along with a call."""
        add_headers(context.request, {"protea-secret": self.proof})
        return call_next(context)


def taker(address: str, folder: Path, insecure: bool = True, trusted: bytes | None = None) -> RuntimeHttpClient:
    """Open a connection by which tasks are taken."""
    signed = SuperExecAuthHttpInterceptor(
        master_secret=(folder / "secret").read_bytes(),
        protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"}),
    )
    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    return RuntimeHttpClient.from_server_address(address, insecure, trusted, [version, signed])


def heartbeat(client: RuntimeHttpClient) -> HeartbeatSender:
    """Make the sender of a task's signs of life.  That a task is lost is noticed by whoever works on it."""

    def beat() -> bool:
        try:
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except httpx.HTTPStatusError:
            return True  # it is over
        except httpx.HTTPError:
            return False
        return True

    return HeartbeatSender(beat)
