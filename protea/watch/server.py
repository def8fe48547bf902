"""HTTP for the live page: one page, its content, and events.  It answers GET alone, and changes nothing.

    /              the page
    /events        server-sent events: rows of runs that are new, at once and whenever something changes
    /content       what is drawn of some runs: ?run=MARK, repeated, and &shown=MARK

On loopback any process of this machine may ask, under a loopback name.  Elsewhere every address needs ``?token=``.
"""

from __future__ import annotations

import gzip
import hmac
import json
import secrets
import socket
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from protea.core.addresses import OWN_NAMES, asked_as, is_loopback
from protea.core.errors import ConfigError
from protea.watch.collection import Collection
from protea.watch.live import LiveContent
from protea.watch.page import live_page

LISTENERS = 32  # pages open at once
BEAT = 15.0  # seconds after which a silent stream says that it is still there
MOST = 1000  # runs that one page may choose
LONGEST = 64_000  # characters of an address


class LiveServer(ThreadingHTTPServer):
    """Serves the page of some folders until it is shut down."""

    daemon_threads = True

    def __init__(self, collection: Collection, host: str, port: int) -> None:
        self.collection, self.content = collection, LiveContent(collection)
        self.token = None if is_loopback(host) else secrets.token_urlsafe(24)
        self.listeners = threading.BoundedSemaphore(LISTENERS)
        self.page, self.policy = live_page()
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"{host}:{port} cannot be listened at: {error}.  Choose another --port, or 0.") from error

    @property
    def url(self) -> str:
        """The address of the page, with its token where there is one."""
        host, port = str(self.server_address[0]), self.server_address[1]
        query = "" if self.token is None else f"?token={self.token}"
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/{query}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of readers who went away; the rest is said in one line."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"The live page could not answer: {error!r}", file=sys.stderr)  # noqa: T201


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"
    timeout = 60
    server_version, sys_version = "protea", ""

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        query = parse_qs(asked.query, max_num_fields=MOST + 3) if len(self.path) < LONGEST else {}
        if not self._may_ask(query):
            return
        if asked.path == "/":
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page.encode())
        elif asked.path == "/content":
            told = self.server.content.of(query.get("run", []), query.get("shown", [None])[0])
            text = json.dumps(told, allow_nan=False, separators=(",", ":"), default=str)
            self._send(HTTPStatus.OK, "application/json", text.encode())
        elif asked.path == "/events":
            self._stream(query)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _may_ask(self, query: dict[str, list[str]]) -> bool:
        """Refuse readers without the token; on loopback, names by which a page of another host could ask."""
        token = self.server.token
        if token is not None:
            given = query.get("token", [""])[0]
            if hmac.compare_digest(given.encode(), token.encode()):
                return True
            self._refuse(HTTPStatus.FORBIDDEN, "The address lacks its token: take the one that protea watch printed.")
            return False
        if asked_as(self.headers.get("Host")) in OWN_NAMES:
            return True
        self._refuse(HTTPStatus.FORBIDDEN, "This page is for this machine: open it as http://localhost.")
        return False

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        if len(body) > 1000 and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 1)
            self.send_header("Content-Encoding", "gzip")
        self._head(kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, kind: str) -> None:
        for name, value in {
            "Content-Type": kind,
            "Content-Security-Policy": self.server.policy,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }.items():
            self.send_header(name, value)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True
        self._send(status, "text/plain; charset=utf-8", f"{why}\n".encode())

    def _stream(self, query: dict[str, list[str]]) -> None:
        """Send the rows that are new, again and again, until the reader goes away."""
        if not self.server.listeners.acquire(blocking=False):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"{LISTENERS} pages are open already.  Close one.")
            return
        try:
            self.close_connection = True
            self.send_response(HTTPStatus.OK)
            self._head("text/event-stream; charset=utf-8")
            self.end_headers()
            collection, version = self.server.collection, -1
            while not collection.stopped and self.command != "HEAD":
                told = collection.news_since(version)
                if told["version"] > version:
                    version = told["version"]
                    self.wfile.write(f"event: runs\ndata: {json.dumps(told, allow_nan=False)}\n\n".encode())
                else:
                    self.wfile.write(b": still here\n\n")
                self.wfile.flush()
                collection.since(version, BEAT)
        finally:
            self.server.listeners.release()

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log: who looks at a page is nobody's business."""
