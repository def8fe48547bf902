"""The numbers of a federation for Prometheus: one page of text, which a coordinator serves and Prometheus asks for."""

from __future__ import annotations

import hmac
import math
import secrets
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import protea
from protea.config.experiment import method_label
from protea.core.addresses import OWN_NAMES, asked_as, is_loopback
from protea.core.errors import ConfigError
from protea.core.files import write_private
from protea.network.coordinator.status import Status

KIND = "text/plain; version=0.0.4; charset=utf-8"
READERS = 8  # requests at once
LONGEST = 2000  # characters of an address
Sample = tuple[dict[str, str], float | None]


def exposition(status: Status) -> str:
    """Return the state of a federation in the text format of Prometheus; what is not known yet is left out."""
    return "".join(_family(*each) for each in _families(status))


def _families(status: Status) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    """Name, kind and meaning of each metric, with its samples."""
    task, here = status.task, [site for site in status.sites if not site.removed]
    info = {"version": protea.__version__, "method": method_label(task.method)}
    yield "protea_info", "gauge", "Version of Protea, and the method.", [(info, 1)]
    for name, kind, about, value in (
        ("protea_round", "gauge", "The latest complete round.", status.round),
        ("protea_rounds_planned", "gauge", "Rounds of the task.", task.rounds),
        ("protea_accuracy", "gauge", "Accuracy of the latest evaluated round, 0 to 1.", status.accuracy),
        ("protea_loss", "gauge", "Mean training loss of the latest round.", status.loss),
        ("protea_round_seconds", "gauge", "Seconds that the latest round took.", status.seconds),
        ("protea_round_end_timestamp_seconds", "gauge", "When the latest round ended.", status.ended),
        ("protea_failed_tries", "gauge", "Tries of the present round that had too few replies.", status.tries),
        ("protea_sites", "gauge", "Sites that are invited.", len(here)),
        ("protea_sites_connected", "gauge", "Sites that are connected.", sum(site.connected for site in here)),
        ("protea_strangers", "gauge", "Connected nodes that are no site.", len(status.strangers)),
    ):
        yield name, kind, about, [({}, value)]
    both = [({"direction": "up"}, status.bytes_up), ({"direction": "down"}, status.bytes_down)]
    yield "protea_bytes_total", "counter", "Bytes of payloads since the first round.", both
    for name, kind, about, field in (
        ("protea_site_connected", "gauge", "Whether the site is connected.", "connected"),
        ("protea_site_accuracy", "gauge", "The site's latest accuracy on its own test samples, 0 to 1.", "accuracy"),
        ("protea_site_refused_uploads_total", "counter", "Uploads of the site that were refused.", "refused"),
    ):
        yield name, kind, about, [({"site": site.name}, getattr(site, field)) for site in here]


def _family(name: str, kind: str, about: str, samples: Iterable[Sample]) -> str:
    lines = [
        f"{name}{_labels(labels)} {_number(value)}\n" for labels, value in samples if value is not None
    ]  # a family without samples is left out as a whole
    return f"# HELP {name} {about}\n# TYPE {name} {kind}\n{''.join(lines)}" if lines else ""


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


def escaped(value: str) -> str:
    r"""Return the value of a label as it is written between quotes.

    >>> print(escaped('a"b\\c' + chr(10)))
    a\"b\\c\n
    """
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if isinstance(value, bool | int):
        return str(int(value))
    return repr(float(value)) if math.isfinite(value) else {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN")


class MetricsServer(ThreadingHTTPServer):
    """Serves the page at ``/metrics`` while it is open: to this machine, or elsewhere to whoever has the token.

    The token is kept in a file of the federation's directory, so that Prometheus need not be told anew.
    """

    daemon_threads = True

    def __init__(self, address: str, directory: Path) -> None:
        host, port = parse_address(address)
        self.text = ""
        self.readers = threading.BoundedSemaphore(READERS)
        self.token = None if is_loopback(host) else kept_token(directory / "metrics.token")
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"--metrics {address}: {host}:{port} cannot be listened at: {error}.  Choose another port, or 0."
            ) from error

    def show(self, status: Status, news: str | None) -> None:
        """Take over a new state; what is asked for next has it."""
        self.text = exposition(status)

    @property
    def url(self) -> str:
        """The address to give to Prometheus."""
        host, port = str(self.server_address[0]), self.server_address[1]
        query = "" if self.token is None else f"?token={self.token}"
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics{query}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.2,), name="protea-metrics", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of readers who went away; the rest is said in one line."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"The metrics could not be told: {error!r}", file=sys.stderr)  # noqa: T201


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = 10
    server_version, sys_version = "protea", ""

    def do_GET(self) -> None:
        if not self.server.readers.acquire(blocking=False):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{READERS} others ask at this moment.\n")
            return
        try:
            self._answer(*self._asked())
        finally:
            self.server.readers.release()

    def _asked(self) -> tuple[HTTPStatus, str]:
        """The answer to a request."""
        token, asked = self.server.token, urlsplit(self.path[:LONGEST])
        if token is None:
            if asked_as(self.headers.get("Host")) not in OWN_NAMES:  # else a page of another host could ask
                return HTTPStatus.FORBIDDEN, "These numbers are for this machine: ask for http://localhost.\n"
        else:
            given = parse_qs(asked.query).get("token", [""])[0]
            if not hmac.compare_digest(given.encode(), token.encode()):
                return HTTPStatus.FORBIDDEN, "The address lacks its token: take the one that was printed.\n"
        if asked.path != "/metrics":
            return HTTPStatus.NOT_FOUND, "There is /metrics alone.\n"
        return HTTPStatus.OK, self.server.text

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", KIND)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log: Prometheus asks every few seconds."""


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``PORT`` or ``HOST:PORT``; raise :class:`ConfigError` for anything else.

    >>> parse_address("9464"), parse_address("0.0.0.0:9464"), parse_address("[::1]:0")
    (('127.0.0.1', 9464), ('0.0.0.0', 9464), ('::1', 0))
    """
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or int(port[:6]) > 65535 or (":" in host and host[0] != "["):
        raise ConfigError(f"--metrics {text}: expected is a port, such as 9464, or an address, such as 10.0.0.1:9464.")
    return host.strip("[]") or "127.0.0.1", int(port)


def kept_token(path: Path) -> str:
    """Return the token in a file; make one that only its owner can read if there is none."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(24).encode())
    return path.read_text("ascii").strip()
