"""What strangers and a hostile site can do to a coordinator: its memory, and the rounds of the others meanwhile.

    python benchmarks/attacks.py [seconds] [crowd,half_bodies,orders,doubled]

A coordinator with two honest tiny sites, as in sites.py, and a third one that was invited and is hostile.  Each attack
lasts ten seconds on loopback, and is bounded in count too.  The table has the most memory of the coordinator and of its
SuperLink, in MB, and rounds by second: seconds on a machine that attackers share say little, memory says more.
"""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import torch
from door import Site
from flwr.app import ConfigRecord
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import Message, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_object_id
from measure import Table
from network import done, until
from sites import playing

from protea.engines.flower.codec import PART
from protea.network.trust import keys

CONNECTIONS, BODIES, ORDERS, LEVELS = 1500, 150, 150, 50  # of an attack, at most


@dataclass
class Attack:
    """A federation that is attacked, and the hostile site in it."""

    server: int
    metrics: Path
    port: int
    trusting: ssl.SSLContext
    site: Site
    seconds: float
    held: list[socket.socket] = field(default_factory=list)
    node: int = 0

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Make a request as the hostile site."""
        line = self.site.connection()
        line.request("POST", f"/v1/fleet/{path}", body, self.site.headers(self.site.private))
        answer = line.getresponse()
        found = answer.read()
        line.close()
        return answer.status, found

    def job(self) -> Message:
        """Take part as far as it needs to be asked something, and give that."""
        if not self.node:
            here = ActivateNodeRequest(public_key=public(self.site), heartbeat_interval=600.0)
            status, answer = self.post("activate-node", here.SerializeToString())
            assert status == 200, answer
            self.node = ActivateNodeResponse.FromString(answer).node_id
        for _ in range(6):  # each is held for 20 s
            _, answer = self.post(
                "pull-messages", PullMessagesRequest(node=Node(node_id=self.node)).SerializeToString()
            )
            if messages := PullMessagesResponse.FromString(answer).messages_list:
                return messages[0]
        raise TimeoutError

    def announce(self, asked: Message, tree: ObjectTree, source: int, answers: str) -> PushMessagesResponse | None:
        """Announce a message, and give the answer; None if it is refused."""
        message = Message()
        message.content.SetInParent()
        about = message.metadata
        about.CopyFrom(asked.metadata)
        about.message_id, about.src_node_id, about.dst_node_id = tree.object_id, source, 1
        about.reply_to_message_id, about.ttl, about.created_at = answers, 5.0, time.time()
        request = PushMessagesRequest(
            node=Node(node_id=self.node), messages_list=[message], message_object_trees=[tree]
        )
        status, answer = self.post("push-messages", request.SerializeToString())
        return PushMessagesResponse.FromString(answer) if status == 200 else None

    def memory(self) -> tuple[float, float]:
        """Megabytes of the coordinator and of its SuperLink."""
        process = psutil.Process(self.server)
        below = sum(child.memory_info().rss for child in process.children(recursive=True))
        return process.memory_info().rss / 1e6, below / 1e6


def public(site: Site) -> bytes:
    return ActivateNodeRequest.FromString(site.small).public_key


def nothing(attack: Attack) -> str:
    """Nobody attacks."""
    return ""


def crowd(attack: Attack) -> str:
    """Strangers of 200 addresses connect, and say nothing."""
    for number in range(CONNECTIONS):
        source = (f"127.0.1.{number % 200 + 1}", 0)
        with suppress(OSError):
            attack.held.append(socket.create_connection(("127.0.0.1", attack.port), 20, source))
    return f"{len(attack.held)} connections"


def half_bodies(attack: Attack) -> str:
    """The site sends many bodies at once, without their last byte."""

    def send() -> None:
        with suppress(OSError):
            line = socket.create_connection(("127.0.0.1", attack.port), 20)
            line = attack.trusting.wrap_socket(line, server_hostname="127.0.0.1")
            attack.held.append(line)
            signed = "".join(f"{name}: {value}\r\n" for name, value in attack.site.headers(attack.site.private).items())
            head = f"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: {PART}\r\n{signed}\r\n"
            line.sendall(head.encode() + bytes(PART - 1))

    threads = [threading.Thread(target=send, daemon=True) for _ in range(BODIES)]
    for thread in threads:
        thread.start()
    return f"{BODIES} bodies"


def orders(attack: Attack) -> str:
    """The site stores instructions for the coordinator, all of the same eight parts."""
    asked, end, taken = attack.job(), time.monotonic() + attack.seconds, 0
    parts = [ConfigRecord({"message": bytes([number]) * PART, "part": number}).deflate() for number in range(8)]
    names = {get_object_id(part): part for part in parts}
    for number in range(ORDERS):
        if time.monotonic() > end:
            break
        below = ObjectTree(object_id=digest(f"list {number}"), children=[ObjectTree(object_id=each) for each in names])
        tree = ObjectTree(object_id=digest(f"order {number}"), children=[below])
        answer = attack.announce(asked, tree, 1, "")
        for name in () if answer is None else names.keys() & set(answer.objects_to_push):
            part = PushObjectRequest(
                node=Node(node_id=attack.node),
                object_id=name,
                object_content=names[name],
                run_id=asked.metadata.run_id,
                session_id=answer.session_id,
            )
            attack.post("push-object", part.SerializeToString())
        taken += answer is not None
    return f"{taken} of {number + 1} taken"


def doubled(attack: Attack) -> str:
    """The site's reply has parts that contain each other twice, level by level."""
    asked, tree = attack.job(), ObjectTree(object_id=digest("level 0"))
    for level in range(1, LEVELS):
        children = [tree, ObjectTree(object_id=tree.object_id)]
        tree = ObjectTree(object_id=digest(f"level {level}"), children=children)
    answer = attack.announce(asked, tree, attack.node, asked.metadata.message_id)
    return "refused" if answer is None else f"{len(answer.objects_to_push)} parts wanted"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def begun(server: subprocess.Popen[bytes], metrics: Path) -> bool:
    return done(metrics) >= 3 or server.poll() is not None


