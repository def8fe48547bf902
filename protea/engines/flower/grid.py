"""The engine: jobs to nodes, and replies from them, over a grid of Flower's.

Replies are looked for here: Flower's ``send_and_receive`` sleeps three seconds at a time, and waits for all.
A reply belongs to the message that it answers, whoever claims to have sent it.  A message
whose node was started anew, or was away too long, is sent again: clients answer a second time
without a second training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from protea.core.errors import PayloadError, ProteaError
from protea.core.message import HEADER, from_bytes, shortened, to_bytes
from protea.engines.base import EngineBase
from protea.engines.flower.codec import BROKEN, unwrap, wrap
from protea.engines.flower.node_queue import NodeQueue, SentJobs
from protea.engines.flower.punctuality import Kinds, Punctuality
from protea.engines.messages import job_to_bytes, joined, parted, readable, reply_from_bytes
from protea.federation.jobs import Job, Reply, Watch, ignore

POLL, SELDOM = 0.02, 0.5  # seconds between looks for replies: at first, and after a long wait
SHARE = 50  # a look follows after this part of the time that was waited so far
LOOK = 1.0  # seconds between looks for nodes
DAY = 86_400.0  # seconds
TOGETHER = 16  # nodes whose jobs are handed over at once
ASKED = 60.0  # seconds that a node has to say who it is
CONNECT = 10  # tries to connect anew
SAID = (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, BROKEN)  # codes of errors that a client is the cause of


class NodeInfo(Protocol):
    """What Flower says of a node; of that, what is used here."""

    node_id: int
    public_key: bytes
    last_activated_at: str


class Carrier(Protocol):
    """What carries the engine's messages: a SuperLink, or in tests something in this process."""

    def open(self) -> Grid:
        """Connect, or connect again."""
        ...

    def nodes(self) -> Sequence[NodeInfo]:
        """Give the nodes that are connected."""
        ...

    def close(self) -> None: ...

    @property
    def lost(self) -> tuple[type[Exception], ...]:
        """The exceptions that are raised when the connection is gone."""
        ...


