"""A coordinator and sites as real processes on loopback, and the same federation in one process to compare with."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import places
import warm_flower
from digits import load_digits
from waiting import until

from protea.clients.builder import FunctionBuilder
from protea.clients.plan import WorkerPlan
from protea.clients.state_files import name_of
from protea.engines.flower.programs import free_port
from protea.engines.inline import Inline
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.federation.record import Record
from protea.network.coordinator.directory import CoordinatorDirectory
from protea.network.site.directory import Site
from protea.network.task import Task, new_server, new_task
from protea.runs.directory import RunDirectory

NAMES = ("north", "south", "east")
LACKS = {"north": (0, 1), "south": (4,), "east": (8, 9), "west": (2, 3)}  # digits that a site has none of

# The first is a module of the site's own.  It tells when it trains, and may take its time over it.
MODELS = {
    "north": """
import os, pathlib, time
import torch
from torch import nn

here = pathlib.Path(__file__).parent

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 24))

    def forward(self, x):
        if self.training:
            (here / "training").touch()
            if (here / "slow").exists():
                time.sleep(0.3)
        return self.body(x)

def model():
    return Own()
""",
    "south": "def model():\n    return 'tiny_cnn'\n",
    "east": "def model():\n    return 'tiny_separable'\n",
    "west": "def model():\n    return 'tiny_mlp'\n",
}
DATA = """
import pathlib
import numpy as np

def data():
    with np.load(pathlib.Path(__file__).parent / "data.npz") as arrays:
        return arrays["x"], arrays["y"]
"""


def make_base(
    folder: Path,
    sites: Sequence[str] = NAMES,
    *,
    tls: bool = True,
    public: bytes | None = None,
    host: str = "localhost",
    **settings: Any,
) -> CoordinatorDirectory:
    table = {
        "classes": [str(digit) for digit in range(10)],
        "rounds": 2,
        "quorum": len(sites),
        "deadline": 200.0,
        "models": {"dim": 16},
        "training": {"lr": 0.05},
        **settings,
    }
    base = CoordinatorDirectory.create(
        folder, new_task(table, []), host if tls else "127.0.0.1", free_port(), tls, public
    )
    for name in sites:
        base.invite(name)
    return base


def make_site(folder: Path, bundle: Path, name: str) -> Site:
    """A site of that name, with its own part of the digits.

    It draws by the task's seed and lets everything leave, as a client of a simulation does, to be compared with one.
    """
    from protea.network.trust import bundles as bundles

    digits = load_digits()
    part = np.random.default_rng(0).permutation(len(digits.target))[list(LACKS).index(name) :: 8]
    part = part[~np.isin(digits.target[part], LACKS[name])]
    folder.mkdir()
    np.savez(folder / "data.npz", x=(digits.images[part] * 15).astype("uint8"), y=digits.target[part])
    (folder / "site.py").write_text(MODELS[name] + DATA)
    (folder / "site.toml").write_text('seed = "task"\n')
    (folder / "policy.toml").write_text(places.ALL)
    bundles.open_bundle(bundle, folder / "bundle")
    return Site(folder)


class Party:
    """A ``protea`` command that runs in a process of its own; with ``cold`` the programs that it starts are cold.

    It may be in a network namespace, ``space``.
    """

    def __init__(self, log: Path, *arguments: str | Path, cold: bool = False, space: str = "") -> None:
        self.log = log
        log.touch()
        environment = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
        self.process = warm_flower.command(*arguments, log=log, cold=cold, space=space, **environment)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float = 240) -> int:
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"it has not ended after {seconds} s"
        return self.process.exitcode

    def kill(self) -> None:
        """SIGKILL; the process has no chance to say or write anything."""
        self.process.kill()

    def stop(self) -> None:
        if self.process.is_alive():
            os.kill(self.process.pid, signal.SIGINT)
            self.process.join(20)
        if self.process.is_alive():
            self.kill()


class Parties:
    """Processes that are stopped in the end, whatever happens."""

    def __init__(self, folder: Path, cold: bool = False) -> None:
        self.folder, self.cold, self.all = folder, cold, list[Party]()

    def serve(self, base: CoordinatorDirectory, space: str = "", listen: str = "") -> Party:
        more = ["--listen", listen] if listen else []
        return self._start("serve.log", "federation", "serve", base.path, *more, space=space)

    def join(self, site: Site | Path, *more: str | Path, space: str = "") -> Party:
        path = site if isinstance(site, Path) else site.path
        return self._start(f"{path.name}.log", "site", "join", *more, "--dir", path, space=space)

    def _start(self, log: str, *arguments: str | Path, space: str = "") -> Party:
        self.all.append(Party(self.folder / log, *arguments, cold=self.cold, space=space))
        return self.all[-1]


@contextmanager
def parties(folder: Path, cold: bool = False) -> Iterator[Parties]:
    found = Parties(folder, cold)
    try:
        yield found
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            sys.stderr.write(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}\n")
        raise
    finally:
        for party in reversed(found.all):
            party.stop()


def alone(task: Task, sites: Sequence[Site], folder: Path) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """The same federation in one process: its records, and every site's model and memory in the end."""
    again = [Site(site.path) for site in sites]
    build = FunctionBuilder(lambda id, streams: again[id].client(id, streams))
    engine = Inline(WorkerPlan(task.method, build, task.seed, careful=True))
    loop = Federation(
        task.method,
        engine,
        new_server(task, again[0].public()),
        FederationPlan(
            clients=len(sites),
            rounds=task.rounds,
            evaluation=task.evaluation,
            failures="skip",
            min_replies=task.quorum,
        ),
    )
    lines = [line for record in loop.run() for line in record.lines()]
    folder.mkdir()
    engine.save(folder)
    return plain(lines), {path.name: path.read_bytes() for path in folder.iterdir()}


def over_network(base: CoordinatorDirectory, sites: Sequence[Site]) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """What a federation left: its records, and every site's state."""
    lines = [line for line in RunDirectory.open(base.path / "run").metrics() if line["kind"] != "data"]
    states = {}
    for site in sites:
        newest = sorted((site.path / "state" / name_of(site.id)).glob("[0-9]*"))[-1]
        file = f"{name_of(site.id)}.safetensors"
        states[file] = (newest / file).read_bytes()
    return plain(lines), states


def plain(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    import json

    return [{k: v for k, v in json.loads(json.dumps(line)).items() if k != "cost"} for line in lines]


def amid_round_two(site: Site) -> None:
    """Wait until the site trains in its second round."""
    (site.path / "slow").touch()
    until(lambda: (site.path / "state" / "client-000" / "000001").exists(), 200)
    (site.path / "training").unlink()
    until(lambda: (site.path / "training").exists(), 200)


def records(base: CoordinatorDirectory) -> list[Record]:
    """Read what the coordinator has recorded."""
    return Record.read(RunDirectory.open(base.path / "run").metrics())