def watched(attack: Attack, play: Callable[[Attack], str]) -> Iterator[str]:
    """Play an attack, and give the most memory meanwhile, rounds by second, and what the attack came to."""
    over, peak = threading.Event(), list(attack.memory())

    def look() -> None:
        while not over.wait(0.1):
            peak[:] = map(max, peak, attack.memory())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    began, before = time.monotonic(), done(attack.metrics)
    came_to = play(attack)
    time.sleep(max(0.0, began + attack.seconds - time.monotonic()))
    rate = (done(attack.metrics) - before) / (time.monotonic() - began)
    over.set()
    thread.join()
    for line in attack.held:
        line.close()
    yield from (f"{peak[0]:.0f}", f"{peak[1]:.0f}", f"{rate:.2f}", came_to)


def main(seconds: str = "10", names: str = "nothing,crowd,half_bodies,orders,doubled") -> None:
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()  # imports what training needs, once for all
    table = Table(attack=12, coordinator_mb=15, superlink_mb=13, rounds_a_second=16, came_to=24)
    plays = {play.__name__: play for play in (nothing, crowd, half_bodies, orders, doubled)}
    for play in [plays[name] for name in names.split(",")]:
        with playing(3, 100, quorum=2, absent=1) as (server, _, metrics):
            until(partial(begun, server, metrics), 600)
            folder = metrics.parents[1]
            bundle = metrics.parents[2] / "site002" / "bundle"
            port = int(json.loads((bundle / "bundle.json").read_text())["address"].rpartition(":")[2])
            trusting = ssl.create_default_context(cafile=str(folder / "keys" / "ca.crt"))
            Site.node = 1  # it is activated when it is needed
            private = (bundle / "site.key").read_bytes()
            site = Site(port, trusting, private, keys.public_of_site(private))
            attack = Attack(server.pid, metrics, port, trusting, site, float(seconds))
            table.add(play.__name__, *watched(attack, play))
    table.keep("attacks", {"seconds": float(seconds)})


if __name__ == "__main__":
    main(*sys.argv[1:])
