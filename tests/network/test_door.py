"""The front door, attacked on loopback with a real SuperLink behind it."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import hashlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

import httpx
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.proto.control_pb2 import ListNodesRequest, UnregisterNodeRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.task_identity import TaskIdentity
from waiting import until

from protea.core.errors import ConfigError, PayloadError
from protea.core.files import write_json
from protea.engines.flower.admission import DoorLimits
from protea.engines.flower.callers import Pace, at_once
from protea.engines.flower.codec import BROKEN, PART, fetch, wrap
from protea.engines.flower.door import Door
from protea.engines.flower.link import Link, Tls
from protea.engines.flower.node import Node as ClientNode
from protea.engines.flower.patient_grid import PatientGrid
from protea.engines.flower.programs import free_port
from protea.network.trust import keys

pytestmark = pytest.mark.xdist_group("deployment")

PROTOBUF = f"Content-Type: {PROTOBUF_MEDIA_TYPE}\r\n"
LIMITS = DoorLimits(upload=2**20, per_address=8, connections=12, head=0.5, idle=5.0, slowest=2**20)


class Opened:
    """A SuperLink behind a door, and the keys of the one site that may come in."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        keys.make_tls(folder, list(keys.HERE))
        self.private, self.public = keys.make_site_key()
        tls = Tls(folder / "ca.crt", folder / "server.crt", folder / "server.key")
        self.port = free_port()
        self.link = Link(folder / "flower", "127.0.0.1", self.port, tls, {"north": self.public}, LIMITS)
        self.link.open()
        self.identity = TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id
        self.trusting = ssl.create_default_context(cafile=str(tls.ca))

    def connect(self) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        return self.trusting.wrap_socket(raw, server_hostname="127.0.0.1")

    def answer(self, sent: bytes) -> bytes:
        """Send bytes, and give all that comes back until the door closes the connection."""
        with self.connect() as line:
            line.sendall(sent)
            return everything(line)

    def request(self, path: str, length: int, private: bytes | None = None, more: str = "") -> bytes:
        """The head of a request, signed by a key."""
        signed = "" if private is None else signature(private)
        return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{signed}{more}\r\n".encode()


def everything(line: socket.socket) -> bytes:
    found = b""
    try:
        while part := line.recv(65536):
            found += part
    except OSError:
        pass
    return found


def signature(private: bytes, ahead: float = 0.0) -> str:
    key = load_ssh_private_key(private, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    stamp = (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=ahead)).isoformat()
    signed = base64.b64encode(key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))).decode()
    public = base64.b64encode(keys.public_of(key)).decode()
    return f"flwr-public-key: {public}\r\nflwr-signature: {signed}\r\nflwr-timestamp: {stamp}\r\n"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    found = Opened(tmp_path_factory.mktemp("door") / "keys")
    yield found
    found.link.close()


def names(opened: Opened) -> list[str]:
    with opened.link.control() as control:
        return [str(node.status) for node in control.ListNodes(ListNodesRequest()).nodes_info]


def test_control_api_is_not_reached_from_outside_nor_without_the_secret(opened: Opened) -> None:
    """Before there was a door, one call struck a site off for ever."""
    with opened.link.control() as control:
        (node,) = control.ListNodes(ListNodesRequest()).nodes_info
    for address, status in ((f"127.0.0.1:{opened.port}", 404), (opened.link.address, 403)):
        client = ControlHttpClient.from_server_address(address, False, opened.link._trusted(), [])
        with pytest.raises(httpx.HTTPStatusError) as refused:
            client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
        assert refused.value.response.status_code == status
        client.close()
    assert names(opened) == [node.status] and node.status != "unregistered"


@pytest.mark.parametrize(
    "path", ["/v1/control/list-nodes", "/v1/runtime/pull-messages", "/docs", "/v1/fleet/../control/x"]
)
def test_paths_that_sites_do_not_need_are_not_there(path: str, opened: Opened) -> None:
    assert opened.answer(opened.request(path, 0, opened.private)).startswith(b"HTTP/1.1 404")


