"""Spoilt payloads and checkpoint files, fed to the code that must not believe them.

    python fuzz/payloads.py [--count 1000000] [--seed 1] [--first 0] [--failures fuzz/failures]
    python fuzz/payloads.py --replay fuzz/failures/fedproto-up-4711.bin

Every method plays two rounds on tiny data.  What travelled and what was saved is spoilt (see
``mutate.py``) and goes the way of the real thing.  A case is good if it is refused by the declared
error, or accepted and well-formed.  Anything else is a failure: another error, a value that must
not pass, more than ``SECONDS``, or more memory than ``BOUND`` in the whole run.  Case ``n`` of a
seed is always the same.
"""

from __future__ import annotations

import argparse
import faulthandler
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

import toy  # noqa: E402
from every import in_a_plain_clone  # noqa: E402

from fuzz.mutate import spoil  # noqa: E402
from protea import Method  # noqa: E402
from protea.clients.plan import WorkerPlan  # noqa: E402
from protea.clients.state_files import load_client, load_server, save_client, save_server  # noqa: E402
from protea.config import registry  # noqa: E402
from protea.core.errors import CheckpointError, PayloadError  # noqa: E402
from protea.core.memory import Memory  # noqa: E402
from protea.core.message import DTYPES, Named, from_bytes, to_bytes  # noqa: E402
from protea.core.payload import pack, refuse_large, unpack  # noqa: E402
from protea.core.server import Server  # noqa: E402
from protea.engines.inline import Inline  # noqa: E402
from protea.evaluation.server_side import Judged  # noqa: E402
from protea.federation.jobs import Job, Reply, Watch, ignore  # noqa: E402
from protea.federation.loop import Federation  # noqa: E402
from protea.federation.plan import FederationPlan  # noqa: E402

LIMIT = 1 << 22  # bytes of a message
NORM = 1e6  # of a row
SECONDS = 10.0  # of this process for one case
WAITED = 12  # times as many may pass on a clock: others may have the machine meanwhile
BOUND = 1 << 30  # bytes that a run may need more than it had at its start
BLOCK = 10_000  # cases between two lines of progress


class BadError(AssertionError):
    """Something was accepted that must not pass."""


class Hang(BaseException):
    """A case took too long; no code that is tested catches this."""


@dataclass(frozen=True)
class Target:
    """One way into the code.  ``feed`` returns if a message is accepted, and raises ``declared`` if it is refused."""

    name: str
    seeds: Sequence[bytes]
    feed: Callable[[bytes], None]
    declared: type[Exception] = PayloadError
    spoil: Callable[[Random, bytes, Sequence[bytes]], bytes] = spoil


