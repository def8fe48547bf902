"""What a round of each method costs, as a multiple of a round of Local with the same models, measured in turns.

    python benchmarks/methods.py [EXPERIMENT.toml] [rounds] [architecture] [changes ...]

Training and the server's work count, evaluation does not.  ``architecture`` is that of methods which need one for all.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

from measure import Table
from suited import suited

from protea import Experiment
from protea.config import registry
from protea.config.experiment import load_experiment
from protea.config.sections import Engine
from protea.methods.local import Local
from protea.runs.prepare import prepare
from protea.runs.simulation import federation, open_engine


def main(path: str = "examples/digits.toml", rounds: str = "4", architecture: str = "", *changes: str) -> None:
    base = load_experiment(Path(path), list(changes))
    base = replace(
        base,
        rounds=int(rounds),
        engine=Engine("inline"),
        evaluation=replace(base.evaluation, every=int(rounds), shared="never", local_prototypes=False),
    )
    table = Table(method=12, over_local=12, server=9)
    for name in registry.table("methods"):
        experiment = suited(base, registry.find("methods", name)(), architecture)
        table.add(name, *compared(experiment))
    table.keep("methods", {"experiment": path, "rounds": int(rounds), "changes": list(changes)})


def compared(experiment: Experiment) -> tuple[float, float]:
    """How often a round of Local fits into one of this experiment's, and the server's share in it."""
    factory = prepare(experiment)
    loops = []
    for each in (experiment, replace(experiment, method=Local())):
        loops.append(federation(each, factory, open_engine(each, factory)).run())
    seen: list[list[dict[str, float]]] = [[], []]
    for _ in range(experiment.rounds):
        for costs, loop in zip(seen, loops, strict=True):
            costs.append(next(loop).cost.seconds)
    later = [costs[1:] for costs in seen]  # the first round builds the clients
    own, alone = (median(cost["train"] + cost["server"] for cost in costs) for costs in later)
    return own / alone, median(cost["server"] for cost in later[0]) / own


if __name__ == "__main__":
    main(*sys.argv[1:])
