"""A site's processes: a SuperNode that talks to the coordinator, and a client process that trains.

``protea site join`` watches over the two.  A client process that is killed is started anew and goes on from what is
on disk.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from protea.core.errors import PolicyError, ProteaError
from protea.core.files import hold_lock
from protea.engines.flower.node import Node, attend
from protea.network.site.audit import Audit, audit_lines
from protea.network.site.directory import Site
from protea.network.site.refusals import refusals, refused_task
from protea.network.site.service import SiteService

PATIENCE = 600.0  # seconds that a site keeps trying while the server refuses it
AGAIN = 3.0  # seconds between these tries
SAID = 2.0  # seconds for the last answer to be sent before the processes are stopped
SHORT = 10.0  # seconds: a process that ends sooner probably will end so again
TRIES = 3  # such early ends in a row before giving up

Tell = Callable[[str], None]


def join(path: Path, tell: Tell) -> None:
    """Take part in a federation until it ends or this process is interrupted; ``tell`` is called with news."""
    site = Site(path)
    taken = f"{path} takes part already, in another process.  Stop that one first."
    with hold_lock(path / ".lock", taken):
        refuse_by_policy(site)
        site.ended.unlink(missing_ok=True)
        site.restored().client(site.id)  # errors in model, data or state show before anything is started
        invitation = site.bundle.invitation
        node = Node(path / "flower", invitation.address, site.bundle.ca, site.bundle.key)
        client = ClientProcess(path, node)
        tell(f"Site {site.name} connects to {invitation.address}.  Stop with Ctrl-C; nothing is lost.")
        try:
            watch(node, client, site, tell)
        finally:
            client.stop()
            node.stop()


def refuse_by_policy(site: Site) -> None:
    """Raise :class:`PolicyError` for a task that the site's policy forbids; it is in the audit log then."""
    found = list(refusals(site.policy, site.task, site.class_counts))
    for each in found:
        Audit(site.path / "audit.jsonl").write_refusal("join", 0, each.cited, each.why)
    if found:
        raise PolicyError(refused_task(found))


def watch(node: Node, client: ClientProcess, site: Site, tell: Tell) -> None:
    """Keep both processes running until the federation ends, and tell of connections and of every message sent."""
    refused: float | None = None  # since when the server has not let this site in
    audit, seen, connected = site.path / "audit.jsonl", 0, False
    if audit.exists():
        seen = audit.stat().st_size
    while not site.ended.exists():
        if not node.program.alive:
            refuse_for_ever(node.program.said())
            if refused is None:
                refused = time.monotonic()
                tell("The server does not let this site in.  Maybe it does not know its key yet; trying again.")
            elif time.monotonic() > refused + PATIENCE:
                raise ProteaError(
                    f"The server has not let this site in for {PATIENCE:g} s.  It may have been removed from the "
                    f"federation.  Ask the coordinator.  The SuperNode's words:\n{node.program.said()}"
                )
            time.sleep(AGAIN)
            connected = False
            node.start()
        if not client.alive:
            client.restart(tell)
        if not connected and "SuperNode ID" in node.program.said(1000):
            connected, refused = True, None
            tell("Connected.")
        if audit.exists() and audit.stat().st_size > seen:
            with audit.open("rb") as file:
                file.seek(seen)
                whole, end, _ = file.read().rpartition(b"\n")  # what follows is a line still being written
            seen += len(whole + end)
            for line in audit_lines(whole):
                tell(news_of(line))
        time.sleep(0.5)
    time.sleep(SAID)
    tell(f"The coordinator has ended the federation.  The trained model is in {site.path / 'state'}.")


def news_of(line: Mapping[str, Any]) -> str:
    """Tell what a line of the audit log says."""
    if "policy" in line:
        return f"Refused in round {line['round']}: {line['asked']}.  {line['policy']}  {line['words']}"
    return f"Sent in round {line['round']}: {line['task']}, {line['bytes']:,} bytes, {line['blake2b']}"


def refuse_for_ever(log: str) -> None:
    """Raise if the SuperNode's log shows an error that trying again will not mend, such as a wrong certificate."""
    if re.search("certificate (is not yet valid|has expired)", log, re.IGNORECASE):
        raise ProteaError(
            "By this machine's clock the server's certificate is not valid yet, or no longer.  Look at the clock "
            f"first: date.  If it is right, the coordinator's is wrong; tell them.  The SuperNode's words:\n{log}"
        )
    if re.search(
        "certificate.verify.failed|wrong.version.number", log, re.IGNORECASE
    ):  # other errors, as a lost connection, may go away
        raise ProteaError(
            "The server's certificate is not one of this federation's: either the bundle is of another federation, or "
            f"another server answers at that address.  The SuperNode's words:\n{log}"
        )


class ClientProcess:
    """The client process of a site, started, restarted and stopped from the process that watches over it."""

    def __init__(self, path: Path, node: Node) -> None:
        self.path, self.node, self.short = path, node, 0
        self.log = path / "flower" / "client.log"
        self._start()

    def _start(self) -> None:
        self.started = time.monotonic()
        code = "import sys; from protea.network.site.join import serve; serve(*sys.argv[1:])"
        with self.log.open("ab") as log:
            self.start = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", code, str(self.path), self.node.address, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self.process.poll() is None

    def restart(self, tell: Tell) -> None:
        """Start the process anew; raise :class:`ProteaError` if it has ended at once several times in a row."""
        self.short = self.short + 1 if time.monotonic() < self.started + SHORT else 0
        with self.log.open("rb") as file:
            file.seek(self.start)
            words = "\n".join(file.read().decode(errors="replace").strip().splitlines()[-12:])
        if self.short >= TRIES:
            raise ProteaError(f"The client process ends as soon as it is started.  The end of {self.log}:\n{words}")
        tell(f"The client process ended ({self.process.returncode}); it is started anew.  {words}")
        self._start()

    def stop(self) -> None:
        """Kill the process if it runs, and wait for its end."""
        if self.alive:
            self.process.kill()
        self.process.wait()


def serve(path: str, address: str, parent: str) -> None:
    """Answer the coordinator's messages as long as the watching process lives: the main function of a client process.

    ``address`` is that of the SuperNode, ``parent`` the id of the watching process.
    """

    def end_with_parent() -> None:
        while os.getppid() == int(parent):
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()
    site = Site(Path(path))
    taken = f"{path} has a client process already, which has not ended yet."
    with hold_lock(site.path / ".client.lock", taken):
        service = SiteService(site)
        service.worker.store.tidy()
        attend(address, site.path / "flower", service.handle)