@dataclass
class Network(EngineBase):
    """An engine whose clients are at nodes, and keep their own state there.

    ``place(client)`` is the name of the node that has the client; ``name(node, about)`` the name of a node that has
    said hello, or a :class:`PayloadError` for one that is not wanted.
    """

    several_jobs: ClassVar[bool] = True  # a client does the jobs of one message one after another, and answers all

    carrier: Carrier
    place: Callable[[int], int]
    name: Callable[[NodeInfo, Mapping[str, Any]], int]
    deadline: float = math.inf  # seconds for a client's answer
    late: float = 0.0  # times the usual, after which a node is late; 0: all are waited for until the deadline
    quorum: int = 1  # nodes that must have answered before others are late
    retries: int = 3  # of a message that was lost with its node
    limit: int = 256 * 2**20  # most bytes of an upload
    sign: Callable[[str, bytes], bytes] = lambda kind, message: message
    opened: Callable[[Job, bytes], bytes] = lambda job, part: part  # a reply out of what came; PayloadError if unsigned
    hello: Mapping[str, Any] = field(default_factory=dict)  # what nodes are told when they are asked who they are
    meanwhile: Callable[[], None] = lambda: None  # called again and again while answers are waited for

    def __post_init__(self) -> None:
        self.there: dict[int, NodeInfo] = {}  # nodes that are there, by Flower's id
        self.named: dict[int, tuple[int, str]] = {}  # names of nodes that have said hello, and when they were started
        self.asked: dict[str, tuple[int, float]] = {}  # nodes that were asked who they are, and until when
        self.strangers: dict[int, tuple[str, float]] = {}  # nodes that are not wanted, why, and until when
        self.looked = -math.inf  # when nodes were last looked for
        self.punctuality = Punctuality(self.late)
        self.grid = self.carrier.open()

    @property
    def online(self) -> dict[int, int]:
        """Nodes that are there and known, by name."""
        return {name: node for node, (name, _) in self.named.items() if node in self.there}

    def meet(self) -> None:
        """Find out which nodes are there, and who they are."""
        with self.connected():
            self._look()
            self._greet(self.grid.pull_messages(list(self.asked)) if self.asked else [])

    def dismiss(self, about: Mapping[str, Any], patience: float = 15.0) -> None:
        """Tell all nodes that there is nothing more to do, and wait until they are gone; not for ever."""
        told, content = set[int](), wrap(self.sign("end", to_bytes({}, **about)))
        end = time.monotonic() + patience
        try:
            while True:
                self.meet()
                for node in self.online.values():
                    if node not in told:
                        self.grid.push_messages([Message(content, node, "query.end", ttl=patience)])
                        told.add(node)
                if time.monotonic() > end or (told and not self.there):
                    return
                time.sleep(LOOK)
        except self.carrier.lost:
            return  # it is over anyway

    def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
        replies = []
        for reply in self._replies(jobs):
            replies.append(reply)
            watch(reply)
        return sorted(replies, key=lambda reply: reply.client)

    def _replies(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Send jobs and look for answers until all are there, or the deadline is over; give replies as they come."""
        queue = NodeQueue(jobs, self.place, self.retries, self.deadline)
        last = time.monotonic()  # when there was a reply
        asked = {place: tuple(job.task for job in own) for place, own in queue.waiting.items()}
        good = set[int]()  # places that have answered without an error
        while queue:
            self.meanwhile()
            replies: list[Reply] = []
            with self.connected(queue):
                replies = self._exchange(queue)
            yield from replies
            good |= {self.place(reply.client) for reply in replies if reply.error is None}
            for job, seconds in self._late(queue, asked, good):
                yield replace(failed(job, f"no answer within {seconds:.0f} s, and the others are done."), away=True)
            for job, times in queue.give_up():
                yield replace(failed(job, f"its node was lost {times} times while it worked."), away=True)
            for place in queue.waited() if self.late and queue.left < 0 else ():
                self._strike(place)
            for job in queue.expire():
                yield replace(failed(job, f"no answer within {self.deadline:g} s (deadline)."), away=True)
            now = time.monotonic()
            last = now if replies else last
            if queue:
                time.sleep(min(max(POLL, (now - last) / SHARE), SELDOM))

    def _late(self, queue: NodeQueue, asked: Mapping[int, Kinds], good: Collection[int]) -> Iterator[tuple[Job, float]]:
        """Give the jobs of nodes that are late, with the seconds they had; these get a strike.

        Nobody is late as long as fewer than the quorum have answered.
        """
        if not self.late or len(good) < self.quorum:
            return
        for place, waited in queue.waited().items():
            allowed = self.punctuality.allowed(place, asked)
            if waited > allowed:
                self._strike(place)
                yield from ((job, allowed) for job in queue.drop(place))

    def _strike(self, place: int) -> None:
        """Ask a node that is late nothing more, until it has said again who it is."""
        self.punctuality.strike(place)
        for node in [node for node, (name, _) in self.named.items() if name == place]:
            del self.named[node]

    def _exchange(self, queue: NodeQueue) -> list[Reply]:
        """Send what can be sent, and give the replies that have come."""
        self._look()
        self._send(queue)
        asked = [*queue.sent, *self.asked]
        found = list(self.grid.pull_messages(asked)) if asked else []
        self._greet(found)
        replies: list[Reply] = []
        for message in found:
            if (sent := queue.answer(message.metadata.reply_to_message_id)) is None:
                continue
            if message.has_error() and message.error.code not in SAID:
                queue.lose(sent)
            else:
                own = list(self._read(sent.jobs, message))
                self._note_time(sent, own)
                replies += own
        queue.lose_restarted({node: info.last_activated_at for node, info in self.there.items()})
        return replies

    def _send(self, queue: NodeQueue) -> None:
        """Send each node that is there the jobs that wait for it."""
        ttl = min(DAY, max(1.0, queue.left))
        due = list(queue.due(self.online))
        for start in range(0, len(due), TOGETHER):
            some, messages = due[start : start + TOGETHER], []
            for _, node, jobs in some:
                content = wrap(self.sign("job", joined([job_to_bytes(job) for job in jobs])))
                messages.append(Message(content, node, "query.job", ttl=ttl, group_id=str(jobs[0].round)))
            for (place, node, _), identity in zip(some, self.grid.push_messages(messages), strict=True):
                if identity:  # else the node has just left
                    queue.send(identity, place, node, self.there[node].last_activated_at)

    def _read(self, jobs: Sequence[Job], message: Message) -> Iterator[Reply]:
        """Give the replies to the jobs of one message."""
        if message.has_error():
            why = shortened(readable(str(message.error.reason)))
            if message.error.code == BROKEN:
                yield from (refused(job, PayloadError(why)) for job in jobs)
            else:
                yield from (failed(job, why) for job in jobs)
            return
        try:
            parts = parted(unwrap(message.content, len(jobs) * (self.limit + HEADER)))
            if len(parts) != len(jobs):
                raise PayloadError(f"{len(parts)} replies arrived to {len(jobs)} jobs.")
        except PayloadError as error:
            yield from (refused(job, error) for job in jobs)
            return
        for job, part in zip(jobs, parts, strict=True):
            try:
                reply = reply_from_bytes(self.opened(job, part), self.limit + HEADER)
                if reply.client != job.client:
                    raise PayloadError(f"its reply is of client {reply.client}.")
            except PayloadError as error:
                reply = refused(job, error)
            yield reply

    def _note_time(self, sent: SentJobs, replies: Sequence[Reply]) -> None:
        """Remember how long a good answer took."""
        if all(reply.error is None for reply in replies):
            kinds = [job.task for job in sent.jobs]
            self.punctuality.answered(sent.place, kinds, time.monotonic() - sent.at)

    def _look(self) -> None:
        """Note which nodes are there; ask those that are new who they are."""
        if time.monotonic() < self.looked + LOOK:
            return
        self.looked = time.monotonic()
        self.there = {node.node_id: node for node in self.carrier.nodes()}
        self.named = {
            node: (name, since)
            for node, (name, since) in self.named.items()
            if node not in self.there or self.there[node].last_activated_at == since  # else it may be another now
        }
        self.asked = {identity: (node, end) for identity, (node, end) in self.asked.items() if end > self.looked}
        self.strangers = {node: (why, end) for node, (why, end) in self.strangers.items() if end > self.looked}
        known = {*self.named, *self.strangers, *(node for node, _ in self.asked.values())}
        new = sorted(self.there.keys() - known)
        for start in range(0, len(new), TOGETHER):
            some, content = new[start : start + TOGETHER], wrap(self.sign("hello", to_bytes({}, **self.hello)))
            messages = [Message(content, node, "query.hello", ttl=ASKED) for node in some]
            for node, identity in zip(some, self.grid.push_messages(messages), strict=True):
                if identity:
                    self.asked[identity] = node, self.looked + ASKED

    def _greet(self, messages: Iterable[Message]) -> None:
        """Note the names of nodes that have said who they are."""
        for message in messages:
            node, _ = self.asked.pop(message.metadata.reply_to_message_id, (None, 0.0))
            if node is None or node not in self.there:
                continue
            try:
                if message.has_error():
                    raise PayloadError(shortened(readable(str(message.error.reason))))
                _, about = from_bytes(unwrap(message.content, HEADER), HEADER)
                place = self.name(self.there[node], about)
                self.named[node] = place, self.there[node].last_activated_at
                self.punctuality.back(place)
            except ProteaError as error:
                self.strangers[node] = str(error), time.monotonic() + ASKED

    @contextmanager
    def connected(self, queue: NodeQueue | None = None) -> Iterator[None]:
        """If the connection is lost within, connect anew; jobs of the queue that were on their way are sent again."""
        try:
            yield
        except self.carrier.lost:
            self.asked.clear()
            if queue is not None:
                queue.send_again()
            self._connect()

    def _connect(self) -> None:
        """Open the connection anew; a server that was started anew takes a while."""
        for left in reversed(range(CONNECT)):
            time.sleep(LOOK)
            try:
                self.grid = self.carrier.open()
                return
            except self.carrier.lost as error:
                if not left:
                    raise ProteaError(f"The SuperLink cannot be reached: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        self.carrier.close()


def failed(job: Job, why: str) -> Reply:
    """Give the reply to a job that came to nothing."""
    return Reply(job.client, job.round, error=f"client {job.client}, round {job.round}: {why}")


def refused(job: Job, error: PayloadError) -> Reply:
    """Give the reply to a job whose answer cannot be read."""
    return Reply(job.client, job.round, error=str(error), refused=True)
