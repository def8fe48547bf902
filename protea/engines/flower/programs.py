"""Flower's own programs as processes that end with the one that started them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from protea.core.errors import ProteaError
from protea.engines.flower import QUIET

# Not a module of ours: that would import torch, which this program has no use for.
START = """
import os, signal, sys, threading, time
from importlib.metadata import entry_points

def end_with(parent):
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    os._exit(0)

threading.Thread(target=end_with, args=(int(sys.argv.pop(1)),), daemon=True).start()
sys.argv.pop(0)
if sys.argv[0] == "flower-superlink":  # what is not for sites or runs is for those who know the secret
    import hashlib, hmac
    import flwr.superlink.main as main
    from starlette.middleware import Middleware
    with open(sys.argv[sys.argv.index("--superexec-auth-secret-file") + 1], "rb") as file:
        secret = hashlib.sha256(b"control" + file.read()).hexdigest().encode()

    class Guard:
        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            known = dict(scope.get("headers", ())).get(b"protea-secret", b"")
            free = scope["type"] != "http" or scope["path"].startswith(("/v1/fleet/", "/v1/runtime/"))
            if free or scope["path"] == "/health" or hmac.compare_digest(known, secret):
                await self.app(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    # Layers that do nothing here, but take a third of the time of a request: there are no plug-ins, accounts or traces.
    idle = {
        main.ControlSensitiveResponseMiddleware, main.ControlLicenseMiddleware, main.ControlEventLogMiddleware,
        main.RuntimeTracingMiddleware, main.FleetEventLogMiddleware,
    }
    layers = main._get_middleware
    main._get_middleware = lambda: [Middleware(Guard), *(each for each in layers() if each.cls not in idle)]

    import uvicorn
    run = uvicorn.run
    # A line for each request would fill a disk; the door keeps its connections longer than five seconds.
    uvicorn.run = lambda **given: run(**{**given, "access_log": False, "timeout_keep_alive": 75})
(program,) = entry_points(group="console_scripts", name=sys.argv[0])
program.load()()
"""


class Program:
    """A running program of Flower's, whose output goes to ``folder/<name>.log``."""

    def __init__(self, name: str, arguments: Sequence[str], folder: Path) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)  # its state has what was sent
        environment = {**os.environ, **QUIET, "FLWR_HOME": str(folder / "home"), "NO_COLOR": "1"}
        with self.log.open("ab") as log:
            self.start = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", START, str(os.getpid()), name, *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us, and we then end it
            )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def said(self, lines: int = 12) -> str:
        """Give the last lines that it wrote since it was started."""
        with self.log.open("rb") as file:
            file.seek(self.start)
            text = re.sub(r"\x1b\[\d*m", "", file.read().decode(errors="replace"))  # colours
        return "\n".join(text.strip().splitlines()[-lines:])

    def refuse_dead(self) -> None:
        """Raise :class:`ProteaError` with its last words if it has ended."""
        if not self.alive:
            raise ProteaError(
                f"{self.name} ended (exit code {self.process.returncode}).  The end of {self.log}:\n{self.said()}"
            )

    def stop(self) -> None:
        if self.alive:
            self.process.terminate()
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


def free_port(host: str = "127.0.0.1") -> int:
    """Give a port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
