"""What Ray starts each worker with, as a copy in a folder: if there is a nest beside it, that forks the worker.

If there is none, the worker starts as it always does.  Only what Python itself has is imported here: Ray takes a
second, and the nest has it.  See ``warm_ray.py``.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
from pathlib import Path

NEST = Path(__file__).with_name("nest")


def ask() -> None:
    """Have this command done by a process that the nest forks, with our files and environment."""
    with socket.socket(socket.AF_UNIX) as nest:
        nest.connect(str(NEST))
        socket.send_fds(nest, [b"!"], [0, 1, 2])
        nest.sendall(json.dumps([sys.argv[1:], dict(os.environ), str(Path.cwd())]).encode())
        nest.shutdown(socket.SHUT_WR)
        nest.recv(1)  # it is done when the nest hangs up


if __name__ == "__main__":
    if NEST.exists():
        ask()
    else:
        runpy.run_module("ray._private.workers.setup_worker", run_name="__main__")
