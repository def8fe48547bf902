"""A ``protea`` command in a session of its own, forked from a warm process, and so is the forkserver that it starts.

Its processes are those that it has when it is started cold; but torch is in place in all of them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing import util
from multiprocessing.process import BaseProcess
from pathlib import Path

from protea.cli import app
from protea.engines.processes.forkserver import processes


class Session:
    """As much of a ``subprocess.Popen`` as tests need."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.said = folder / "out", folder / "err"
        self.process: BaseProcess = processes().Process(target=_lead, args=(words, self.said), daemon=False)
        self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        self.process.kill()

    def wait(self, timeout: float | None = None) -> None:
        self.process.join(timeout)
        assert self.returncode is not None, f"it has not ended after {timeout} s"

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        out, err = (path.read_text() for path in self.said)
        return out, err


def _lead(words: Sequence[str], said: Sequence[Path]) -> None:
    os.setsid()
    for number, path in enumerate(said, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    util.spawnv_passfds = _forked
    sys.argv = ["protea", *words]
    app.main()


def _forked(path: bytes, command: Sequence[str], files: Sequence[int]) -> int:
    """Start what would be a new Python: here its code, the last word of the command, has all that it would import."""
    if process := os.fork():
        return process
    try:
        kept = [2, *sorted(files), 4096]
        for low, high in pairwise(kept):
            os.closerange(low + 1, high)
        exec(command[-1], {})
    finally:
        os._exit(1)
