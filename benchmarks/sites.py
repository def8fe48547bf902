"""Many tiny sites and one coordinator on this machine: seconds of a round, and memory, by the number of sites.

    python benchmarks/sites.py [12,50,100] [rounds]

The coordinator is `protea federation serve`, with TLS and its front door.  Each site is a real one, with a directory,
a key and a model of its own; its client process is forked from one that has torch in place, since a hundred that
import it would measure this machine's memory.  What a site needs that is started as `protea site join` is printed
first.  Training takes some milliseconds, so a round is what messages cost, on cores that all parties share: CPU seconds
say who needs them.  Memory is the proportional share (PSS) of /proc, so that pages of several processes count once
(Linux).  The newest numbers are drawn by `python benchmarks/plots.py sites`.
"""

from __future__ import annotations

import gc
import json
import multiprocessing as mp
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median

import psutil
import torch
from measure import Table
from network import PROTEA, done, round_to, run, start, tree, until

from protea.engines.flower.programs import free_port
from protea.network.site.process import prepared
from protea.network.trust.bundles import open_bundle

CODE = """
import numpy as np
from torch import nn


def model():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def data():
    draws = np.random.default_rng({seed})
    y = draws.integers(0, 2, 60)
    return (draws.normal(size=(60, 8)) + y[:, None]).astype("float32"), y
"""


def make(
    work: Path, count: int, rounds: int, quorum: int | None = None, patience: int = 600
) -> tuple[Path, list[Path]]:
    """Make a coordinator's directory and those of its sites; without a quorum a round waits for all."""
    directory, port = work / "federation", free_port()
    names = [f"site{k:03d}" for k in range(count)]
    sizes = ["--dim", 8, "--rounds", rounds, "--quorum", quorum or count, "--tls", "localhost", "--port", port]
    extra = ["--set", "training.epochs=1", "--set", f"patience={patience}"]
    run(*PROTEA, "federation", "init", directory, "--classes", "no,yes", "--sites", ",".join(names), *sizes, *extra)
    sites = [work / name for name in names]
    for k, site in enumerate(sites):
        site.mkdir()
        (site / "site.py").write_text(CODE.format(seed=k))
        (site / "site.toml").write_text('device = "cpu"\n')
        (site / "policy.toml").write_text('report = "accuracy"\n')
        open_bundle(directory / "bundles" / f"{site.name}.protea", site / "bundle")
    return directory, sites


def be_site(folder: Path) -> None:
    """Be the client process of a site, to the end of its federation."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with (folder / "client.log").open("wb") as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
    service, node = prepared(folder)
    service.worker.store.tidy()
    node.attend(service.handle, service.site.ended.exists)


@contextmanager
def playing(
    count: int, rounds: int, quorum: int | None = None, absent: int = 0
) -> Iterator[tuple[subprocess.Popen[bytes], list[BaseProcess], Path]]:
    """Begin a federation of so many sites, and end it: the coordinator, the sites, and the file of records.

    ``absent`` of the sites are invited and do not come.
    """
    work, parties, sites = Path(tempfile.mkdtemp()), [], list[BaseProcess]()
    forked = mp.get_context("fork")
    try:
        directory, folders = make(work, count, rounds, quorum, 5 if absent else 600)
        server = start(work, parties, "server", "federation", "serve", directory, "--listen", "127.0.0.1")
        sites += [forked.Process(target=be_site, args=(folder,), daemon=True) for folder in folders[: count - absent]]
        for site in sites:
            site.start()
        yield server, sites, directory / "run" / "metrics.jsonl"
    finally:
        for site in sites:
            site.kill()
        for party in parties:
            party.terminate()
            party.wait()
        shutil.rmtree(work)


def measure(count: int, rounds: int, table: Table) -> None:
    """Play a federation of so many sites, and add a row to the table."""
    with playing(count, rounds) as (server, sites, metrics):
        until(lambda: done(metrics) >= 1 or server.poll() is not None, 600)
        before, began = busy(server.pid, sites), time.monotonic()
        until(lambda: done(metrics) >= rounds - 1 or server.poll() is not None, 1800)
        took, after = time.monotonic() - began, busy(server.pid, sites)
        pages = {name: share(ids) for name, ids in processes(server.pid, sites).items()}
        server.wait(1800)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        seconds = [sum(line["cost"]["seconds"].values()) for line in lines if line["kind"] == "round"][1:]
        failed = sum(len(line["failures"]) for line in lines if line["kind"] == "round")
        cpu = {name: (after[name] - before[name]) / (rounds - 2) for name in before}
        table.add(
            count,
            round_to(median(seconds)),
            round_to(took / (rounds - 2)),
            *(round_to(cpu[name]) for name in ("coordinator", "superlink", "sites")),
            *(round_to(pages[name]) for name in ("coordinator", "superlink")),
            round_to(pages["sites"] / count),
            failed,
            round_to(os.getloadavg()[0]),
        )


def processes(server: int, sites: Sequence[BaseProcess]) -> dict[str, list[int]]:
    """The processes of each party, by id."""
    below = [child.pid for child in psutil.Process(server).children(recursive=True)]
    return {"coordinator": [server], "superlink": below, "sites": [site.pid for site in sites if site.pid is not None]}


def busy(server: int, sites: Sequence[BaseProcess]) -> dict[str, float]:
    """CPU seconds of each party so far."""
    times = {name: [psutil.Process(each).cpu_times() for each in ids] for name, ids in processes(server, sites).items()}
    return {name: sum(each.user + each.system for each in all_of) for name, all_of in times.items()}


def share(ids: Sequence[int]) -> float:
    """Megabytes of these processes; a page that several have counts once."""
    return sum(psutil.Process(each).memory_full_info().pss for each in ids) / 1e6


def alone() -> None:
    """Print what a site has that is started as a hospital's is: its launcher, and its client process."""
    work, parties = Path(tempfile.mkdtemp()), []
    try:
        make(work, 1, 2)
        name = "site000"
        party = start(work, parties, name, "site", "join", "--dir", work / name)
        until(lambda: any("import serve" in " ".join(c.cmdline()) for c in psutil.Process(party.pid).children()))
        time.sleep(8)  # it imports torch, and tries to connect
        print(f"a site by itself, resident MB: {tree(party.pid)}")
        maps = Path(f"/proc/{party.pid}/maps").read_text()
        print(f"its launcher has torch: {'libtorch' in maps}")
    finally:
        for party in parties:
            party.terminate()
            party.wait()
        shutil.rmtree(work)


def main(counts: str = "12,50,100", rounds: str = "8") -> None:
    alone()
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()  # imports what training needs, once for all
    gc.collect()
    gc.freeze()  # so that the pages of what is there stay shared
    table = Table(
        sites=7,
        round_s=9,
        wall_s=9,
        coordinator_cpu_s=18,
        superlink_cpu_s=17,
        sites_cpu_s=13,
        coordinator_mb=15,
        superlink_mb=13,
        site_mb=9,
        failed=8,
        load=6,
    )
    for count in counts.split(","):
        measure(int(count), int(rounds), table)
    table.keep("sites", {"rounds": int(rounds)})


if __name__ == "__main__":
    main(*sys.argv[1:])
