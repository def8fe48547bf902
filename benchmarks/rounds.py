"""Seconds per round of each method and what they are spent on, in one process and in many, measured in turns.

    python benchmarks/rounds.py [EXPERIMENT.toml] [rounds] [workers] [methods]

Training, evaluation and the server's work are as the record has them; overhead is all else that passes until the
round's record is there.  Shares are of a round in many processes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from measure import Table, in_turns, ratio
from suited import suited

from protea.config import registry
from protea.config.experiment import load_experiment
from protea.config.sections import Engine
from protea.federation.record import Record
from protea.runs.prepare import prepare
from protea.runs.simulation import federation, open_engine

PARTS = ("train", "evaluate", "server")


def main(path: str = "examples/digits.toml", rounds: str = "5", workers: str = "0", methods: str = "") -> None:
    base = replace(load_experiment(Path(path)), rounds=int(rounds))
    engines = {"inline": Engine("inline"), "processes": Engine("processes", int(workers))}
    table = Table(method=12, inline_s=10, processes_s=13, ratio=8, train=8, evaluate=10, server=8, overhead=10)
    for name in methods.split(",") if methods else registry.table("methods"):
        experiment = suited(base, registry.find("methods", name)())
        factory = prepare(experiment)
        opened = {kind: open_engine(replace(experiment, engine=each), factory) for kind, each in engines.items()}
        loops = {kind: federation(experiment, factory, engine).run() for kind, engine in opened.items()}
        costs: list[dict[str, float]] = []

        def many(loop: Iterator[Record] = loops["processes"], costs: list[dict[str, float]] = costs) -> None:
            costs.append(next(loop).cost.seconds)

        seconds = in_turns({"inline": lambda loop=loops["inline"]: next(loop), "processes": many}, experiment.rounds)
        for engine in opened.values():
            engine.close()
        inline, whole = (median(seconds[kind][1:]) for kind in engines)  # the first round builds the clients
        later = list(zip(costs, seconds["processes"], strict=True))[1:]
        shares = [median(cost.get(part, 0.0) / wall for cost, wall in later) for part in PARTS]
        overhead = median(1 - sum(cost.values()) / wall for cost, wall in later)
        table.add(name, inline, whole, ratio(seconds["inline"], seconds["processes"]), *shares, overhead)
    table.keep("rounds", {"experiment": path, "rounds": int(rounds), "workers": int(workers)})


if __name__ == "__main__":
    main(*sys.argv[1:])
