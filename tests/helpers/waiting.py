"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(what: Callable[[], object], seconds: float = 120) -> None:
    """Wait for something to be so."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise TimeoutError("it did not come to pass")
        time.sleep(0.05)
