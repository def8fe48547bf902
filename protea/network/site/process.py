"""The client process of a site: it talks to the coordinator's server, trains, and answers.

``protea site join`` starts it and watches over it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from protea.core.errors import PolicyError, ProteaError
from protea.core.files import hold_lock
from protea.engines.flower.node import Node
from protea.network.site.audit import Audit
from protea.network.site.directory import Site
from protea.network.site.join import FAILED
from protea.network.site.refusals import refusals, refused_task
from protea.network.site.service import SiteService


def serve(path: str, parent: str) -> None:
    """Answer the coordinator's messages as long as the watching process lives: the main function of a client process.

    ``parent`` is the id of the watching process.
    """

    def end_with_parent() -> None:
        while os.getppid() == int(parent):
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # and the server is told that this site leaves
    folder = Path(path)
    taken = f"{path} has a client process already, which has not ended yet."
    with hold_lock(folder / ".client.lock", taken):
        try:
            service, node = prepared(folder)
        except ProteaError as error:
            Node(folder / "flower", "").note("failed", f"{type(error).__name__}: {error}")
            sys.exit(FAILED)
        service.worker.store.tidy()
        node.attend(service.handle, service.site.ended.exists, service.meanwhile)


def prepared(folder: Path) -> tuple[SiteService, Node]:
    """Have all in place before the server hears of this site: errors in model, data or state show now."""
    site = Site(folder)
    refuse_by_policy(site)
    service = SiteService(site)
    site.restored().client(site.id)
    bundle = site.bundle
    return service, Node(folder / "flower", bundle.invitation.address, bundle.ca, bundle.key)


def refuse_by_policy(site: Site) -> None:
    """Raise :class:`PolicyError` for a task that the site's policy forbids; it is in the audit log then."""
    found = list(refusals(site.policy, site.task, site.class_counts))
    for each in found:
        Audit(site.path / "audit.jsonl").write_refusal("join", 0, each.cited, each.why)
    if found:
        raise PolicyError(refused_task(found))
