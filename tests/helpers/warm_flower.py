"""Processes that have Flower in place too: they are forked from one nest, and so are the programs that they start.

With ``cold`` they start these programs as they always do.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import entry_points
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import namespaces
import torch

from protea.cli import app
from protea.engines.processes.forkserver import processes


class Begun:
    """A process that the nest has forked."""

    def __init__(self, life: Callable[..., object], *given: object, cold: bool = False) -> None:
        self.pid: int = ask((life, given, cold))
        self.exitcode: int | None = None

    def is_alive(self) -> bool:
        if self.exitcode is None:
            self.exitcode = ask(self.pid)
        return self.exitcode is None

    def join(self, seconds: float = 60) -> None:
        """Wait for its end, but not for ever."""
        end = time.monotonic() + seconds
        while self.is_alive() and time.monotonic() < end:
            time.sleep(0.05)

    def kill(self) -> None:
        if self.is_alive():
            os.kill(self.pid, signal.SIGKILL)
        self.join()


def command(*words: str | Path, log: Path, cold: bool = False, space: str = "", **environment: str) -> Begun:
    """Start a ``protea`` command, in a network namespace if one is named; what it says is added to the file ``log``."""
    return Begun(_be_command, words, log, environment, space, cold=cold)


def _be_command(words: Sequence[str | Path], log: Path, environment: dict[str, str], space: str) -> None:
    if space:
        namespaces.enter(space)
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    os.environ.update(environment)
    torch.set_num_threads(1)  # a process with threads cannot be forked
    sys.argv = ["protea", *map(str, words)]
    app.main()


# The nest


@cache
def nest() -> Connection:
    """Start it, if it is not there yet; it ends with this process."""
    ours, theirs = processes().Pipe()
    processes().Process(target=_be_nest, args=(theirs,), daemon=True).start()
    theirs.close()
    return ours  # type: ignore[no-any-return]


def ask(what: object) -> Any:
    nest().send(what)
    return nest().recv()


def _be_nest(pipe: Connection) -> None:
    """Fork processes, and tell how they ended."""
    from protea.engines.flower import QUIET

    os.environ.update(QUIET)  # before Flower looks at it
    (program,) = entry_points(group="console_scripts", name="flower-superlink")
    program.load()
    import protea.engines.flower.engine
    import protea.network.coordinator.service
    import protea.network.site.process  # noqa: F401

    while True:
        match pipe.recv():
            case (life, given, cold):
                process = os.fork()
                if not process:
                    pipe.close()
                    if not cold:
                        subprocess.Popen = Forked  # type: ignore[misc]
                    _live(life, *given)
                pipe.send(process)
            case process:
                ended, status = os.waitpid(process, os.WNOHANG)
                pipe.send(os.waitstatus_to_exitcode(status) if ended else None)


class Forked(subprocess.Popen[bytes]):
    """A Python that runs a piece of code, ``python -c``: it is forked, and has all that the code imports."""

    def _execute_child(self, command: Sequence[str], *options: Any) -> None:
        if command[0] != sys.executable or "-c" not in command:
            super()._execute_child(command, *options)  # type: ignore[misc]
            return
        environment, files = options[5], (options[9], options[12], options[14])
        self.pid = os.fork()
        if self.pid:
            return
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, 4096)
        if environment is not None:
            os.environ.clear()
            os.environ.update(environment)
        logging.getLogger("flwr").setLevel(logging.INFO)  # Flower's own programs say what they do
        code = command.index("-c") + 1
        sys.argv = ["-c", *command[code + 1 :]]
        _live(exec, command[code], {"__name__": "__main__"})


def _live(life: Callable[..., object], *given: object) -> None:
    """Be a process, to its end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ended = 1
    try:
        life(*given)
        ended = 0
    except SystemExit as end:
        ended = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended)
