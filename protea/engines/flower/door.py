"""The front door of a federation: the one port that is open to the world.

It stands before Flower's SuperLink, which listens on this machine only, and lets through what sites need and
nothing else.  What is looked at comes before what costs: how many connections an address has, then the head of a
request (its size, its time, its path), then the sender's key and signature, then the declared size of the body.
Only then is a body read, in the sender's turn, and only a whole one is handed on; one that announces a reply, if it is
waited for.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import h11
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from protea.core.errors import ConfigError, PayloadError
from protea.engines.flower.admission import DoorLimits, RefusedRequestError, allowed
from protea.engines.flower.callers import Caller, Callers, Pace, at_once, place_of
from protea.engines.flower.notices import Notices

ASK = b"/v1/fleet/pull-messages"  # for messages
ANNOUNCE, REPLY = b"/v1/fleet/push-messages", b"/v1/fleet/push-object"  # with the list of a reply's parts; with a part
READ = 64 * 2**10  # bytes of one look
RECORD = 16 * 2**10  # bytes of one record of TLS
LINGER, LINGERING = 0.2, 2**20  # seconds and bytes that are dropped of a request that was too large
PASSED = {b"content-type", b"accept", b"user-agent"}  # headers that go on, beside Flower's own
HOPS = {b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"server", b"date"}
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]  # a connection to the SuperLink
WORDS = {401: "unknown key", 404: "no such path", 408: "too slow", 411: "no length", 413: "too large"}


class Door:
    """A reverse proxy at ``host:port``, in a thread of this process, to a SuperLink on this machine.

    ``keys()`` gives the public keys (PEM) of those who are let through.
    """

    def __init__(
        self,
        host: str,
        port: int,
        behind: tuple[str, int],
        keys: Callable[[], Collection[bytes]],
        limits: DoorLimits,
        outside: ssl.SSLContext,
        inside: ssl.SSLContext,
        notices: Notices | None = None,
    ) -> None:
        self.host, self.port, self.behind, self.keys, self.limits = host, port, behind, keys, limits
        self.outside, self.inside = outside, inside
        SSLProtocol.max_size = (
            RECORD  # asyncio keeps such a buffer for each connection, and of a closed one for a while
        )
        self.notices = notices or Notices()
        self.callers = Callers(limits.per_address, limits.per_key, limits.strangers, limits.connections)
        self.arrivals, self.pace = Pace(*limits.arrivals), Pace(*limits.requests)  # by address; by key
        self.places = at_once(limits.at_once)
        self.refusals: Counter[int] = Counter()  # requests that were not let through, by status; 0: connections
        self.idle: list[Line] = []  # connections to the SuperLink that nobody uses just now
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self.socket = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            raise ConfigError(f"{host}:{port} cannot be listened on: {error.strerror or error}.") from error
        self.socket.setblocking(False)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True, name="protea-door")
        self.thread.start()
        self._run(self._listen())

    def close(self) -> None:
        """Close the port and all connections."""
        if self.thread.is_alive():
            self._run(self._shut()).result()
            self._end()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def _end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _listen(self) -> None:
        """Take connections for ever; those beyond the limits are closed before a byte of them is read."""
        tasks = set[asyncio.Task[None]]()
        while True:
            try:
                taken, address = await self.loop.sock_accept(self.socket)
            except OSError:  # too many files are open
                await asyncio.sleep(0.1)
                continue
            host = place_of(str(address[0]))
            if not (self.arrivals.allows(host, self.loop.time()) and self.callers.room(host)):
                self.refusals[0] += 1
                taken.close()
                continue
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # an answer in two writes would wait 40 ms
            caller = Caller(host, taken.close)
            self.callers.came(caller)
            task = asyncio.create_task(self._connection(taken, caller))
            caller.end = task.cancel
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            await asyncio.sleep(0)  # it begins, so that it closes its connection whenever it is ended

    async def line(self) -> Line:
        """Give a connection to the SuperLink: one that is idle, or a new one."""
        while self.idle:
            reader, writer = self.idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.transport.abort()
        host, port = self.behind
        return await asyncio.open_connection(host, port, ssl=self.inside, limit=READ)

    async def _shut(self) -> None:
        work = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
        for each in work:
            each.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        for _, writer in self.idle:
            writer.transport.abort()
        self.socket.close()

    async def _connection(self, taken: socket.socket, caller: Caller) -> None:
        """Serve one connection to its end."""
        talk: Conversation | None = None
        try:
            reader = asyncio.StreamReader(READ, self.loop)
            made = asyncio.StreamReaderProtocol(reader, loop=self.loop)
            transport, _ = await self.loop.connect_accepted_socket(
                lambda: made, taken, ssl=self.outside, ssl_handshake_timeout=self.limits.head
            )
            talk = Conversation(self, caller, reader, asyncio.StreamWriter(transport, made, reader, self.loop))
            while await talk.exchange():
                pass
        except (OSError, TimeoutError, h11.ProtocolError):
            pass  # whoever it was may come again
        finally:
            self.callers.left(caller)
            if talk is not None:
                talk.close()
            else:
                taken.close()


class Conversation:
    """The requests of one connection, one after another, each handed on once it is whole and allowed."""

    def __init__(self, door: Door, caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.door, self.caller, self.reader, self.writer = door, caller, reader, writer
        self.limits = door.limits
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=self.limits.largest_head)

    def close(self) -> None:
        self.writer.transport.abort()

    async def exchange(self) -> bool:
        """Serve one request; return whether another may follow on this connection."""
        try:
            request = await self._head()
            if request is None:
                return False
            if (request.method, request.target) == (b"GET", b"/health"):
                await self._say(200, "ok")
                return False
            key, length = allowed(request, self.limits, self.door.keys())
            self.door.callers.recognise(self.caller, key)
            await asyncio.sleep(self.door.pace.wait(key, self.door.loop.time()))
            if request.target != ASK:
                async with self.door.places[key]:
                    return await self._answer(request, key, await self._body(length))
            body = await self._body(length)
            if not await self.door.notices.until_message(key, self.reader.at_eof):
                return False
            async with self.door.places[key]:
                return await self._answer(request, key, body)
        except RefusedRequestError as refused:
            await self._refuse(refused.status, refused.words)
            return False
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint)
            return False

    async def _answer(self, request: h11.Request, key: bytes, body: bytes) -> bool:
        """Hand on a whole request, if that may be; return whether another may follow on this connection."""
        still = self.door.keys()
        if key not in still:  # struck off while it waited
            raise RefusedRequestError(401)
        try:
            if request.target == ANNOUNCE and not self.door.notices.replies.waits_for(body, key, self.limits.message):
                await self._say(200, "", PROTOBUF_MEDIA_TYPE)  # an empty list of parts that are wanted
                return False
        except PayloadError as error:
            raise RefusedRequestError(400, str(error)) from error
        try:
            await asyncio.wait_for(self._hand_on(request, body), self.limits.answer)
        except (OSError, TimeoutError, h11.RemoteProtocolError):
            return False  # as if the SuperLink were connected to directly: whoever asked tries again
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        if request.target == REPLY:
            self.door.notices.reply_came()
        self.http.start_next_cycle()
        return True

    async def _head(self) -> h11.Request | None:
        """Read the head of a request; None if the other side has nothing more to ask."""
        event = self.http.next_event()
        if event is h11.NEED_DATA:
            patience = self.limits.head if self.caller.key is None else self.limits.idle
            self.http.receive_data(await asyncio.wait_for(self.reader.read(READ), patience))
            event = self.http.next_event()
        try:
            async with asyncio.timeout(self.limits.head):
                while event is h11.NEED_DATA:
                    self.http.receive_data(await self.reader.read(READ))
                    event = self.http.next_event()
        except TimeoutError:
            raise RefusedRequestError(408) from None
        return event if isinstance(event, h11.Request) else None

    async def _body(self, length: int) -> bytes:
        """Read the body of a request, whose length was declared and allowed."""
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self.limits.head + length / self.limits.slowest):
                while not isinstance(event := self.http.next_event(), h11.EndOfMessage):
                    if event is h11.NEED_DATA:
                        self.http.receive_data(await self.reader.read(READ))
                    elif isinstance(event, h11.Data):
                        parts.append(bytes(event.data))
                    else:
                        raise RefusedRequestError(400)
        except TimeoutError:
            raise RefusedRequestError(408) from None
        return b"".join(parts)

    async def _hand_on(self, request: h11.Request, body: bytes) -> None:
        """Send a request to the SuperLink, and its answer back."""
        line, http = await self.door.line(), h11.Connection(h11.CLIENT)
        try:
            await self._pass_on(request, body, line, http)
        finally:
            if http.our_state is h11.DONE and http.their_state is h11.DONE:
                self.door.idle.append(line)
            else:
                line[1].transport.abort()

    async def _pass_on(self, request: h11.Request, body: bytes, line: Line, http: h11.Connection) -> None:
        """Do that over one connection to the SuperLink."""
        reader, writer = line
        headers = [(name, value) for name, value in request.headers if name in PASSED or name.startswith(b"flwr-")]
        headers += [(b"host", b"superlink"), (b"content-length", str(len(body)).encode())]
        whole = (h11.Request(method="POST", target=request.target, headers=headers), h11.Data(body), h11.EndOfMessage())
        writer.write(b"".join(http.send(event) or b"" for event in whole))
        await writer.drain()
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(READ))
                continue
            if isinstance(event, h11.Response):
                kept = [(name, value) for name, value in event.headers if name not in HOPS]
                kept += [(name, value) for name, value in event.headers if name == b"content-length"]
                event = h11.Response(status_code=event.status_code, headers=kept, reason=event.reason)
            if isinstance(event, h11.Response | h11.Data | h11.EndOfMessage):
                self.writer.write(self.http.send(event) or b"")
                await self.writer.drain()
            if isinstance(event, h11.EndOfMessage):
                break
            if isinstance(event, h11.ConnectionClosed):
                raise ConnectionError("the SuperLink has closed the connection.")

    async def _refuse(self, status: int, words: str = "") -> None:
        """Say that a request is not let through, and why; the connection is closed then."""
        self.door.refusals[status] += 1
        await self._say(status, words or WORDS.get(status, "refused"))

    async def _let_finish(self) -> None:
        """Drop a little of what is still being sent: a connection closed at once would take our answer with it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                for _ in range(LINGERING // READ):
                    if not await self.reader.read(READ):
                        break

    async def _say(self, status: int, words: str, kind: str = "text/plain") -> None:
        """Answer in the door's own name, and close the connection."""
        if self.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        content = words.encode()
        headers = [(b"content-length", str(len(content)).encode()), (b"connection", b"close")]
        headers.append((b"content-type", kind.encode()))
        events = (h11.Response(status_code=status, headers=headers), h11.Data(content), h11.EndOfMessage())
        self.writer.write(b"".join(self.http.send(event) or b"" for event in events))
        await asyncio.wait_for(self.writer.drain(), self.limits.head)
        if status in (413, 431):
            await self._let_finish()
        self.writer.close()  # what is written is sent before that
        await asyncio.wait_for(self.writer.wait_closed(), self.limits.head)
