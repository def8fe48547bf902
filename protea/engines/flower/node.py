"""This process as a node of a SuperLink: it asks for messages, and answers them.

It connects out, opens no port, and is the process that trains.  Flower's own SuperNode would be one process more at
each site, with a port, and a dozen requests more for each message.
"""

from __future__ import annotations

import re
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Error, Message, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError, pull_objects
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from protea.core.errors import PayloadError, ProteaError
from protea.core.files import write_json
from protea.engines.flower.codec import BROKEN, fetch, hand_over, unwrap, wrap
from protea.engines.flower.connections import keeping
from protea.engines.flower.node_key import known_node, node_key

FAST, SLOW = 0.04, 3.0  # seconds between looks for a message: soon after the last one, and after a long wait
SHARE = 10  # a look follows after this part of the time that was waited so far
LIGHT = 5  # and after this many times the seconds that the last look took: a busy server is asked less often
HELD = 1.0  # seconds of a look that was not just slow: a front door kept it until there was something, or for a while
AGAIN = 1.0  # seconds before another try to connect
SAID = 5.0  # seconds without a server before the screen says so
LIMIT = 2**31  # bytes of a message that are looked at; it comes from a server that the site has chosen to trust

Handle = Callable[[str, bytes], bytes]  # from what is asked ("hello", "job") and the bytes of it to those of the answer
T = TypeVar("T")


def pause(waited: float, took: float) -> float:
    """Give the seconds until the next look for a message, after ``waited`` seconds without one.

    ``took`` are the seconds of the last look.
    """
    if took > HELD:
        return FAST
    return min(max(FAST, waited / SHARE, LIGHT * took), SLOW)


class LostAnswerError(Exception):
    """The answer to a question for messages never came."""


