"""Many clients, and many classes: time and memory.

    python benchmarks/scale.py [--clients 20,100,500,1000] [--samples 10000] [--rounds 3] [--memory 4GB]
                               [--many 100000] [--classes 1000]

1. Rounds of 20 clients and of more, in turns, on the same Fashion-MNIST images dealt out evenly (htcnn8, batch 10): how
   much longer they take, and the most memory that the server and all workers ever had.  With ``--memory`` a second row
   has that ``engine.memory``.  Each pair is in a process of its own, since a peak never goes down.
2. Milliseconds to choose 10 of ``--many`` clients, and a round of such a federation in which 10 take part.
3. Rounds with ``--classes`` classes, from training to the record, against rounds with 10 on as many samples.

2 and 3 have points around the centres of their classes for data, and small networks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from measure import Table, in_turns, ratio, seconds
from target import setting

from protea import Experiment, Server
from protea.config import registry
from protea.config.families import Models
from protea.config.sections import Data, Engine, Evaluation
from protea.core.rng import Streams
from protea.data.partition.schemes import Iid
from protea.data.sources.arrays import Arrays
from protea.federation.sampling import Uniform
from protea.runs.prepare import prepare
from protea.runs.simulation import federation, open_engine

FEW, CHOSEN = 20, 10


def of_clients(clients: int, samples: int, rounds: int, memory: str | None) -> Experiment:
    experiment = setting("fedproto", rounds=rounds, samples=samples, clients=clients)
    data = replace(experiment.data, partition=Iid())
    return replace(experiment, data=data, engine=Engine(memory=memory))


def pair(clients: int, samples: int, rounds: int, memory: str | None) -> dict[str, float]:
    """Few clients and many in turns; memory is of the many, with what the server has for both."""
    with ExitStack() as stack:
        loops = {}
        for name, count in (("few", FEW), ("many", clients)):
            experiment = of_clients(count, samples, rounds, memory if name == "many" else None)
            factory = prepare(experiment)
            engine = stack.enter_context(closing(open_engine(experiment, factory)))
            loops[name] = federation(experiment, factory, engine)
        runs = {name: loop.run() for name, loop in loops.items()}
        taken = in_turns({name: partial(next, run) for name, run in runs.items()}, rounds)
    few, many = taken["few"], taken["many"]
    return {"few": median(few[1:]), "many": median(many[1:]), "ratio": ratio(many, few), "memory": loops["many"].memory}


def points(classes: int, samples: int, dim: int = 16) -> Arrays:
    """Points around the centres of their classes."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(samples) % classes
    x = 3 * torch.randn(classes, dim, generator=generator)[y] + torch.randn(samples, dim, generator=generator)
    return Arrays(x.numpy(), y.numpy())


def crowd(clients: int) -> tuple[float, float, float, float]:
    """Seconds to choose some of very many clients, to prepare such a federation, and of its rounds; bytes."""
    server = Server(classes=10, dim=64, rng=Streams(1).at("server"))
    chosen = median(seconds(lambda: Uniform()(range(clients), CHOSEN, 1, server.rng)) for _ in range(9))
    experiment = Experiment(
        rounds=3, clients=clients, fraction=CHOSEN / clients, device="cpu",
        data=Data(source=points(10, 4 * clients), partition=Iid()),
        models=Models(family="tiny_mlp", dim=64),
        evaluation=Evaluation(clients="participants", shared="never"),
    )  # fmt: skip
    made = []
    prepared = seconds(lambda: made.append(prepare(experiment)))
    with closing(open_engine(experiment, made[0])) as engine:
        loop = federation(experiment, made[0], engine)
        run = loop.run()
        rounds = [seconds(partial(next, run)) for _ in range(experiment.rounds)]
    return chosen, prepared, median(rounds[1:]), loop.memory


def of_classes(method: str, classes: int, rounds: int) -> tuple[dict[str, list[float]], float, float]:
    """Seconds of rounds with 10 classes and with more, in turns; the latter's accuracy and share of the server."""
    records = []
    with ExitStack() as stack:
        loops = {}
        for name, count in (("few", 10), ("many", classes)):
            experiment = Experiment(
                rounds=rounds, clients=20, device="cpu", method=registry.find("methods", method)(),
                data=Data(source=points(count, 20 * classes)),
                models=Models(family="tiny_mlp", dim=64),
                evaluation=Evaluation(shared="never"),
            )  # fmt: skip
            factory = prepare(experiment)
            engine = stack.enter_context(closing(open_engine(experiment, factory)))
            loops[name] = federation(experiment, factory, engine).run()
        taken = in_turns(
            {"few": partial(next, loops["few"]), "many": lambda: records.append(next(loops["many"]))}, rounds
        )
    share = median(record.cost.seconds["server"] / sum(record.cost.seconds.values()) for record in records)
    return taken, records[-1].test["method"].weighted, share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="20,100,500,1000", help="'' to leave this out")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", help="engine.memory of a second row, as in 4GB")
    parser.add_argument("--many", type=int, default=100_000, help="clients of which 10 take part; 0 to leave this out")
    parser.add_argument("--classes", type=int, default=1000, help="0 to leave this out")
    parser.add_argument("--methods", default="fedproto,protonorm,fedpagr", help="with many classes")
    parser.add_argument("--pair", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pair:
        print("found", json.dumps(pair(int(options.pair), options.samples, options.rounds, options.memory)))
        return
    if options.clients:
        table = Table(clients=9, engine_memory=15, few_s=8, many_s=8, over_20_clients=17, peak_GB=9)
        for clients in options.clients.split(","):
            for memory in (None, options.memory) if options.memory else (None,):
                call = ["--pair", clients, "--samples", str(options.samples), "--rounds", str(options.rounds)]
                call += ["--memory", memory] if memory else []
                done = subprocess.run([sys.executable, __file__, *call], stdout=subprocess.PIPE, text=True, check=True)
                found = json.loads(done.stdout.rpartition("found ")[2])
                times = (found[name] for name in ("few", "many", "ratio"))
                table.add(int(clients), memory, *times, found["memory"] / 1e9)
        table.keep("scale", vars(options))
    if options.many:
        table = Table(clients=9, take_part=11, choose_ms=11, prepare_s=11, round_s=9, peak_GB=9)
        chosen, prepared, took, memory = crowd(options.many)
        table.add(options.many, CHOSEN, 1000 * chosen, prepared, took, memory / 1e9)
        table.keep("scale-crowd", vars(options))
    if options.classes:
        table = Table(method=12, classes=9, round_s=9, over_10_classes=17, server=8, accuracy=10)
        for method in options.methods.split(","):
            taken, accuracy, share = of_classes(method, options.classes, options.rounds)
            many = taken["many"]
            table.add(method, options.classes, median(many[1:]), ratio(many, taken["few"]), share, accuracy)
        table.keep("scale-classes", vars(options))


if __name__ == "__main__":
    main()