@dataclass
class Tally:
    """What came of the cases."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)  # by target and outcome
    slowest: tuple[float, str] = (0.0, "")
    failures: list[str] = field(default_factory=list)


def methods() -> dict[str, Method[Any, Any]]:
    """Every method that is built in, and the one variant that sends something else."""
    found = {name: in_a_plain_clone(registry.find("methods", name)()) for name in registry.table("methods")}
    fedproc = registry.find("methods", "fedproc")
    return {**found, "fedproc@original": fedproc(**fedproc.variants["original"])}


class Recording(Inline):
    """Keeps all that travels."""

    def __init__(self, plan: WorkerPlan) -> None:
        super().__init__(plan)
        self.seen: dict[str, list[Named]] = {"up": [], "down": [], "evaluate": []}

    def map(self, jobs: Sequence[Job], watch: Watch = ignore) -> list[Reply]:
        replies = super().map(jobs, watch)
        if jobs[0].task == "train":
            self.seen["up"] += [reply.up for reply in replies]
            self.seen["down"] += [job.down for job in jobs]
        elif jobs[0].task == "evaluate":
            self.seen["evaluate"] += [reply.up for reply in replies]
        return replies


def targets(folder: Path) -> Iterator[Target]:
    """What every method sends up and down and leaves in files, after two real rounds."""
    for name, method in methods().items():
        engine = Recording(
            toy.plan(method, partial(toy.build, same_architecture=method.needs.same_architecture), seed=7)
        )
        server = toy.server()
        list(Federation(method, engine, server, FederationPlan(clients=toy.CLIENTS, rounds=2)).run())
        messages = {
            way: [to_bytes(named, client=n, samples=9, metrics={"loss": 0.5}) for n, named in enumerate(all)]
            for way, all in engine.seen.items()
        }
        yield Target(f"{name}-up", messages["up"], partial(arrive, method, server, engine.seen["up"]))
        if any(engine.seen["down"]):
            yield Target(f"{name}-down", messages["down"], partial(receive, method))
        if name == "fedproto":  # the same for all
            yield Target(f"{name}-evaluate", messages["evaluate"], judge)
        place = folder / name
        place.mkdir()
        save_server(server, place)
        yield from_file(
            f"{name}-server", place / "server.safetensors", server.memory, partial(load_server, server, place)
        )
        client = engine.worker.client(1)  # whose model has BatchNorm
        save_client(client, place)
        path = place / "client-001.safetensors"
        yield from_file(f"{name}-client", path, client.memory, partial(load_client, client, place))


def arrive(method: Method[Any, Any], server: Server, honest: Sequence[Named], message: bytes) -> None:
    """A client's upload, as the server takes it."""
    named, _ = from_bytes(message, LIMIT)
    refuse_large(named, NORM)
    payload = unpack(method.up, named)
    if payload is not None:
        payload.check(toy.CLASSES, toy.DIM)
    elif method.up is not type(None):
        raise PayloadError("nothing arrived.")
    method.check(server, payload)

    found = pack(payload)
    if found.keys() != honest[0].keys():
        raise BadError(f"names {sorted(found)}")
    for name, tensor in found.items():
        like = honest[0][name]
        if name.endswith("vectors"):
            rows = int((found[name.replace("vectors", "counts")] > 0).sum())
            like = like.new_empty(rows, like.shape[1])
        elif (classes := ".".join([*name.split(".")[:-1], "classes"])) in found:  # clusters, of any number
            like = like.new_empty(len(found[classes]))
        if tensor.dtype != like.dtype or tensor.shape != like.shape:
            raise BadError(f"{name} of {tensor.dtype}, {tuple(tensor.shape)}")
        if not torch.isfinite(tensor).all() or (tensor.is_floating_point() and (tensor.double().abs() > NORM).any()):
            raise BadError(f"values of {name}")
        if name.endswith("counts") and ((tensor < 0).any() or (tensor != tensor.long()).any()):
            raise BadError(f"counts {tensor.tolist()}")


def receive(method: Method[Any, Any], message: bytes) -> None:
    """A broadcast, as a client takes it."""
    payload = unpack(method.down, from_bytes(message, LIMIT)[0])
    if payload is None:
        return
    payload.check(toy.CLASSES, toy.DIM)
    for name, tensor in pack(payload).items():
        if tensor.dtype not in DTYPES or not torch.isfinite(tensor).all():
            raise BadError(f"values of {name}")


def judge(message: bytes) -> None:
    """What a client found about itself."""
    named, _ = from_bytes(message, LIMIT)
    Judged(toy.CLASSES, toy.DIM).read(named)


def from_file(name: str, path: Path, memory: Memory, load: Callable[[], None]) -> Target:
    seed, before = path.read_bytes(), dict(memory.data)
    modules = {key: shapes(value) for key, value in before.items() if isinstance(value, torch.nn.Module)}

    def feed(message: bytes) -> None:
        path.write_bytes(message)
        try:
            load()
            memory.flat()  # can be saved again
            for key, value in memory.items():
                if key in modules and isinstance(value, torch.nn.Module) and shapes(value) != modules[key]:
                    raise BadError(f"module {key}")
        finally:
            memory.data = dict(before)

    return Target(name, [seed], feed, CheckpointError)


def shapes(module: torch.nn.Module) -> dict[str, Any]:
    return {name: (t.shape, t.dtype) for name, t in module.state_dict().items()}


def case(all: Sequence[Target], seed: int, number: int) -> tuple[Target, bytes]:
    """Case ``number`` of a seed: which way, and the spoilt message."""
    rng = Random(f"{seed}/{number}")
    target = rng.choice(all)
    return target, target.spoil(rng, rng.choice(target.seeds), rng.choice(all).seeds)


