"""Memory and time with many clients, with and without a limit on memory.

    python benchmarks/clients.py [clients] [limit] [EXPERIMENT.toml] [A.B=C ...]

Runs two rounds with all clients twice, each in a process of its own: without a limit, then with ``engine.memory``.
Says what each took, and whether both gave the same records.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from measure import Table

from protea import Run
from protea.config.experiment import load_experiment


def run(path: str, changes: list[str]) -> None:
    """One run, whose records go to standard output."""
    for record in Run(load_experiment(Path(path), changes)):
        print(json.dumps(asdict(record)), flush=True)


def main(clients: str = "1000", limit: str = "3GB", path: str = "examples/fashion.toml", *changes: str) -> None:
    common = [
        f"clients={clients}", "rounds=2", "data.partition.kind=iid", f"data.samples={20 * int(clients)}",
        "evaluation.every=2", "evaluation.shared=never", *changes,
    ]  # fmt: skip
    found = {}
    table = Table(clients=9, limit=10, first_s=9, second_s=10, peak_GB=9)
    for name, more in (("no limit", []), (limit, [f"engine.memory={limit}"])):
        call = [sys.executable, __file__, "run", path, *common, *more]
        out = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=True).stdout
        records = [json.loads(line) for line in out.splitlines()]
        costs = [record.pop("cost") for record in records]
        found[name] = records
        took = [sum(cost["seconds"].values()) for cost in costs]
        table.add(int(clients), name, *took, costs[-1]["memory"] / 1e9)
    print("same records" if found["no limit"] == found[limit] else "DIFFERENT records")
    table.keep("clients", {"experiment": path, "changes": list(changes)})


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(sys.argv[2], sys.argv[3:])
    else:
        main(*sys.argv[1:])
