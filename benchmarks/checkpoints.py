"""What a checkpoint costs, beside the round of training before it.

    python benchmarks/checkpoints.py [rounds] [engine]

Every round is followed by a checkpoint, so that both are measured in turns: their ratio depends on the load of the
machine much less than the seconds do.  With ``checkpoint.every = n`` the cost per round is that ratio by n.

Measured on two busy cores, ten clients, digits: in one process 6 % of a round (tiny5, 1.6 MB), 11 % (resnet4, 3.2 MB),
10 % (resnet8, 49 MB), 12 % (resnet18, 447 MB); in two processes 5, 4, 7 and 14 %.  So with the default, every 10
rounds, about 1 %.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median

from measure import Table

from protea.config.experiment import Experiment, load_experiment
from protea.config.sections import Engine
from protea.runs import checkpoint
from protea.runs.prepare import prepare
from protea.runs.simulation import federation, open_engine

FAMILIES = ("tiny5", "resnet4", "resnet8", "resnet18")  # smallest first
EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.toml"


def main(rounds: str = "5", engine: str = "inline") -> None:
    base = replace(load_experiment(EXAMPLE, ["training.lr=0.001"]), rounds=int(rounds), engine=Engine(engine))
    table = Table(models=10, MB=8, round_s=10, checkpoint_s=14, ratio=9)
    for family in FAMILIES:
        experiment = replace(base, models=replace(base.models, family=family))
        size, trained, saved = measure(experiment)
        table.add(family, size / 1e6, trained, saved, saved / trained)
    table.keep("checkpoints", {"rounds": base.rounds, "engine": engine})


def measure(experiment: Experiment) -> tuple[int, float, float]:
    """Bytes of a checkpoint; median seconds of a round and of writing one."""
    factory, trained, saved = prepare(experiment), list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder, closing(open_engine(experiment, factory)) as engine:
        loop = federation(experiment, factory, engine)
        for record in loop.run():
            trained.append(sum(record.cost.seconds.values()))
            started = time.perf_counter()
            path = checkpoint.save(Path(folder) / "checkpoints", loop, experiment.checkpoint.keep)
            saved.append(time.perf_counter() - started)
        size = sum(file.stat().st_size for file in path.iterdir())
    return size, median(trained[1:]), median(saved[1:])  # the first round builds the clients


if __name__ == "__main__":
    main(*sys.argv[1:])