def judged(target: Target, message: bytes) -> str:
    """``accepted``, ``refused``, or else what is wrong."""
    try:
        with at_most(SECONDS):
            target.feed(message)
    except target.declared:
        return "refused"
    except Hang:
        return "hang"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise :class:`Hang` within if this process has worked for so long, or if it waits for much longer."""
    worked, began = time.process_time(), time.monotonic()

    def ring(number: int, frame: FrameType | None) -> None:
        if time.process_time() > worked + seconds or time.monotonic() > began + WAITED * seconds:
            raise Hang
        signal.setitimer(signal.ITIMER_REAL, seconds)

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def fuzz(
    all: Sequence[Target],
    numbers: range,
    seed: int,
    failures: Path,
    progress: Callable[[int, Tally], None] = lambda number, tally: None,
) -> Tally:
    """Try the cases; what fails is written to ``failures`` and can be replayed."""
    tally, start = Tally(), peak()
    for number in numbers:
        target, message = case(all, seed, number)
        started = time.perf_counter()
        outcome = judged(target, message)
        seconds = time.perf_counter() - started
        name = f"{target.name}-{number}"
        tally.slowest = max(tally.slowest, (seconds, name))
        if outcome == "accepted" and message in target.seeds:
            outcome = "unchanged"
        if outcome in ("accepted", "refused", "unchanged") and peak() - start > BOUND:
            outcome, start = f"memory: {peak() - start} bytes more than at the start", peak()
        if outcome not in ("accepted", "refused", "unchanged"):
            failures.mkdir(parents=True, exist_ok=True)
            (failures / f"{name}.bin").write_bytes(message)
            tally.failures.append(f"{name}: {outcome}")
            outcome = "FAILED"
        tally.outcomes[target.name, outcome] += 1
        if (number + 1) % BLOCK == 0:
            progress(number + 1, tally)
    return tally


def peak() -> int:
    """Most bytes that this process ever had."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def summary(tally: Tally, seconds: float) -> str:
    names = ("accepted", "refused", "unchanged", "FAILED")
    rows: dict[str, Counter[str]] = {}
    for (target, outcome), count in tally.outcomes.items():
        rows.setdefault(target, Counter())[outcome] += count
    total = sum(rows.values(), Counter())
    lines = [f"{'':28}" + "".join(f"{name:>11}" for name in names)]
    for target, counts in [*sorted(rows.items()), ("all", total)]:
        lines.append(f"{target:28}" + "".join(f"{counts[name]:>11,}" for name in names))
    lines.append(
        f"{total.total():,} cases in {seconds:.0f} s; the slowest, {tally.slowest[1]}, took {tally.slowest[0]:.2f} s"
    )
    return "\n".join(lines + tally.failures[:50])


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Feed spoilt payloads and checkpoint files to the code that reads them."
    )
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument(
        "--failures", type=Path, default=ROOT / "fuzz" / "failures", help="where failing cases are kept"
    )
    parser.add_argument("--replay", type=Path, help="a failing case")
    options = parser.parse_args()
    torch.set_num_threads(1)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a disk would take most of the time
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        all = list(targets(Path(folder)))
        if options.replay:
            name = options.replay.stem.rpartition("-")[0]
            target = next(target for target in all if target.name == name)
            target.feed(options.replay.read_bytes())
            say("accepted")
            return 0
        started, first = time.perf_counter(), peak()
        faulthandler.enable()  # a crash of native code says where, and its block of cases is known

        def progress(number: int, tally: Tally) -> None:
            faulthandler.dump_traceback_later(BLOCK * SECONDS / 10, exit=True)  # native code hears no alarm
            more = (peak() - first) >> 20
            say(f"{number:>12,}  {len(tally.failures)} failures  {time.perf_counter() - started:.0f} s  {more} MB more")

        progress(options.first, Tally())
        tally = fuzz(all, range(options.first, options.first + options.count), options.seed, options.failures, progress)
        faulthandler.cancel_dump_traceback_later()
        say(summary(tally, time.perf_counter() - started))
        say(f"at its peak {(peak() - first) >> 20} MB more than at the start; {BOUND >> 20} are the bound")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
