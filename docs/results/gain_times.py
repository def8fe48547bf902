"""What a round of each method of gain.md costs, as a multiple of a round of the best Local:

    python docs/results/gain_times.py digits cifar10     # in the folder of the runs; adds to gain_times.csv
    python docs/results/gain.py page

Processor seconds of this process, on one thread, of clients and server together; nothing is evaluated.  Both play their
rounds in turns, so what else a machine does is in both.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from gain import HERE, OURS, Runs, lines

from protea import Experiment
from protea.config.experiment import load_experiment
from protea.core.files import write_text
from protea.federation.record import Record
from protea.runs.prepare import prepare
from protea.runs.simulation import federation, open_engine

CSV = HERE / "gain_times.csv"
EXAMPLES = HERE.parents[1] / "examples" / "gain"
METHODS = (OURS, "fedpagr", "fedpcl", "fedproto", "fedsa", "fedtgp", "protonorm")
ROUNDS = 5  # that are measured, after a first one that builds the clients


def times() -> dict[tuple[str, str], str]:
    """Read what was measured: multiples by data and method."""
    if not CSV.exists():
        return {}
    with CSV.open(encoding="utf-8", newline="") as file:
        return {(line["data"], line["method"]): line["times"] for line in csv.DictReader(file)}


def measured(data: str, method: str, local: str) -> float:
    """Play a method and Local in turns; return the median over rounds of how many rounds of Local one takes."""
    loops = [loop_of(data, name) for name in (local, method)]
    seconds: list[list[float]] = []
    for _ in range(1 + ROUNDS):
        seconds.append([])
        for loop in loops:
            started = time.process_time()
            next(loop)
            seconds[-1].append(time.process_time() - started)
    return median(ours / theirs for theirs, ours in seconds[1:])


def loop_of(data: str, method: str) -> Iterator[Record]:
    """Begin a run that has more rounds than are played: clients are evaluated in its last one only."""
    experiment: Experiment = load_experiment(EXAMPLES / f"{data}.toml", [f"method.name={method}", "seed=1"])
    experiment = replace(experiment, rounds=2 + ROUNDS)
    factory = prepare(experiment)
    return federation(experiment, factory, open_engine(experiment, factory)).run()


def main(names: list[str]) -> None:
    """Measure data sets, and write what is known of all."""
    runs, found = Runs(lines()), times()
    for data in names:
        for method in METHODS:
            found[data, method] = f"{measured(data, method, runs.local(data)):.2f}"
            rows = [f"{at},{name},{value}" for (at, name), value in sorted(found.items())]
            write_text(CSV, "\n".join(["data,method,times", *rows]) + "\n")


if __name__ == "__main__":
    if not Path("features").is_dir() and set(sys.argv[1:]) & {"mtsamples", "ohsumed", "banking77"}:
        raise SystemExit("features/ is not here.  Make it: python examples/gain/embed.py DATA --to features")
    main(sys.argv[1:])