def test_a_large_body_is_refused_before_a_byte_of_it_is_read(opened: Opened) -> None:
    """Only heads are sent here, so an answer means that no body was waited for."""
    path, huge, stranger = "/v1/fleet/push-object", 600 * 2**20, keys.make_site_key()[0]
    assert opened.answer(opened.request(path, huge)).startswith(b"HTTP/1.1 401")
    assert opened.answer(opened.request(path, huge, stranger)).startswith(b"HTTP/1.1 401")
    assert opened.answer(opened.request("/v1/fleet/activate-node", huge, stranger)).startswith(b"HTTP/1.1 401")
    assert opened.answer(opened.request("/v1/fleet/activate-node", huge, opened.private)).startswith(b"HTTP/1.1 413")
    assert opened.answer(opened.request(path, huge, opened.private)).startswith(b"HTTP/1.1 413")
    assert opened.answer(opened.request(path, LIMITS.body("push-object") + 1, opened.private)).startswith(
        b"HTTP/1.1 413"
    )


def test_an_old_signature_and_one_of_the_future_are_refused(opened: Opened) -> None:
    for ahead in (-400.0, 60.0):
        head = opened.request("/v1/fleet/pull-messages", 0, more=signature(opened.private, ahead))
        answer = opened.answer(head)
        assert answer.startswith(b"HTTP/1.1 401") and b"signed by another clock; here it is 20" in answer


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 2**17, 431),
        (b"\x16\x03\x01\x00\r\n\r\n", 400),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\n", 408),
    ],
    ids=["chunked", "two lengths", "long head", "no request", "half a head"],
)
def test_requests_that_are_none_are_refused(sent: bytes, status: int, opened: Opened) -> None:
    assert opened.answer(sent).startswith(f"HTTP/1.1 {status}".encode())


