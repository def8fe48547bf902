"""Where worker processes come from.  Nothing here needs torch, so that they can get ready while it is imported."""

from __future__ import annotations

import multiprocessing as mp
import sys
from multiprocessing import forkserver
from typing import Any


def processes() -> Any:
    """Give the context that starts processes: from one that has torch in place, where the system can."""
    if sys.platform == "win32":
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["protea.engines.processes.preload"])
    return context


def start_forkserver() -> None:
    """Start the process that others come from; it imports torch while this one does other things."""
    if isinstance(processes(), mp.context.ForkServerContext):
        forkserver.ensure_running()
