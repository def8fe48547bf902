"""Runs that are killed with SIGKILL, over and over, at any moment: they end as if nothing had been.

And runs whose disk is full, or that may not write: a clear error, and nothing that was complete is lost.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kill_driver
import pytest
from night import by_night
from test_directory import traces
from test_processes import session
from waiting import until

from protea.engines.processes.forkserver import processes

pytestmark = [
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
SETTINGS = {"fedtgp": ", server_epochs = 2"}  # not the hundred that it trains its server by default
RUN = ["run", "exp.toml", "--out", "run", "--resume", "--quiet"]  # what a job scheduler would start again and again
PHASES = ("train", "aggregate", "metrics", "snapshot", "checkpoint")


@dataclass(frozen=True)
class Life:
    """A command from its start to its end."""

    code: int
    out: str
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
        self.orders, theirs = processes().Pipe()
        self.process = processes().Process(target=kill_driver.main, args=(theirs,))
        self.process.start()
        theirs.close()

    def ask(self, **order: Any) -> int:
        self.orders.send(order)
        answer: int = self.orders.recv()
        return answer

    def live(self, folder: Path, *argv: str, phase: str = "", nth: int = 1, delay: float = 0.0, **order: Any) -> Life:
        """One life; with ``phase``, it is killed so many seconds after the phase has begun for the ``nth`` time."""
        fifo = folder / "phases"
        if not fifo.exists():
            os.mkfifo(fifo)
        pid = self.ask(argv=argv or RUN, folder=str(folder), **order)
        begun, left = Counter[str](), Counter[str]()
        with fifo.open() as pipe:
            began = time.perf_counter()
            for line in map(str.strip, pipe):
                (begun if line[0] == "+" else left)[line[1:]] += 1
                if line == f"+{phase}" and begun[phase] == nth:
                    time.sleep(delay)
                    os.killpg(pid, signal.SIGKILL)
        code, seconds = self.ask(wait=pid), time.perf_counter() - began
        until(lambda: not session(pid))
        out, err = ((folder / name).read_text() for name in ("out", "err"))
        return Life(code, out, err, frozenset(begun - left), seconds, begun)

    def close(self) -> None:
        self.orders.close()
        self.process.join(60)
        assert self.process.exitcode == 0


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
    head = {"method": f'{{ name = "{method}"{SETTINGS.get(method, "")} }}', **more}
    (folder / "exp.toml").write_text("".join(f"{name} = {value}\n" for name, value in head.items()) + text)


@pytest.mark.parametrize(
    ("method", "every", "phases", "more"),
    [
        ("fedproto", 2, 2, {"fraction": "0.67"}),
        *by_night(
            ("fedproto", 2, 5, {"fraction": "0.67"}),
            ("fedtgp", 1, 5, {}),
            ("fedpagr", 2, 5, {}),
            ("fedprotokd", 1, 5, {}),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(
    method: str, every: int, phases: int, more: dict[str, str], driver: Driver, whole: Any, tmp_path: Path
):
    expected, straight = whole(method, every, **more)
    write(tmp_path, method, every, **more)
    draw, story = random.Random(f"kill {method}"), []

    def live(**how: Any) -> Life:
        life = driver.live(tmp_path, **how)
        story.append((how, life.code, sorted(life.inside)))
        assert life.killed or life.code == 0, (story, life.err)
        if life.code == 0:
            assert traces(tmp_path / "run") == traces(expected / "run"), story
            shutil.rmtree(tmp_path / "run")
        return life

    def die_in(phase: str) -> None:
        for _ in range(8):  # it may end before
            nth = draw.randint(1, straight.counts[phase] * 3 // 4)
            if phase in live(phase=phase, nth=nth, delay=draw.uniform(0, 0.02), linger=phase).inside:
                return
        raise AssertionError(f"never died in {phase}: {story}")

    live(limit=draw.randint(1, 900), fatal=True)  # while the directory is made, in the middle of a file
    live(changes=draw.randint(1, 9))  # and between two of them
    for phase in draw.sample(PHASES, phases):
        die_in(phase)
    live(changes=draw.randint(10, 60))
    die_in("checkpoint")
    if phases == len(PHASES):
        live(limit=draw.randint(5_000, 60_000), fatal=True)
        die_in("metrics")
        live(phase="start", delay=draw.uniform(0, straight.seconds))
    least = 9 if phases == len(PHASES) else 5
    assert live().code == 0 and sum(code < 0 for _, code, _ in story) >= least, story


@pytest.mark.parametrize(
    ("method", "deaths", "forked"),
    [
        ("fedtgp", [(2, "aggregate")], True),
        *by_night(
            ("fedtgp", [(2, "aggregate"), (3, "checkpoint")], False),
            ("fedprotokd", [(1, "metrics"), (2, "checkpoint")], False),
        ),
    ],
)
def test_a_tree_of_processes_may_be_killed_too_and_goes_on_with_other_workers(
    method: str, deaths: list[tuple[int, str]], forked: bool, driver: Driver, whole: Any, tmp_path: Path
):
    """By night the tree has the process too that its workers come from, which takes seconds to start."""
    expected, _ = whole(method)
    write(tmp_path, method, 1)
    draw, story = random.Random(f"kill all of {method}"), []
    for workers, phase in deaths:
        engine = ["engine.name=processes", f"engine.workers={workers}"]
        how = {"phase": phase, "nth": 2, "delay": draw.uniform(0, 0.03), "linger": phase, "forked": forked}
        story.append({**how, "life": driver.live(tmp_path, *RUN, *engine, **how)})
        assert story[-1]["life"].code == -signal.SIGKILL, story
    assert driver.live(tmp_path).code == 0, story
    assert learned(tmp_path / "run") == learned(expected / "run"), story


def learned(path: Path) -> dict[str, object]:
    """All traces but for settings: the engine is one, and it may change."""
    return {name: found for name, found in traces(path).items() if name not in ("config.toml", "environment.json")}


# run --resume


def test_the_same_command_starts_a_run_goes_on_with_it_and_has_nothing_to_do(
    driver: Driver, whole: Any, tmp_path: Path
):
    expected, _ = whole("fedproto")
    write(tmp_path, "fedproto", 1)
    command = [*RUN[:-1], "--beside", "local"]
    assert driver.live(tmp_path, *command, phase="checkpoint", nth=2, delay=0.01).killed
    done = driver.live(tmp_path, *command)
    assert done.code == 0 and "fedproto  round 1/4" not in done.out and "local  round 1/4" in done.out
    found = traces(tmp_path / "run")
    summary = json.loads(str(found["summary.json"]))
    assert summary.pop("gain").keys() == {"local"}  # which the run alone does not have
    assert {**found, "summary.json": json.dumps(summary)} == traces(expected / "run")
    before = {file: file.stat().st_mtime_ns for file in tmp_path.glob("run*/**/*")}
    again = driver.live(tmp_path, *command)
    assert again.code == 0 and again.out.splitlines()[:2] == [
        "run has ended: there is nothing to continue.", "run-local has ended: there is nothing to continue.",
    ]  # fmt: skip
    assert again.out.splitlines()[2:] == done.out.splitlines()[-len(again.out.splitlines()) + 2 :]  # the same table
    assert before == {file: file.stat().st_mtime_ns for file in tmp_path.glob("run*/**/*")}


def test_what_is_in_the_directory_must_be_this_run(driver: Driver, tmp_path: Path):
    write(tmp_path, "fedproto", 1)
    assert driver.live(tmp_path, *RUN, "rounds=1").code == 0
    other = driver.live(tmp_path, *RUN, "rounds=1", "training.lr=0.5")
    assert other.code == 2 and "This is not the experiment of run: training.lr is 0.5, 0.01 there." in other.err
    which = driver.live(tmp_path, "run", "exp.toml", "--resume")
    assert which.code == 2 and which.err.endswith(
        "--resume does not say which run.  Name its directory: protea run exp.toml --out runs/NAME --resume\n"
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    mine = driver.live(tmp_path, "run", "exp.toml", "--out", "mine", "--resume")
    assert mine.code == 2 and "mine exists and is not empty" in mine.err


# A disk that is full, or that may not be written to


@pytest.mark.parametrize(
    ("limit", "file"),
    [
        (700, ""),  # config.toml: it has not begun
        *by_night((2_000, "run/partition.json"), (4_000, "run/metrics.jsonl")),
        (65_000, "run/checkpoints/000001/client-001.safetensors"),
    ],
)
def test_a_file_that_cannot_grow_is_named_and_nothing_is_lost(
    limit: int, file: str, driver: Driver, whole: Any, tmp_path: Path
):
    expected, _ = whole("fedtgp")
    write(tmp_path, "fedtgp", 1)
    life = driver.live(tmp_path, limit=limit)
    assert life.code == 2 and (not file or f": {file} cannot be written" in life.err), life
    goes_on(life, "File too large", driver, tmp_path)
    assert traces(tmp_path / "run") == traces(expected / "run")


def goes_on(life: Life, why: str, driver: Driver, folder: Path) -> None:
    """It said what is wrong and how to go on; what was complete is there; and it does go on."""
    kind, _, text = life.err.partition(": ")
    if kind == "ConfigError":  # it had not begun
        assert text == f"run cannot be made: {why}.  Choose another --out.\n"
        assert driver.live(folder).code == 0
        return
    what, hint = text.splitlines()
    assert (kind, what.rpartition(" cannot be written: ")[2]) == ("CheckpointError", f"{why}."), life
    assert what.startswith("run/") and hint == (
        "  Nothing that was complete is lost.  Put that right (free space, permissions), then: protea resume run"
    )
    assert driver.live(folder, "resume", "run").code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk_loses_nothing(driver: Driver, whole: Any, tmp_path: Path):
    expected, _ = whole("fedtgp")
    used = sum(file.stat().st_size for file in (expected / "run").rglob("*") if file.is_file())
    size = f"size={used // 2}"
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", tmp_path], capture_output=True, check=False
    ).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        write(tmp_path, "fedtgp", 1)
        life = driver.live(tmp_path)
        subprocess.run(["mount", "-o", f"remount,size={10 * used}", tmp_path], check=True)
        goes_on(life, "No space left on device", driver, tmp_path)
        assert traces(tmp_path / "run") == traces(expected / "run")
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_folder_that_may_not_be_written_to_is_named(driver: Driver, whole: Any, tmp_path: Path):
    expected, _ = whole("fedtgp")
    write(tmp_path, "fedtgp", 1)
    assert driver.live(tmp_path, phase="checkpoint", nth=2).killed
    for shut, named in (("run/checkpoints", "run/checkpoints/"), ("run", "run/metrics.jsonl")):
        (tmp_path / shut).chmod(0o500)
        life = driver.live(tmp_path, "resume", "run", humble=True)
        (tmp_path / shut).chmod(0o700)
        assert life.code == 2 and f": {named}" in life.err and "cannot be written: Permission denied." in life.err, life
    (tmp_path / "shut").mkdir(0o500)
    life = driver.live(tmp_path, "run", "exp.toml", "--out", "shut/run", humble=True)
    assert life.err == "ConfigError: shut/run cannot be made: Permission denied.  Choose another --out.\n"
    assert driver.live(tmp_path, humble=True).code == 0
    assert traces(tmp_path / "run") == traces(expected / "run")
