"""Forks ``protea`` commands for test_kill.py: all that they need is in place, and each is a session of its own.

Orders come through a pipe; each has a number for an answer.

    {"argv": [...], "folder": path, ...}   starts a command there, and answers with its process id
    {"wait": id}                           answers with its exit code, or minus the signal that ended it

A command tells of its phases on the fifo ``phases`` in its folder: ``+train`` when one begins, ``-train`` when it ends.
"""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

import torch

from protea.cli import app
from protea.config import registry
from protea.engines.processes import pool
from protea.runs import checkpoint
from protea.runs.directory import RunDirectory

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"}  # with files opened to write: what may go wrong


def main(orders: Connection) -> None:
    """Carry out orders until there are no more."""
    torch.set_num_threads(1)  # threads would not live on in a fork
    for group in registry.BUILT_IN:  # read and imported once, and not in every fork
        registry.table(group)
    methods()
    while True:
        try:
            order = orders.recv()
        except EOFError:
            return
        if "wait" in order:
            status = os.waitpid(order["wait"], 0)[1]
            answer = os.waitstatus_to_exitcode(status)
        elif not (answer := os.fork()):
            live(**order)
        orders.send(answer)


def live(
    argv: list[str],
    folder: str,
    linger: str = "",  # phase that takes longer than it should, and so do writes to the disk
    changes: int = 0,  # of files, before which it kills itself; 0 for never
    limit: int = 0,  # bytes of the largest file that can be written; 0 for any
    fatal: bool = False,  # a file that grows too large ends the process in the middle of writing, or is an error
    humble: bool = False,  # permissions hold for it even if it is root's
    forked: bool = False,  # its workers are forks of it, not of a process that has to import torch first
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
        if forked:
            pool.processes = lambda: mp.get_context("fork")
            forkserver.ensure_running = lambda: None
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


def methods() -> list[Any]:
    return [registry.find("methods", name) for name in registry.table("methods")]


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

    for method in methods():
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
