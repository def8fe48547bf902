"""Workers of Ray that start at once: they are forked from one process, the nest, that has torch and Ray in place.

For tests that are not about how a worker starts.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from protea.engines.processes.forkserver import processes


def setup(folder: Path) -> Path:
    """Give the script that sets up workers, for a Ray whose nest is in this folder, when there is one."""
    return Path(shutil.copy(Path(__file__).with_name("ray_setup.py"), folder))


@contextmanager
def nest(folder: Path) -> Iterator[None]:
    """Within, workers are forked."""
    ready, theirs = processes().Pipe(duplex=False)
    process = processes().Process(target=_be_nest, args=(folder / "nest", theirs), daemon=False)
    process.start()
    theirs.close()
    try:
        ready.recv()
        yield
    finally:
        process.kill()
        process.join()


def _be_nest(place: Path, ready: Connection) -> None:
    signal.signal(signal.SIGCHLD, _bury)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{place}-to-be")
        listener.listen()
        Path(f"{place}-to-be").rename(place)
        ready.send(True)
        while True:
            caller, _ = listener.accept()
            with caller, caller.makefile("rb") as words:
                files = socket.recv_fds(caller, 1, 3)[1]
                command, environment, here = json.load(words)
                os.environ.clear()
                os.environ.update(environment)
                # Ray reads its environment here, at the first import: it is the same for all workers of one job.
                import protea.engines.ray.actor  # noqa: F401

                if not os.fork():
                    _be_worker(files, command, here)
            for file in files:
                os.close(file)


def _bury(signal: int, frame: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _be_worker(files: Sequence[int], command: Sequence[str], here: str) -> None:
    """Do what Ray's own script would, but for a new Python."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, 4096)
        os.chdir(here)
        sys.argv = [word for word in command if not word.startswith(("--language=", "--serialized-runtime-env"))]
        sys.path[0] = str(Path(sys.argv[0]).parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        os._exit(0)
