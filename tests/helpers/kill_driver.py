"""Forks ``protea`` commands for test_kill.py: torch is imported once, and each command is a session of its own.

Orders are JSON lines on standard input; each has one line of answer on standard output.

    {"argv": [...], "folder": path, ...}   starts a command there, and answers with its process id
    {"wait": id}                           answers with its exit code, or minus the signal that ended it

A command tells of its phases on the fifo ``phases`` in its folder: ``+train`` when one begins, ``-train`` when it ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import sklearn.datasets  # noqa: F401  here once, and not in every fork
import torch

import protea.engines.processes.preload  # noqa: F401
from protea.cli import app
from protea.config import registry
from protea.runs import checkpoint
from protea.runs.directory import RunDirectory

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"}  # with files opened to write: what may go wrong


METHODS = [registry.find("methods", name) for name in registry.table("methods")]


def main() -> None:
    torch.set_num_threads(1)  # threads would not live on in a fork
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            status = os.waitpid(order["wait"], 0)[1]
            answer = os.waitstatus_to_exitcode(status)
        elif not (answer := os.fork()):
            live(**order)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def live(
    argv: list[str],
    folder: str,
    linger: str = "",  # phase that takes longer than it should, and so do writes to the disk
    changes: int = 0,  # of files, before which it kills itself; 0 for never
    limit: int = 0,  # bytes of the largest file that can be written; 0 for any
    fatal: bool = False,  # a file that grows too large ends the process in the middle of writing, or is an error
    humble: bool = False,  # permissions hold for it even if it is root's
) -> None:
    """Be a ``protea`` command to its end."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        for name, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
        pipe = os.open("phases", os.O_WRONLY)
        announce(pipe, linger)
        if linger:
            os.fsync = late(os.fsync)
        if changes:
            sys.addaudithook(deadly(changes))
        if limit:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            if fatal:
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        if humble:
            obey()
        os.write(pipe, b"+start\n")
        sys.argv = ["protea", *argv]
        app.main()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException as error:
        sys.stderr.write(f"{error!r}\n")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def announce(pipe: int, linger: str) -> None:
    """Have all phases announced on the pipe."""

    def announced(owner: Any, name: str, phase: str) -> None:
        original = late(getattr(owner, name)) if phase == linger else getattr(owner, name)

        def wrapped(*args: Any, **options: Any) -> Any:
            os.write(pipe, f"+{phase}\n".encode())
            found = original(*args, **options)
            os.write(pipe, f"-{phase}\n".encode())
            return found

        setattr(owner, name, wrapped)

    for method in METHODS:
        for hook, phase in (("local_update", "train"), ("aggregate", "aggregate")):
            if hook in vars(method):
                announced(method, hook, phase)
    announced(RunDirectory, "append", "metrics")
    announced(RunDirectory, "keep_snapshot", "snapshot")
    announced(checkpoint, "save", "checkpoint")


def late(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same with a pause before and after."""

    def wait(*args: Any, **options: Any) -> Any:
        time.sleep(0.01)
        found = original(*args, **options)
        time.sleep(0.01)
        return found

    return wait


def deadly(count: int) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that kills the process group before change number ``count`` of a file."""
    left = [count]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in CHANGES or (
            event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR) and "/dev/" not in str(args[0])
        ):
            left[0] -= 1
            if left[0] == 0:
                os.killpg(0, signal.SIGKILL)

    return hook


def obey() -> None:
    """Give up root's right to pass over permissions: the capabilities DAC_OVERRIDE and DAC_READ_SEARCH."""
    libc = ctypes.CDLL(None)
    head, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()  # version 3, this process
    libc.capget(head, sets)
    sets[0] &= ~0b110
    libc.capset(head, sets)
