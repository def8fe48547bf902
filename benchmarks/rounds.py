"""Seconds per round of each method, in one process and in many, measured in turns.

    python benchmarks/rounds.py [EXPERIMENT.toml] [rounds] [workers]

Absolute times depend on the machine and its load; the ratio of two things measured in turns much less.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

from suited import suited

from protea import config, plugins
from protea.engines import EngineSettings
from protea.experiment import federation, open_engine, prepare


def main(path: str = "examples/digits.toml", rounds: str = "5", workers: str = "0") -> None:
    base = replace(config.load(Path(path)), rounds=int(rounds))
    engines = {"inline": EngineSettings("inline"), "processes": EngineSettings("processes", int(workers))}
    print(f"{'method':<12}{'inline s':>10}{'processes s':>13}{'ratio':>8}   train / server / evaluate of processes")
    for name in plugins.table("methods"):
        experiment = suited(base, plugins.find("methods", name)())
        recipe = prepare(experiment)
        opened = {kind: open_engine(replace(experiment, engine=each), recipe) for kind, each in engines.items()}
        loops = {kind: federation(experiment, recipe, engine).run() for kind, engine in opened.items()}
        seen: dict[str, list[dict[str, float]]] = {kind: [] for kind in engines}
        for _ in range(experiment.rounds):
            for kind, loop in loops.items():
                seen[kind].append(next(loop).cost.seconds)
        for engine in opened.values():
            engine.close()
        later = {kind: costs[1:] for kind, costs in seen.items()}  # the first round builds the clients
        inline, many = (median(sum(cost.values()) for cost in later[kind]) for kind in engines)
        parts = [median(cost[part] for cost in later["processes"]) / many for part in ("train", "server", "evaluate")]
        shares = " / ".join(f"{100 * part:.0f} %" for part in parts)
        print(f"{name:<12}{inline:>10.2f}{many:>13.2f}{inline / many:>8.2f}   {shares}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
