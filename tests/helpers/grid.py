"""A grid in this process: Flower's messages, without its programs.

Two details of Flower's are private: who a process is, and where a message has its id.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from protea.clients.durable import DurableWorker
from protea.clients.plan import WorkerPlan
from protea.core.message import to_bytes
from protea.engines.flower.grid import Network
from protea.engines.flower.node import Handle, answered
from protea.engines.messages import job_from_bytes, joined, parted, reply_to_bytes

FIRST = 1000  # the id of the first node


@dataclass
class Wire(Grid):
    """A grid, and what is below it.  ``handles[k]`` is the client side of node ``k``."""

    handles: list[Handle]
    meddle: Callable[[Message, Message], Message | None] = lambda asked, answer: answer  # None: it is lost
    online: set[int] | None = None  # nodes; all if not given
    keys: dict[int, bytes] = field(default_factory=dict)  # public ones, of nodes
    lost: tuple[type[Exception], ...] = (ConnectionError,)
    replies: dict[str, Message] = field(default_factory=dict)
    pushed: list[Message] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)  # nodes that were told of the end
    opened: int = 0

    def open(self) -> Wire:
        self.opened += 1
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        return self

    def nodes(self) -> list[Any]:
        there = (set(range(len(self.handles))) if self.online is None else self.online) - self.left
        return [
            SimpleNamespace(
                node_id=FIRST + k, public_key=self.keys.get(k, b""), last_activated_at=str(self.starts.get(k, 0))
            )
            for k in sorted(there)
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            identity = message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
            self.pushed.append(message)
            if names([message]) == ["end"]:
                self.left.add(message.metadata.dst_node_id - FIRST)
            answer = self.meddle(message, answered(message, self.handles[message.metadata.dst_node_id - FIRST]))
            if answer is not None:
                self.replies[identity] = answer
            ids.append(identity)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(identity) for identity in message_ids if identity in self.replies]

    def close(self) -> None: ...

    # What Flower's own loops would use, and ours does not.

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *given: Any, **named: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return [node.node_id for node in self.nodes()]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError


class OneProcess(Network):
    """Clients at two nodes of a grid in this process."""

    def __init__(self, plan: WorkerPlan, folder: Path, **options: Any) -> None:
        self.workers = [DurableWorker(plan, folder / str(k), reply_to_bytes) for k in range(2)]
        self.wire = Wire([self.handle(k) for k in range(2)])
        super().__init__(self.wire, lambda client: client % 2, lambda node, about: about["node"], **options)

    def handle(self, k: int) -> Handle:
        def handle(kind: str, message: bytes) -> bytes:
            if kind == "hello":
                return to_bytes({}, node=k)
            return joined([self.workers[k].answer(job_from_bytes(part), part) for part in parted(message)])

        return handle

    def save(self, directory: Path) -> None:
        for worker in self.workers:
            worker.store.save(directory)


def error(asked: Message, code: int, reason: str) -> Message:
    return Message(Error(code=code, reason=reason), reply_to=asked)


def names(messages: Sequence[Message]) -> list[str]:
    """What was asked, in order."""
    return [message.metadata.message_type.rpartition(".")[2] for message in messages]
