"""The front door against nginx in its place, and against none: requests of a site to one real SuperLink, in turns.

    python benchmarks/door.py [7]

Four kinds of work: small requests over a kept connection, parts of an upload (4 MiB), new connections with TLS, and
requests signed by nobody's key, which the door answers itself and nginx has to hand on.  The table has milliseconds of
each, the median of so many turns; the last line is JSON with the door's part of nginx's time.
"""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import json
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from measure import Table, in_turns, ratio
from network import until

from protea.engines.flower.admission import DoorLimits
from protea.engines.flower.codec import PART
from protea.engines.flower.link import Link, Tls
from protea.engines.flower.programs import free_port
from protea.network.trust import keys

SMALL, PARTS, CONNECTIONS = 100, 10, 20  # requests of a turn
SERVER = """
daemon off; pid {folder}/pid; error_log {folder}/error; {user}
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    upstream superlink {{ server 127.0.0.1:{behind}; keepalive 16; }}
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {keys}/server.crt;
        ssl_certificate_key {keys}/server.key;
        client_max_body_size 5m;
        client_body_buffer_size 5m;
        keepalive_requests 1000000;
        location /v1/fleet/ {{
            proxy_pass https://superlink;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
}}
"""


class Site:
    """Requests of a site to an address, signed by its key."""

    node = 0  # its number, which the first request brings

    def __init__(self, port: int, trusting: ssl.SSLContext, private: bytes, public: bytes) -> None:
        self.port, self.trusting, self.private = port, trusting, private
        self.small = ActivateNodeRequest(public_key=public, heartbeat_interval=600.0).SerializeToString()
        self.line = self.connection()
        if not Site.node:
            self.line.request("POST", "/v1/fleet/activate-node", self.small, self.headers(private))
            Site.node = ActivateNodeResponse.FromString(self.line.getresponse().read()).node_id
        part = PushObjectRequest(node=Node(node_id=Site.node), object_id="a" * 64, object_content=bytes(PART))
        self.part = part.SerializeToString()

    def connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=self.trusting, timeout=60)

    def headers(self, private: bytes) -> dict[str, str]:
        key = load_ssh_private_key(private, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        stamp = dt.datetime.now(dt.UTC).isoformat()
        signed = base64.b64encode(key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))).decode()
        public = base64.b64encode(keys.public_of(key)).decode()
        own = {"flwr-public-key": public, "flwr-signature": signed, "flwr-timestamp": stamp}
        return {"Content-Type": PROTOBUF_MEDIA_TYPE, **own}

    def ask(self, line: http.client.HTTPSConnection, path: str, body: bytes, headers: dict[str, str]) -> int:
        line.request("POST", f"/v1/fleet/{path}", body, headers)
        answer = line.getresponse()
        answer.read()
        return answer.status

    def kept(self) -> None:
        headers = self.headers(self.private)
        for _ in range(SMALL):
            assert self.ask(self.line, "activate-node", self.small, headers) != 401

    def upload(self) -> None:
        headers = self.headers(self.private)
        for _ in range(PARTS):
            assert self.ask(self.line, "push-object", self.part, headers) not in (401, 413)

    def anew(self) -> None:
        headers = self.headers(self.private)
        for _ in range(CONNECTIONS):
            line = self.connection()
            self.ask(line, "activate-node", self.small, headers)
            line.close()

    def stranger(self) -> None:
        headers = self.headers(keys.make_site_key()[0])
        for _ in range(CONNECTIONS):
            line = self.connection()
            assert self.ask(line, "activate-node", self.small, headers) != 200
            line.close()


@contextmanager
def nginx(folder: Path, behind: int, tls: Path) -> Iterator[int]:
    """An nginx with TLS before the SuperLink; its port."""
    if shutil.which("nginx") is None:
        sys.exit("nginx is not installed.  Install it, such as: apt-get install nginx-light")
    port = free_port()
    folder.mkdir()
    user = "user root;" if tls.stat().st_uid == 0 else ""
    (folder / "conf").write_text(SERVER.format(folder=folder, behind=behind, port=port, keys=tls, user=user))
    process = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "conf"), "-e", str(folder / "error")])
    try:
        until((folder / "pid").exists, 20)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def main(turns: str = "7") -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, tls = Path(name), Path(name) / "keys"
        tls.mkdir()
        keys.make_tls(tls, list(keys.HERE))
        private, public = keys.make_site_key()
        limits = DoorLimits(per_address=1000, connections=2000, requests=(1e6, 10**6), arrivals=(1e6, 10**6))
        own = Tls(tls / "ca.crt", tls / "server.crt", tls / "server.key")
        link = Link(folder / "flower", "127.0.0.1", free_port(), own, {"north": public}, limits)
        link.open()
        trusting = ssl.create_default_context(cafile=str(own.ca))
        behind = int(link.address.rpartition(":")[2])
        try:
            with nginx(folder / "nginx", behind, tls) as port:
                places = {"none": behind, "door": link.outside[1], "nginx": port}
                measured(places, trusting, private, public, int(turns))
        finally:
            link.close()


def measured(places: dict[str, int], trusting: ssl.SSLContext, private: bytes, public: bytes, turns: int) -> None:
    """Print and keep the milliseconds of a request of each kind at each place."""
    sites = {name: Site(port, trusting, private, public) for name, port in places.items()}
    table = Table(work=26, none_ms=10, door_ms=10, nginx_ms=10, door_of_nginx=16)
    kinds = {"kept": SMALL, "upload": PARTS, "anew": CONNECTIONS, "stranger": CONNECTIONS}
    words = {"kept": "small, kept connection", "upload": "4 MiB of an upload", "anew": "new connection"}
    parts = {}
    for kind, count in kinds.items():
        found = in_turns({name: getattr(site, kind) for name, site in sites.items()}, turns)
        each = [f"{1000 * median(found[name][1:]) / count:.2f}" for name in places]
        parts[kind] = round(ratio(found["door"], found["nginx"]), 2)
        table.add(words.get(kind, "a stranger's"), *each, parts[kind])
    table.keep("door", {"turns": turns})
    print(json.dumps({"door_of_nginx": parts}))


if __name__ == "__main__":
    main(*sys.argv[1:])