def test_an_address_has_so_many_connections_and_slow_ones_are_ended(opened: Opened) -> None:
    assert opened.link.door is not None
    before = opened.link.door.refusals[0]
    raw = [socket.create_connection(("127.0.0.1", opened.port), timeout=10) for _ in range(40)]
    assert all(everything(line) == b"" for line in raw)  # those beyond the limit at once, the others in half a second
    assert opened.link.door.refusals[0] > before
    for line in raw:
        line.close()
    assert opened.answer(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").endswith(b"ok")  # and there is room again


def test_a_body_that_never_comes_whole_is_not_handed_on(opened: Opened) -> None:
    sent = opened.request("/v1/fleet/push-object", 1000, opened.private) + b"a" * 999
    assert opened.answer(sent).startswith(b"HTTP/1.1 408")


def test_a_site_is_let_through_and_its_connection_kept(opened: Opened) -> None:
    body = ActivateNodeRequest(public_key=opened.public, heartbeat_interval=30.0).SerializeToString()
    kind = PROTOBUF
    with opened.connect() as line:
        for _ in range(2):
            line.sendall(opened.request("/v1/fleet/activate-node", len(body), opened.private, kind) + body)
            head = b""
            while b"\r\n\r\n" not in head:
                head += line.recv(1)
            assert b"unknown key" not in head and int(head.split()[1]) not in (404, 411, 413)
            (length,) = [int(each.split(b":")[1]) for each in head.lower().splitlines() if b"content-length" in each]
            while length:
                length -= len(line.recv(length))


def test_answers_are_sent_at_once(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the system would hold back the second part of an answer for 40 ms."""
    found: list[int] = []
    serve = Door._connection

    async def looked_at(door: Door, taken: socket.socket, address: str) -> None:
        found.append(taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await serve(door, taken, address)

    monkeypatch.setattr(Door, "_connection", looked_at)
    assert opened.answer(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").endswith(b"ok")
    assert found and all(found)


def test_a_port_that_is_taken_is_named(opened: Opened) -> None:
    tls = opened.link.tls
    other = Link(opened.link.folder, "127.0.0.1", opened.port, tls, {}, LIMITS)
    with pytest.raises(ConfigError, match=f"127.0.0.1:{opened.port} cannot be listened on"):
        other._open_door(LIMITS)


def tree_of(records: list[str]) -> ObjectTree:
    below = ObjectTree(object_id="list", children=[ObjectTree(object_id=each) for each in records])
    return ObjectTree(object_id="message", children=[below])


@pytest.mark.parametrize("records", [["a", "a"], list("abc")], ids=["one part again", "too many parts"])
def test_parts_beyond_the_limit_are_refused_before_one_is_fetched(records: list[str]) -> None:
    """Before that, a site made 1 GB of memory at the coordinator out of one part that it named 256 times."""
    pulled: list[str] = []

    def pull(part: str) -> bytes:
        pulled.append(part)
        return b""

    with pytest.raises(PayloadError, match=f"a message of {len(records)} parts arrived"):
        fetch(tree_of(records), pull, 2 * PART)
    assert not pulled


def test_an_upload_of_the_largest_size_passes_the_limits_of_its_message() -> None:
    limits = DoorLimits(upload=3 * PART)
    parts = wrap(bytes(limits.message))
    assert len(parts) + 2 == limits.objects
    assert all(len(part.deflate()) < limits.body("push-object") for part in parts.values())
    assert limits.body("push-messages") > 128 * limits.objects  # a part's name has 64 characters


def test_every_part_passes_of_an_answer_whose_list_of_parts_has_passed() -> None:
    """Of small uploads too: else one of 3 MB was announced and then stopped, and its site was asked again and again."""
    limits = DoorLimits(upload=2**18)
    (part,) = wrap(bytes(PART)).values()
    assert limits.message < PART and len(part.deflate()) < limits.body("push-object")


def test_the_coordinator_fetches_no_more_than_its_limits(opened: Opened) -> None:
    grid = opened.link.grid
    assert isinstance(grid, PatientGrid) and grid.limit == LIMITS.message


def test_a_sites_question_is_held_until_there_is_a_message(opened: Opened) -> None:
    """It is answered by the SuperLink then, which here has none after all."""
    with opened.connect() as line:
        body = PullMessagesRequest(node=Node(node_id=number(opened))).SerializeToString()
        line.sendall(opened.request("/v1/fleet/pull-messages", len(body), opened.private, PROTOBUF) + body)
        until(lambda: opened.public in opened.link.notices.asking)
        opened.link.notices.message_for(opened.public)
        assert answered(line).startswith(b"HTTP/1.1 200")
        assert opened.public not in opened.link.notices.asking


def test_strangers_of_many_addresses_do_not_keep_a_site_out(opened: Opened) -> None:
    """There is room for twelve.  Who was there first and says nothing goes; a site that waits for a message stays."""
    body = PullMessagesRequest(node=Node(node_id=number(opened))).SerializeToString()
    with opened.connect() as line:
        line.sendall(opened.request("/v1/fleet/pull-messages", len(body), opened.private, PROTOBUF) + body)
        until(lambda: opened.public in opened.link.notices.asking)
        there = ("127.0.0.1", opened.port)
        raw = [socket.create_connection(there, 10, (f"127.0.3.{k // 4 + 1}", 0)) for k in range(24)]
        assert opened.answer(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").endswith(b"ok")
        assert opened.public in opened.link.notices.asking
        opened.link.notices.message_for(opened.public)
        assert answered(line).startswith(b"HTTP/1.1 200")
    for each in raw:
        each.close()


def test_a_connection_on_which_nothing_is_asked_is_a_strangers_and_soon_closed(opened: Opened) -> None:
    began = time.monotonic()
    with opened.connect() as line:
        assert everything(line) == b""
    assert time.monotonic() - began < LIMITS.idle  # which is what a site's connection has
    assert opened.link.door is not None and not opened.link.door.callers.strangers


def test_an_address_connects_so_often_and_no_more(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened.link.door is not None
    monkeypatch.setattr(opened.link.door, "arrivals", Pace(0.01, burst=1))
    health = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    assert opened.answer(health).endswith(b"ok")
    with pytest.raises(OSError):
        opened.answer(health)


def asked_twice(opened: Opened, first: bytes) -> float:
    """Send something, and a whole request on another connection; the seconds until that has an answer."""
    body = ActivateNodeRequest(public_key=opened.public, heartbeat_interval=30.0).SerializeToString()
    second = opened.request("/v1/fleet/activate-node", len(body), opened.private, PROTOBUF) + body
    assert opened.link.door is not None
    with opened.connect() as one, opened.connect() as other:
        one.sendall(first or second)
        if first:
            until(opened.link.door.places[opened.public].locked)
        else:
            answered(one)
        began = time.monotonic()
        other.sendall(second)
        answered(other)
    return time.monotonic() - began


def test_a_site_that_asks_too_often_waits(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened.link.door is not None
    monkeypatch.setattr(opened.link.door, "pace", Pace(0.5, burst=1))
    assert asked_twice(opened, b"") > 0.5


def test_a_site_has_so_many_bodies_at_a_time(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one place, and half a body in it until its time is over."""
    assert opened.link.door is not None
    monkeypatch.setattr(opened.link.door, "places", at_once(1))
    half = opened.request("/v1/fleet/push-object", 1000, opened.private) + b"a" * 999
    assert asked_twice(opened, half) > LIMITS.head / 2


def reply_to(opened: Opened, asked: str, node: int, tree: ObjectTree, **about: object) -> bytes:
    """What a site announces: its answer to a message, and the parts of that."""
    message = MessageProto()
    message.content.SetInParent()
    known = {
        "run_id": opened.link.run,
        "message_id": tree.object_id,
        "src_node_id": node,
        "dst_node_id": 1,
        "reply_to_message_id": asked,
        "ttl": 5.0,
        "message_type": "query.job",
        "created_at": dt.datetime.now(dt.UTC).timestamp(),
    }
    for name, value in {**known, **about}.items():
        setattr(message.metadata, name, value)
    request = PushMessagesRequest(node=Node(node_id=node), messages_list=[message], message_object_trees=[tree])
    return request.SerializeToString()


def of_parts(*names: str) -> ObjectTree:
    """The tree of a message of so many parts, whose ids are made of these names."""
    root, below, *parts = (hashlib.sha256(each.encode()).hexdigest() for each in ("message", "list", *names))
    children = [ObjectTree(object_id=each) for each in parts]
    return ObjectTree(object_id=root, children=[ObjectTree(object_id=below, children=children)])


def doubled(levels: int) -> ObjectTree:
    """A tree of few objects, each of which has the one below twice: two to the power of ``levels`` when unrolled."""
    tree = ObjectTree(object_id="0" * 64)
    for level in range(1, levels):
        tree = ObjectTree(object_id=f"{level:064x}", children=[tree, ObjectTree(object_id=tree.object_id)])
    return tree


def announce(opened: Opened, private: bytes, body: bytes) -> tuple[int, list[str]]:
    """Announce a reply as the owner of a key; the status, and the parts that are wanted."""
    with opened.connect() as line:
        line.sendall(opened.request("/v1/fleet/push-messages", len(body), private, PROTOBUF) + body)
        head, _, content = answered(line).partition(b"\r\n\r\n")
    status = int(head.split()[1])
    return status, list(PushMessagesResponse.FromString(content).objects_to_push) if status == 200 else []


@pytest.fixture
def asked(opened: Opened) -> Iterator[tuple[str, int]]:
    """A message that waits for an answer of the one site, and that site's node."""
    body = ActivateNodeRequest(public_key=opened.public, heartbeat_interval=30.0).SerializeToString()
    with opened.connect() as line:
        line.sendall(opened.request("/v1/fleet/activate-node", len(body), opened.private, PROTOBUF) + body)
        answered(line)
    (node,) = opened.link.nodes()
    assert opened.link.grid is not None
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = opened.identity  # a site was in this process too
    message = Message(wrap(b"a job"), node.node_id, "query.job", ttl=60.0)
    (identity,) = opened.link.grid.push_messages([message])
    yield identity, node.node_id
    opened.link.notices.replies.forget_others([])


def test_a_reply_is_announced_once_by_the_site_that_was_asked(opened: Opened, asked: tuple[str, int]) -> None:
    """The list of parts that are wanted is empty for all others, so nothing of theirs is stored."""
    (identity, node), first = asked, of_parts("a")
    private, public = keys.make_site_key()
    opened.link.keys = {"north": opened.public, "south": public}
    try:
        assert announce(opened, private, reply_to(opened, identity, node, first)) == (200, [])
        assert announce(opened, opened.private, reply_to(opened, "f" * 64, node, first)) == (200, [])
        sent = reply_to(opened, identity, node, first)
        status, wanted = announce(opened, opened.private, sent)
        assert status == 200 and len(wanted) == 3
        assert sorted(announce(opened, opened.private, sent)[1]) == sorted(wanted)  # the answer may have been lost
        assert announce(opened, opened.private, reply_to(opened, identity, node, of_parts("c"))) == (200, [])
    finally:
        opened.link.keys = {"north": opened.public}


def test_what_is_no_reply_is_refused_before_the_superlink_has_it(opened: Opened, asked: tuple[str, int]) -> None:
    """Each of these it would have stored, the last one as 2**60 objects as soon as the coordinator asked for it."""
    identity, node = asked
    order = reply_to(opened, "", node, of_parts("a"), src_node_id=1)
    foreign = reply_to(opened, identity, node, of_parts("a"), src_node_id=node + 1)
    two = PushMessagesRequest.FromString(reply_to(opened, identity, node, of_parts("a")))
    two.message_object_trees.append(of_parts("b"))
    for body in (
        b"no protobuf",
        b"",
        order,
        foreign,
        two.SerializeToString(),
        reply_to(opened, identity, node, of_parts("a"), message_id="e" * 64),
        reply_to(opened, identity, node, of_parts("a", "a")),
        reply_to(opened, identity, node, of_parts("a", "b")),
        reply_to(opened, identity, node, doubled(60)),
    ):
        assert announce(opened, opened.private, body) == (400, [])
    assert len(announce(opened, opened.private, reply_to(opened, identity, node, of_parts("a")))[1]) == 3


def test_a_site_whose_answer_was_lost_leaves_and_comes_back(opened: Opened, tmp_path: Path) -> None:
    """What was sent to it meanwhile is sent again then: its node is another one to the coordinator."""
    assert opened.link.door is not None and opened.link.tls is not None
    key, over = tmp_path / "key", threading.Event()
    key.write_bytes(opened.private)
    node = ClientNode(tmp_path / "node", f"127.0.0.1:{opened.port}", opened.link.tls.ca, key)
    node.folder.mkdir()
    write_json(node.folder / "node.json", {"node": number(opened)})  # it may be active since the test before
    thread = threading.Thread(target=node.attend, args=(lambda kind, message: b"", over.is_set))
    thread.start()
    try:
        until(lambda: opened.public in opened.link.notices.asking)
        (before,) = opened.link.nodes()
        other = opened.link.notices.until_message(
            opened.public, lambda: False, 0.0
        )  # and the site's own gets no answer
        asyncio.run_coroutine_threadsafe(other, opened.link.door.loop).result()
        until(lambda: [each.last_activated_at for each in opened.link.nodes()] > [before.last_activated_at])
        until(lambda: opened.public in opened.link.notices.asking)
    finally:
        over.set()
        opened.link.notices.wake()
        thread.join()


def test_an_answer_that_is_too_large_is_told_as_such(opened: Opened, asked: tuple[str, int], tmp_path: Path) -> None:
    """The door refuses its list of parts; the site says so, and the coordinator counts it as refused."""
    assert opened.link.tls is not None and opened.link.grid is not None
    (identity, number), key, over = asked, tmp_path / "key", threading.Event()
    key.write_bytes(opened.private)
    node = ClientNode(tmp_path / "node", f"127.0.0.1:{opened.port}", opened.link.tls.ca, key)
    node.folder.mkdir()
    write_json(node.folder / "node.json", {"node": number})
    thread = threading.Thread(target=node.attend, args=(lambda kind, message: bytes(3 * PART), over.is_set))
    thread.start()
    found: list[Message] = []
    try:
        until((node.folder / "connection.json").exists)  # until then its node may be gone for a moment
        until(lambda: found.extend(opened.link.grid.pull_messages([identity])) or found)  # type: ignore[union-attr]
    finally:
        over.set()
        opened.link.notices.wake()
        thread.join()
    assert found[0].error.code == BROKEN and "a message of 3 parts arrived" in found[0].error.reason


def number(opened: Opened) -> int:
    """What the SuperLink calls the one site that is registered."""
    with opened.link.control() as control:
        (node,) = control.ListNodes(ListNodesRequest()).nodes_info
    return int(node.node_id)


def answered(line: ssl.SSLSocket) -> bytes:
    """One whole answer of a connection that stays open."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += line.recv(1)
    (length,) = [int(each.split(b":")[1]) for each in found.lower().splitlines() if b"content-length" in each]
    while length:
        part = line.recv(length)
        found, length = found + part, length - len(part)
    return found


def test_a_site_that_is_struck_off_while_it_waits_is_told_at_once(opened: Opened) -> None:
    private, public = keys.make_site_key()
    opened.link.keys = {"north": opened.public, "south": public}
    opened.link.register(opened.link.keys)
    answers: list[bytes] = []
    sent = opened.request("/v1/fleet/pull-messages", 0, private)
    asking = threading.Thread(target=lambda: answers.append(opened.answer(sent)))
    asking.start()
    until(lambda: public in opened.link.notices.asking)
    opened.link.keys = {"north": opened.public}
    opened.link.register(opened.link.keys)
    asking.join(10)
    assert answers and answers[0].startswith(b"HTTP/1.1 401")
