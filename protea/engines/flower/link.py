"""A SuperLink, and this process as the server side of a run on it."""

from __future__ import annotations

import hashlib
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from protea.core.errors import ProteaError
from protea.engines.flower.admission import DoorLimits
from protea.engines.flower.connections import allow_files, keeping
from protea.engines.flower.door import Door
from protea.engines.flower.notices import Notices
from protea.engines.flower.patient_grid import LOST, PatientGrid
from protea.engines.flower.programs import Program, free_port
from protea.engines.flower.tasks import ControlSecret, heartbeat, make_secret, taker

START = 60.0  # seconds that a SuperLink may take to come up

# What a run must have to be one.  Neither side executes it.
APP = {
    "pyproject.toml": b"""
[project]
name = "protea"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr==1.41.0"]
[tool.flwr.app]
publisher = "protea"
[tool.flwr.app.components]
serverapp = "protea_app:server"
clientapp = "protea_app:client"
[tool.flwr.app.config]
""",
    "protea_app.py": b"# Protea takes part by processes of its own.  Start a site with: protea site join\n",
}


@dataclass(frozen=True)
class Tls:
    """Files of the server: the authority's certificate, its own certificate, and the key to that."""

    ca: Path
    certificate: Path
    key: Path


class Link:
    """A SuperLink at ``host:port``.  With ``tls``, only nodes whose keys were registered may connect to it.

    With ``limits``, a front door is at ``host:port``, and the SuperLink behind it on this machine only.
    """

    def __init__(
        self,
        folder: Path,
        host: str,
        port: int,
        tls: Tls | None = None,
        keys: Mapping[str, bytes] | None = None,
        limits: DoorLimits | None = None,
    ) -> None:
        self.folder, self.host, self.port, self.tls = folder, host, port, tls
        self.limits, self.outside = limits, (host, port)
        self.door: Door | None = None
        self.notices = Notices()
        self.node_keys: dict[int, bytes] = {}  # public keys of nodes, by id
        if limits is not None:
            self.host, self.port = "127.0.0.1", free_port()
            allow_files()
        self.keys = keys or {}  # public ones, of nodes that may connect, by name
        self.program: Program | None = None
        self.pulse: HeartbeatSender | None = None
        self.grid: PatientGrid | None = None
        self.run = 0

    @property
    def address(self) -> str:
        """The address at which this process reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def open(self) -> HttpGrid:
        """Start the SuperLink if it is not running, begin a run on it, and connect to that run as its server."""
        self._leave()
        if self.program is None or not self.program.alive:
            self._start()
        if self.limits is not None and self.door is None:
            self.door = self._open_door(self.limits)
        try:
            self._let_in()
        except httpx.HTTPStatusError:  # a key that was struck off once, by whomever, is refused for ever
            assert self.program is not None
            self.program.stop()
            self._start()
            self._let_in()
        fab, _ = build_fab_from_files(APP)
        with self.control() as control:
            request = StartRunRequest(fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})), federation="")
            self.run = control.StartRun(request).run_id
        grid = PatientGrid(self.address, self.tls is None, self._trusted(), token=self._token())
        if self.limits is not None:
            grid.limit, grid.notices, grid.keys = self.limits.message, self.notices, self.node_keys
            self.notices.wake()
        # What fails is told to us at once: Flower would try for ever, or end this process.
        grid._retry_invoker = None  # type: ignore[assignment]
        keeping(grid._runtime_client)
        task = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
        TaskIdentity.node_id = task.context.node_id
        grid.set_run(run_from_proto(task.run))
        self.pulse = heartbeat(grid._runtime_client)
        self.pulse.start()
        self.grid = grid
        return grid

    @property
    def lost(self) -> tuple[type[Exception], ...]:
        return LOST

    def _let_in(self) -> None:
        if self.tls is not None:
            self.register(self.keys)

    def nodes(self) -> list[NodeInfo]:
        """Give the nodes that are connected now."""
        assert self.grid is not None
        found = [node for node in self.grid.get_nodes() if node.status == "online"]
        self.grid.keys = self.node_keys = {node.node_id: node.public_key for node in found}
        return found

    def register(self, keys: Mapping[str, bytes]) -> None:
        """Let just these nodes connect: public keys (PEM) by name.  Any other node is disconnected."""
        with self.control() as control:
            known = {
                node.public_key: node.node_id
                for node in control.ListNodes(ListNodesRequest()).nodes_info
                if node.status != "unregistered"
            }
            for key, node in known.items():
                if key not in keys.values():
                    control.UnregisterNode(UnregisterNodeRequest(node_id=node))
            for name, key in keys.items():
                if key not in known:
                    control.RegisterNode(RegisterNodeRequest(public_key=key, name=name))
        self.notices.dismiss_others(keys.values())

    def take_certificates(self) -> None:
        """Use certificates that were made anew: the door at its next connection, the SuperLink by being started anew.

        Whoever talks to it finds the connection lost, and opens it again.
        """
        assert self.tls is not None and self.program is not None
        if self.door is not None:
            self.door.outside.load_cert_chain(self.tls.certificate, self.tls.key)
            self.door.inside.load_verify_locations(str(self.tls.ca))
        self.program.stop()

    def close(self) -> None:
        self._leave()
        if self.door is not None:
            self.door.close()
        if self.program is not None:
            self.program.stop()

    @contextmanager
    def control(self) -> Iterator[ControlHttpClient]:
        version, secret = RuntimeVersionHttpInterceptor(component_name="flwr CLI"), ControlSecret(self.folder)
        client = ControlHttpClient.from_server_address(
            self.address, self.tls is None, self._trusted(), [version, secret]
        )
        with closing(client):
            yield client

    def _open_door(self, limits: DoorLimits) -> Door:
        """Open the port that sites connect to."""
        assert self.tls is not None  # without it, nobody outside this machine is let in
        outside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        outside.load_cert_chain(self.tls.certificate, self.tls.key)
        inside = ssl.create_default_context(cafile=str(self.tls.ca))
        return Door(
            *self.outside,
            (self.host, self.port),
            lambda: set(self.keys.values()),
            limits,
            outside,
            inside,
            self.notices,
        )

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        secret = make_secret(self.folder)
        arguments = ["--host", self.host, "--port", str(self.port), "--isolation", "process"]
        arguments += ["--superexec-auth-secret-file", str(secret)]  # its state is in memory; ours is in checkpoints
        if self.tls is None:
            arguments.append("--insecure")
        else:
            arguments += ["--ssl-ca-certfile", str(self.tls.ca), "--ssl-certfile", str(self.tls.certificate)]
            arguments += ["--ssl-keyfile", str(self.tls.key), "--enable-supernode-auth"]
        self.program = Program("flower-superlink", arguments, self.folder)
        url = f"{'http' if self.tls is None else 'https'}://{self.address}/health"
        context = True if self.tls is None else ssl.create_default_context(cafile=str(self.tls.ca))
        end = time.monotonic() + START
        while True:
            self.program.refuse_dead()
            with suppress(httpx.TransportError):
                if httpx.get(url, verify=context, timeout=5).status_code == 200:
                    break
            if time.monotonic() > end:
                self.program.stop()
                raise ProteaError(
                    f"flower-superlink did not come up in {START:g} s.  The end of {self.program.log}:\n"
                    f"{self.program.said()}"
                )
            time.sleep(0.1)
        self.program.refuse_dead()  # another program may have answered there

    def _token(self) -> str:
        """Get the token by which this process is the server of our run."""
        with closing(taker(self.address, self.folder, self.tls is None, self._trusted())) as client:
            end = time.monotonic() + START
            while time.monotonic() < end:
                found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if found.HasField("task") and found.task.run_id == self.run:  # another one's run comes to nothing
                    return str(found.token)
                time.sleep(0.1)
        raise ProteaError(f"The SuperLink at {self.address} did not give us the run that we started.")

    def _trusted(self) -> bytes | None:
        return None if self.tls is None else self.tls.ca.read_bytes()

    def _leave(self) -> None:
        if self.pulse is not None and self.pulse.is_running:
            self.pulse.stop()
        if self.grid is not None:
            self.grid.close()
        self.pulse = self.grid = None
