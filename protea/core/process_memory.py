"""How much memory this process has."""

from __future__ import annotations

import ctypes
import sys

import psutil


def current_memory() -> int:
    """Bytes that this process has now."""
    return int(psutil.Process().memory_info().rss)


def peak_memory() -> int:
    """The most bytes that this process ever had; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(found if sys.platform == "darwin" else 1024 * found)


def return_free_memory() -> None:
    """Let the C library return memory that nobody uses to the system, where it can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
