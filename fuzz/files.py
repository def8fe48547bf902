"""Spoilt files, fed to the code that reads them: bundles, tasks, keys, requests, records, checkpoints.

    python fuzz/files.py [--count 100000] [--seed 1] [--only task] [--failures fuzz/failures]

``--count`` cases of each kind.  What is real is made here, spoilt (see ``texts.py``), and goes the way of the real
thing.  A case is good if it is refused by the declared error, or accepted and well-formed; all else is a failure, as in
``payloads.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

from fuzz.payloads import BadError, Tally, Target, fuzz, say, summary  # noqa: E402
from fuzz.texts import spoil_archive, spoil_key, spoil_text  # noqa: E402
from protea import Run  # noqa: E402
from protea.config.experiment import load_experiment  # noqa: E402
from protea.core.errors import CheckpointError, ConfigError, DataError  # noqa: E402
from protea.core.files import checksum_of  # noqa: E402
from protea.data.partition.file import read_partition  # noqa: E402
from protea.network.coordinator.directory import CoordinatorDirectory  # noqa: E402
from protea.network.coordinator.ledger import LedgerEntry, add_entry, read_entries  # noqa: E402
from protea.network.task import LARGEST, Task, new_task, parse_task, task_to_toml  # noqa: E402
from protea.network.trust.bundles import read_bundle, read_invitation  # noqa: E402
from protea.network.trust.chain import check_chain  # noqa: E402
from protea.network.trust.ends import certificate_of  # noqa: E402
from protea.network.trust.keys import coordinator_key, public_of_site  # noqa: E402
from protea.network.trust.requests import parse_request, read_request, write_request  # noqa: E402
from protea.network.trust.signatures import SignedAnswer, SiteKey, site_public_key  # noqa: E402
from protea.runs import checkpoint  # noqa: E402
from protea.runs.reader import RunReader  # noqa: E402

TASKS: list[dict[str, Any]] = [
    {"method": "fedproto"},
    {"method": {"name": "fedtgp"}, "filters": ["clip", {"name": "noise", "noise": 2.0}], "protect": True},
    {"method": {"name": "fedgen"}, "training": {"lr": 0.05}, "limits": {"upload": "1MB"}, "evaluation": {"every": 5}},
]

EXPERIMENT = """
clients = 3
rounds = 2
[data]
source = "digits"
[models]
family = "tiny5"
[checkpoint]
every = 1
"""


def targets(folder: Path) -> Iterator[Target]:
    """All kinds of files that others may hand to a party, or that may be damaged, each with real ones."""
    base = CoordinatorDirectory.create(folder / "base", task(TASKS[0]), "localhost", 8443, tls=True)
    given, home = base.invite("north"), folder / "site"
    request = write_request(home, "south")
    own = base.answer(read_request(request))
    base.rotate()
    keys = base.path / "keys"
    yield Target(
        "bundle", [p.read_bytes() for p in (given, own)], via(folder / "b.protea", bundle), ConfigError, spoil_archive
    )
    yield Target("task", [task_to_toml(task(table)).encode() for table in TASKS], read_task, ConfigError, spoil_text)
    private = [read_bundle(given)["site.key"], (home / "site.key").read_bytes()]
    yield Target("site-key", private, site_key, ConfigError, spoil_key)
    public = [site.key.encode() for site in base.guests.sites if site.key] + [base.signer.public()]
    yield Target("public-key", public, public_key, ConfigError, spoil_key)
    certificates = [(keys / name).read_bytes() for name in ("ca.crt", "server.crt")]
    yield Target("certificate", certificates, lambda message: void(certificate_of(message)), ConfigError, spoil_key)
    yield Target("invitation", [read_bundle(given)["bundle.json"]], invitation, ConfigError, spoil_text)
    yield Target("request", [request.read_bytes()], a_request, ConfigError, spoil_text)
    yield Target("chain", [(keys / "coordinator.chain").read_bytes()], check_chain, ConfigError, spoil_text)
    yield Target(
        "ledger",
        [entry(folder)],
        via(folder / "l.jsonl", lambda path: void(list(read_entries(path)))),
        ConfigError,
        spoil_text,
    )
    yield from of_run(folder)


def of_run(folder: Path) -> Iterator[Target]:
    """Files of a run of two rounds."""
    path = folder / "run"
    settings = folder / "run.toml"
    settings.write_text(EXPERIMENT)
    Run(load_experiment(settings), path).finish()
    partition = path / "partition.json"
    samples = json.loads(partition.read_text())["samples"]
    yield Target(
        "partition",
        [partition.read_bytes()],
        via(folder / "partition.json", lambda place: rows(place, samples)),
        DataError,
        spoil_text,
    )
    state = path / "checkpoints" / "000002" / "state.json"
    yield Target("state", [state.read_bytes()], via(state, resealed), CheckpointError, spoil_text)
    metrics = path / "metrics.jsonl"
    yield Target("metrics", [metrics.read_bytes()], via(metrics, lambda place: a_run(path)), ConfigError, spoil_text)


def task(table: dict[str, Any]) -> Task:
    return new_task({"classes": ["cat", "dog", "hen"], "models": {"dim": 8}, "shape": [4], **table}, [])


def via(path: Path, read: Callable[[Path], None]) -> Callable[[bytes], None]:
    """Write a message to a file, which is then read."""

    def feed(message: bytes) -> None:
        path.write_bytes(message)
        read(path)

    return feed


def void(found: object) -> None:
    """What was read is not looked at further."""


def bundle(path: Path) -> None:
    read_bundle(path)


def read_task(message: bytes) -> None:
    try:
        text = message.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(str(error)) from error  # as bundles do
    found = parse_task(text, "task.toml")
    if found.rounds > LARGEST["rounds"] or not all(name.isprintable() for name in found.classes):
        raise BadError(f"{found.rounds} rounds of {found.classes}")
    if parse_task(task_to_toml(found), "again") != found:
        raise BadError("it is not read as it is written")


def site_key(message: bytes) -> None:
    public_of_site(message)
    key = SiteKey(message)
    site_public_key(key.public)


def public_key(message: bytes) -> None:
    try:
        site_public_key(message)
    except ConfigError:
        coordinator_key(message)


def invitation(message: bytes) -> None:
    found = read_invitation(message, "bundle")
    if not (found.site.isprintable() and found.address.isprintable()):
        raise BadError(f"{found.site!r} at {found.address!r}")


def a_request(message: bytes) -> None:
    found = parse_request(message, "north.request")
    if not found.site.isprintable():
        raise BadError(f"{found.site!r}")


def entry(folder: Path) -> bytes:
    """Two lines of a ledger."""
    path = folder / "ledger.jsonl"
    for round in (1, 2):
        answer = SignedAnswer.of("task", "north", "train", round, b"answer")
        add_entry(path, LedgerEntry.of(answer, 0, b"answer", bytes(96), "key"))
    return path.read_bytes()


def rows(path: Path, samples: int) -> None:
    found = read_partition(path, samples)
    if any(row >= samples for one in found.clients for row in (*one.train, *one.validation, *one.test)):
        raise BadError("a row beyond the last")


def resealed(path: Path) -> None:
    """A checkpoint's state, with a checksum that is right again where that can be."""
    try:
        value = json.loads(path.read_bytes())
        value.pop("sum", None)
        path.write_text(json.dumps({**value, "sum": checksum_of(value)}))
    except (ValueError, AttributeError, TypeError, RecursionError):
        pass
    checkpoint.verify(path.parent)
    checkpoint.metrics_size(path.parent)


def a_run(path: Path) -> None:
    found = RunReader.read(path)
    for record in found.rounds:
        asdict(record)
        [each.accuracy for each in record.clients if all(part.samples for part in each.parts.values())]


def main() -> int:
    parser = argparse.ArgumentParser(description="Feed spoilt files to the code that reads them.")
    parser.add_argument("--count", type=int, default=100_000, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", help="one kind")
    parser.add_argument(
        "--failures", type=Path, default=ROOT / "fuzz" / "failures", help="where failing cases are kept"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a disk would take most of the time
    failed = 0
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        for target in targets(Path(folder)):
            if options.only in (None, target.name):
                started = time.perf_counter()
                numbers = range(options.first, options.first + options.count)
                found: Tally = fuzz([target], numbers, options.seed, options.failures)
                say(summary(found, time.perf_counter() - started))
                failed += len(found.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
