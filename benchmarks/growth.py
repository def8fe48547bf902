"""How a round grows with one setting while all others stay: batch size, dimension, classes.  For clients: scale.py.

    python benchmarks/growth.py [--axes batch,dim,classes] [--method fedproto] [--samples 2000] [--rounds 4]

All values of a setting are measured in turns, a round each; ``over first`` is against the smallest one.  Batch size
and dimension: Fashion-MNIST, htcnn8, 20 clients, batch 10, 512 dimensions.  Classes: points around the centres
of their classes, ten of each, a small network; 64 dimensions.  ``kB down`` is what a client is sent in a round.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from statistics import median

from measure import Table, in_turns, ratio
from scale import points
from target import setting

from protea import Experiment
from protea.config import registry
from protea.config.families import Models
from protea.config.sections import Data, Evaluation
from protea.data.partition.schemes import Iid
from protea.federation.record import Record
from protea.runs.prepare import prepare
from protea.runs.simulation import federation, open_engine

AXES = {
    "batch": (5, 10, 20, 50, 100),
    "dim": (64, 128, 256, 512, 1024),
    "classes": (10, 30, 100, 300, 1000),
}
SAMPLES = 10_000  # of points, whatever the number of classes


def experiment(axis: str, value: int, method: str, samples: int, rounds: int) -> Experiment:
    if axis == "classes":
        return Experiment(
            rounds=rounds, clients=20, device="cpu", method=registry.find("methods", method)(),
            data=Data(source=points(value, SAMPLES), partition=Iid()),
            models=Models(family="tiny_mlp", dim=64),
            evaluation=Evaluation(shared="never"),
        )  # fmt: skip
    found = setting(method, rounds=rounds, samples=samples, batch=value if axis == "batch" else 10)
    found = replace(found, data=replace(found.data, partition=Iid()))  # so that as many samples are trained on
    return replace(found, models=replace(found.models, dim=value)) if axis == "dim" else found


def grown(axis: str, method: str, samples: int, rounds: int, table: Table) -> None:
    records: dict[str, list[Record]] = {str(value): [] for value in AXES[axis]}
    with ExitStack() as stack:
        works = {}
        for value in AXES[axis]:
            made = experiment(axis, value, method, samples, rounds)
            factory = prepare(made)
            engine = stack.enter_context(closing(open_engine(made, factory)))
            run = federation(made, factory, engine).run()
            works[str(value)] = partial(lambda name, run: records[name].append(next(run)), str(value), run)
        taken = in_turns(works, rounds)
    first = taken[str(AXES[axis][0])]
    for name, each in taken.items():
        costs = [record.cost.seconds for record in records[name][1:]]
        server = median(cost["server"] / sum(cost.values()) for cost in costs)
        last = records[name][-1]
        down = last.bytes_down / len(last.participants) / 1e3
        table.add(axis, int(name), median(each[1:]), ratio(each, first), server, down)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", default=",".join(AXES))
    parser.add_argument("--method", default="fedproto")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    table = Table(setting=9, value=7, round_s=9, over_first=12, server=8, kB_down=9)
    for axis in options.axes.split(","):
        grown(axis, options.method, options.samples, options.rounds, table)
    table.keep("growth", vars(options))


if __name__ == "__main__":
    main()