@dataclass(frozen=True)
class Node:
    """A node of the SuperLink at ``superlink``; with ``ca`` over TLS, as the owner of ``key``.

    How its connection stands is in the file ``folder/connection.json``.
    """

    folder: Path
    superlink: str
    ca: Path | None = None
    key: Path | None = None

    def attend(
        self, handle: Handle, over: Callable[[], bool] = lambda: False, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Answer messages, one after another, until ``over()``; connect anew whenever that is needed.

        ``meanwhile`` is called after each answer, and whenever there is no message.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        private = node_key(self.folder, self.key)
        while not over():
            try:
                with closing(self._client(private)) as client:
                    connection = Connection(self, client, private, over, meanwhile)
                    connection.activate()
                    connection.attend(handle)
            except httpx.HTTPStatusError as error:
                words = f"{error.response.status_code}: {error.response.text[:500]}"
                if error.response.status_code >= 500:  # a proxy says that nobody is behind it
                    self.note("away", words)
                elif not connection.id.node_id:  # else it was let in, and will be again
                    self.note("refused", words)
            except LostAnswerError as error:
                self.note("away", str(error))
            except (httpx.HTTPError, OSError) as error:
                words = f"{type(error).__name__}: {error}"
                mended = not re.search("certificate.verify.failed|wrong.version.number", words, re.IGNORECASE)
                self.note("away" if mended else "impossible", words)
            if not over():
                time.sleep(AGAIN)

    def note(self, state: str, words: str = "") -> None:
        """Write down how the connection stands: connected, refused, away, or impossible."""
        with suppress(OSError):  # a full disk is told of elsewhere
            write_json(self.folder / "connection.json", {"state": state, "words": words})

    def _client(self, private: ec.EllipticCurvePrivateKey) -> FleetHttpClient:
        signed = NodeAuthHttpInterceptor(private, private.public_key())
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        trusted = None if self.ca is None else self.ca.read_bytes()
        client = FleetHttpClient.from_server_address(self.superlink, self.ca is None, trusted, [version, signed])
        return keeping(client)


class Connection:
    """A node that is known to the SuperLink, from its activation to its end."""

    def __init__(
        self,
        node: Node,
        client: FleetHttpClient,
        private: ec.EllipticCurvePrivateKey,
        over: Callable[[], bool],
        meanwhile: Callable[[], None],
    ) -> None:
        self.node, self.client, self.over, self.meanwhile = node, client, over, meanwhile
        self.key = public_key_to_bytes(private.public_key())
        self.id = NodeProto()  # without a number until it is active

    def attend(self, handle: Handle) -> None:
        """Answer messages until ``over()``, or until the server does not know this node any more."""
        self.node.note("connected")
        pulse = HeartbeatSender(self._beat)
        pulse.start()
        try:
            self._answer_all(handle)
        finally:
            if pulse.is_running:
                pulse.stop()
            with suppress(httpx.HTTPError):
                self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.id.node_id))

    def activate(self) -> None:
        """Tell the server that this node is there."""
        request = ActivateNodeRequest(public_key=self.key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        last = known_node(self.node.folder)
        if self.node.key is None:
            with suppress(httpx.HTTPStatusError):  # it is known already
                self.client.RegisterNode(RegisterNodeFleetRequest(public_key=self.key))
        try:
            found = self.client.ActivateNode(request).node_id
        except httpx.HTTPStatusError:
            if last is None:
                raise
            with suppress(httpx.HTTPStatusError):  # a process before this one was killed, and counts as being there
                self.client.DeactivateNode(DeactivateNodeRequest(node_id=last))
            found = self.client.ActivateNode(request).node_id
        self.id = NodeProto(node_id=found)
        write_json(self.node.folder / "node.json", {"node": found})

    def _beat(self) -> bool:
        """Give a sign of life; that this node is not known any more is noticed by whoever asks for messages."""
        try:
            interval = HEARTBEAT_DEFAULT_INTERVAL
            self.client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=self.id, heartbeat_interval=interval))
        except httpx.HTTPStatusError:
            return True
        except httpx.HTTPError:
            return False
        return True

    def _answer_all(self, handle: Handle) -> None:
        last = time.monotonic()  # when there was a message
        while not self.over():
            began = time.monotonic()
            found = self._insist(self._look)
            if found.messages_list:
                try:
                    self._answer(message_from_proto(found.messages_list[0]), found.message_object_trees[0], handle)
                except httpx.HTTPError:
                    raise
                except Exception:  # Flower has many kinds for what it cannot read, and for what it has forgotten
                    traceback.print_exc()
                self.meanwhile()
                last = time.monotonic()
            else:
                took = time.monotonic() - began
                self.meanwhile()
                time.sleep(pause(time.monotonic() - last, took))

    def _look(self) -> PullMessagesResponse:
        """Ask for a message.  If the answer is lost, a message may be lost with it, and the server is told so.

        It sends what a node has not answered again when that node has left and come back.
        """
        try:
            return self.client.PullMessages(PullMessagesRequest(node=self.id))
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise  # it was never asked
        except httpx.TransportError as error:
            raise LostAnswerError(str(error) or type(error).__name__) from error

    def _insist(self, call: Callable[[], T]) -> T:
        """Call until there is an answer: a server that is away for a while comes back."""
        began, wait, away = time.monotonic(), FAST, False
        while True:
            try:
                found = call()
            except httpx.HTTPStatusError as error:
                if error.response.status_code < 500 or self.over():
                    raise
            except httpx.TransportError:
                if self.over():
                    raise
            else:
                if away:
                    self.node.note("connected")
                return found
            if time.monotonic() > began + SAID and not away:
                away = True
                self.node.note("away", "the server cannot be reached.")
            time.sleep(wait)
            wait = min(2 * wait, SLOW)

    def _answer(self, asked: Message, tree: ObjectTree, handle: Handle) -> None:
        """Answer one message."""
        run, began = asked.metadata.run_id, time.monotonic()
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, self.id.node_id, 0
        pull = make_pull_object_fn_protobuf(
            lambda request: self._insist(lambda: self.client.PullObject(request)), self.id, run
        )
        try:
            content = fetch(tree, lambda identity: pull_objects([identity], pull)[identity], LIMIT)
        except PayloadError as error:
            answer = refusal(asked, str(error))
        else:
            done = threading.Thread(target=self._confirm, args=(run, asked.metadata.message_id), daemon=True)
            done.start()  # the answer need not wait for this
            answer = answered(make_message(metadata=asked.metadata, content=content), handle)
        try:
            self._send(answer, run, time.monotonic() - began)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 400:
                raise
            why = f"the coordinator's door refused the answer: {error.response.text[:1000]}"  # it is too large
            self._send(refusal(asked, why, BROKEN), run, time.monotonic() - began)

    def _confirm(self, run: int, message: str) -> None:
        """Tell the server that it may forget what the message had."""
        with suppress(httpx.HTTPError):
            request = ConfirmMessageReceivedRequest(node=self.id, run_id=run, message_object_id=message)
            self.client.ConfirmMessageReceived(request)

    def _send(self, answer: Message, run: int, took: float) -> None:
        answer.metadata.__dict__["_message_id"] = answer.object_id
        with no_object_id_recompute():
            tree, objects = get_object_tree(answer), get_all_nested_objects(answer)
        request = PushMessagesRequest(
            node=self.id,
            messages_list=[message_to_proto(remove_content_from_message(answer))],
            message_object_trees=[tree],
            clientapp_runtime_list=[took],
        )
        told = self._insist(lambda: self.client.PushMessages(request))
        push = make_push_object_fn_protobuf(
            lambda request: self._insist(lambda: self.client.PushObject(request)), self.id, run, told.session_id
        )
        with suppress(ObjectPushError):  # the answer was taken already, or nobody waits for it any more
            hand_over(objects, push, told.objects_to_push)


def answered(message: Message, handle: Handle) -> Message:
    """Give what is sent back: an answer, or an error that says why there is none."""
    try:
        kind = message.metadata.message_type.rpartition(".")[2]
        content: RecordDict = wrap(handle(kind, unwrap(message.content, LIMIT)))
    except ProteaError as problem:
        return refusal(message, str(problem))
    except Exception as error:
        return refusal(message, f"{type(error).__name__}: {error}")
    return Message(content, reply_to=message)


def refusal(message: Message, why: str, code: int = ErrorCode.CLIENT_APP_RAISED_EXCEPTION) -> Message:
    """Give the error that answers a message."""
    return Message(Error(code=code, reason=why[:10_000]), reply_to=message)
