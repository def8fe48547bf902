"""Processes that start at once: they are forked from one that has torch and Protea in place.

For tests that need a process of its own and are not about how one starts.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

from protea import __main__
from protea.engines.processes import pool
from protea.engines.processes.forkserver import processes


@dataclass(frozen=True)
class Ended:
    """What a script left behind."""

    code: int
    out: str
    err: str


def script(path: Path, folder: Path, said: Path, seconds: float = 300) -> Ended:
    """Run a script in a folder, as ``python path`` would; what it says is kept in the folder ``said``."""
    process = processes().Process(target=_be_script, args=(path, folder, said))
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
    return Ended(process.exitcode, (said / "out").read_text(), (said / "err").read_text())


def command(*words: str | Path, log: Path, **environment: str) -> BaseProcess:
    """Start a ``protea`` command; all that it says is added to the file ``log``."""
    process: BaseProcess = processes().Process(target=_be_command, args=(words, log, environment), daemon=False)
    process.start()
    return process


def _be_command(words: Sequence[str | Path], log: Path, environment: dict[str, str]) -> None:
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["protea", *map(str, words)]
    __main__.start_forkserver = lambda: None  # this process is forked from it
    __main__.main()


def _be_script(path: Path, folder: Path, said: Path) -> None:
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(said / name, os.O_WRONLY | os.O_CREAT, 0o644), number)
    os.chdir(folder)
    sys.argv, sys.path[0] = [str(path)], str(path.parent)
    pool.processes = lambda: mp.get_context("fork")  # workers come from here, where all is in place
    forkserver.ensure_running = lambda: None
    runpy.run_path(str(path), run_name="__main__")
