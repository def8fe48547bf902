"""Runs that are killed with SIGKILL, over and over, at any moment: they end as if nothing had been.

And runs whose disk is full, or that may not write: a clear error, and nothing that was complete is lost.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from test_processes import session, until
from test_store import traces

pytestmark = [
    pytest.mark.xdist_group("engines"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc"),
]

EXPERIMENT = """
rounds = 4
clients = 3
engine = "inline"
checkpoint.every = {every}
data = {{ source = "digits", samples = 300, public = {public} }}
models = {{ family = "tiny5", dim = 16{server} }}
training = {{ batch = 32 }}
evaluation.snapshots = 3
"""
PUBLIC = {"fedprotokd"}
RUN = ["run", "exp.toml", "--out", "run", "--resume", "--quiet"]  # what a job scheduler would start again and again
PHASES = ("train", "aggregate", "metrics", "snapshot", "checkpoint")
NOBODY = 65534


@dataclass(frozen=True)
class Life:
    """A command from its start to its end."""

    code: int
    err: str
    inside: frozenset[str]  # phases that it had not come out of
    seconds: float
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def killed(self) -> bool:
        return self.code in (-signal.SIGKILL, -signal.SIGXFSZ)


class Driver:
    """Starts commands at once: see kill_driver.py."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("kill_driver.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **order: Any) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def live(
        self, folder: Path, *argv: str, phase: str = "", nth: int = 1, delay: float = 0.0, **order: Any
    ) -> Life:
        """One life; with ``phase``, it is killed so many seconds after the phase has begun for the ``nth`` time."""
        fifo = folder / "phases"
        if not fifo.exists():
            os.mkfifo(fifo)
        began = time.perf_counter()
        pid = self.ask(argv=argv or RUN, folder=str(folder), **order)
        begun, left = Counter[str](), Counter[str]()
        with fifo.open() as pipe:
            for line in map(str.strip, pipe):
                (begun if line[0] == "+" else left)[line[1:]] += 1
                if line == f"+{phase}" and begun[phase] == nth:
                    time.sleep(delay)
                    os.killpg(pid, signal.SIGKILL)
        code, seconds = self.ask(wait=pid), time.perf_counter() - began
        assert not session(pid)
        return Life(code, (folder / "err").read_text(), frozenset(begun - left), seconds, begun)

    def close(self) -> None:
        self.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder and the life of a run that nobody interrupts, made once for each method and interval."""
    known: dict[tuple[str, int], tuple[Path, Life]] = {}

    def make(method: str, every: int = 1, **more: str) -> tuple[Path, Life]:
        if (method, every) not in known:
            folder = tmp_path_factory.mktemp("whole")
            write(folder, method, every, **more)
            life = driver.live(folder)
            assert life.code == 0, life.err
            known[method, every] = folder, life
        return known[method, every]

    return make


def write(folder: Path, method: str, every: int, **more: str) -> None:
    public, server = (60, ', server = "tiny_cnn"') if method in PUBLIC else (0, "")
    text = EXPERIMENT.format(every=every, public=public, server=server)
    head = {"method": f'"{method}"', **more}
    (folder / "exp.toml").write_text("".join(f"{name} = {value}\n" for name, value in head.items()) + text)


@pytest.mark.parametrize(
    ("method", "every", "more"),
    [
        ("fedproto", 2, {"fraction": "0.67"}),
        ("fedtgp", 1, {}),
        ("fedpagr", 2, {}),
        ("fedprotokd", 1, {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(
    method: str, every: int, more: dict[str, str], driver: Driver, whole: Any, tmp_path: Path
):
    expected, straight = whole(method, every, **more)
    write(tmp_path, method, every, **more)
    draw, story = random.Random(f"kill {method}"), []

    def live(**how: Any) -> Life:
        story.append({**how, "life": (life := driver.live(tmp_path, **how))})
        assert life.killed or life.code == 0, story
        return life

    live(changes=draw.randint(1, 9))  # while the directory is made
    for phase in PHASES:
        for _ in range(5):  # until it has died in it
            nth = draw.randint(1, max(1, straight.counts[phase] // 4))
            if phase in live(phase=phase, nth=nth, delay=draw.uniform(0, 0.02), linger=phase).inside:
                break
        else:
            raise AssertionError(f"never died in {phase}: {story}")
    live(changes=draw.randint(10, 60))
    live(limit=draw.randint(500, 40_000), fatal=True)
    live(phase="start", delay=draw.uniform(0, straight.seconds))
    life = live()
    assert life.code == 0 and sum(each["life"].killed for each in story) >= 5, story
    assert traces(tmp_path / "run") == traces(expected / "run"), story
