"""A SuperLink, and this process as the server side of a run on it."""

from __future__ import annotations

import hashlib
import queue
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Error, Message
from flwr.app.message import make_message, remove_content_from_message
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, message_from_proto, message_to_proto, run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import InflatableObject, get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from protea.core.errors import ProteaError
from protea.engines.flower.admission import DoorLimits
from protea.engines.flower.codec import BROKEN, fetch, hand_over
from protea.engines.flower.connections import allow_files, keeping
from protea.engines.flower.door import Door
from protea.engines.flower.notices import Notices
from protea.engines.flower.programs import Program, free_port
from protea.engines.flower.tasks import ControlSecret, heartbeat, make_secret, taker

LOST = (httpx.HTTPError, OSError)  # what talking to a SuperLink that is gone, or was started anew, may raise
START = 60.0  # seconds that a SuperLink may take to come up
PULL = 0.05  # seconds that an announced reply is waited for, before others are looked for
UNASKED = 1.0  # seconds without a notice after which the SuperLink is asked for replies all the same

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


class PatientGrid(HttpGrid):
    """A grid on which nobody waits for a reply that is never complete.

    A node that dies while it sends a reply leaves one that is announced and never complete; Flower would wait two
    hours for the rest, and meanwhile take no other.  Here one request asks which replies were announced, and each of
    these is fetched by a thread of its own.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.limit = 2**31  # most bytes of a reply
        self.notices: Notices | None = None  # of the door, if there is one
        self.keys: dict[int, bytes] = {}  # public keys of nodes, by id
        self.asked = 0.0  # when the SuperLink was last asked for replies
        self.fetched: queue.Queue[tuple[str, Message | Exception]] = queue.Queue()
        self.busy: set[str] = set()  # messages whose replies are being fetched
        self.pushed: dict[str, Message] = {}  # that were not answered yet

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        ids = [str(identity or "") for identity in super().push_messages(messages)]
        self.pushed |= {identity: message for identity, message in zip(ids, messages, strict=True) if identity}
        return ids

    def _try_push_messages(self, run_id: int, messages: Iterable[Message]) -> list[str]:
        """Announce messages, and hand over what they consist of."""
        objects: dict[str, InflatableObject] = {}
        request = PushAppMessagesRequest()
        for message in messages:
            request.messages_list.append(message_to_proto(remove_content_from_message(message)))
            request.message_object_trees.append(get_object_tree(message))
            objects |= get_all_nested_objects(message)
        if self.notices is not None:  # first, since it can be asked for as soon as it is there
            for each in request.messages_list:
                key = self.keys.get(each.metadata.dst_node_id)
                self.notices.replies.expect(each.metadata.message_id, key)
        told = self._runtime_client.PushMessages(request)
        push = make_push_object_fn_protobuf(self._runtime_client.PushObject, self.node, run_id, told.session_id)
        hand_over(objects, push, told.objects_to_push)
        if self.notices is not None:
            for each in request.messages_list:
                if (key := self.keys.get(each.metadata.dst_node_id)) is not None:
                    self.notices.message_for(key)
        return list(told.message_ids)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Give the replies to these messages that are complete by now."""
        wanted, found = set(message_ids), []
        self.pushed = {identity: message for identity, message in self.pushed.items() if identity in wanted}
        if self.notices is not None:
            self.notices.replies.forget_others(wanted)
        if (waiting := wanted - self.busy) and self._worth_asking():
            told = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=waiting))
            for announced, tree in zip(told.messages_list, told.message_object_trees, strict=True):
                identity = str(announced.metadata.reply_to_message_id)
                self.busy.add(identity)
                message = message_from_proto(announced)
                threading.Thread(target=self._fetch, args=(identity, message, tree), daemon=True).start()
        with suppress(queue.Empty):
            while self.busy:
                identity, result = self.fetched.get(timeout=PULL)
                self.busy.discard(identity)
                if isinstance(result, LOST):
                    raise result
                if identity not in wanted or identity not in self.pushed:
                    continue
                if isinstance(result, Exception):
                    why = f"its reply cannot be read: {type(result).__name__}."
                    result = Message(Error(code=BROKEN, reason=why), reply_to=self.pushed[identity])
                found.append(result)
        return found

    def _worth_asking(self) -> bool:
        """Whether a reply may have come since the SuperLink was last asked; wait a little for one."""
        came = self.notices is None or self.notices.until_reply(0.0 if self.busy else PULL)
        if came or time.monotonic() > self.asked + UNASKED:
            self.asked = time.monotonic()
            return True
        return False

    def _fetch(self, identity: str, announced: Message, tree: ObjectTree) -> None:
        """Fetch a reply, and tell the SuperLink that it may forget it, also one that cannot be read."""
        try:
            self.fetched.put((identity, self._complete(announced, tree)))
        except Exception as error:  # for whoever asked
            self.fetched.put((identity, error))
        request = ConfirmMessageReceivedRequest(
            node=self.node, run_id=self.run.run_id, message_object_id=announced.metadata.message_id
        )
        with suppress(Exception):  # nothing depends on it, and the connection may be closed by now
            self._runtime_client.ConfirmMessageReceived(request)

    def _complete(self, announced: Message, tree: ObjectTree) -> Message:
        if announced.has_error():
            return announced
        pull = make_pull_object_fn_protobuf(self._runtime_client.PullObject, self.node, self.run.run_id)
        content = fetch(tree, lambda part: pull_objects([part], pull)[part], self.limit)
        return make_message(metadata=announced.metadata, content=content)


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
