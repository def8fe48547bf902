"""A round of the plain loop against a round of Protea with as many workers as cores, measured in turns.

    python benchmarks/target.py [--methods fedproto,...] [--samples N] [--rounds N] [--batch 32]
    python benchmarks/target.py --family fedpagr5 --data cifar10
    python benchmarks/target.py --family minilm3 --data mtsamples

Fashion-MNIST, the eight CNNs of htcnn8, 20 clients, Dirichlet 0.1, batch 10, lr 0.01, one epoch, every client
evaluated in every round: plain settings of an experiment.  The shared test set, which Protea by default looks at in the
last round, is left out on both sides.  The plain loop (plain.py) is one process with as many threads as Protea has
workers; where others use the machine its threads wait for each other for long, and --threads 1 is its better form.
Losses and accuracies of the last round of both are shown: they have to be the same work.  Texts reach both as Protea
gives them, through the frozen layers once, so that only the loops are compared.

``plain over protea`` is the median over rounds after the first, ``totals`` the ratio of their sums.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import plain
from measure import Table, in_turns, of_totals, ratio

from protea import Experiment
from protea.config.experiment import experiment_from_table
from protea.engines.processes.pool import cores
from protea.runs.prepare import prepare
from protea.runs.simulation import federation, open_engine


def setting(
    method: str,
    *,
    rounds: int,
    samples: int | None,
    family: str = "htcnn8",
    data: str = "fashion-mnist",
    batch: int = 10,
    lr: float = 0.01,
    clients: int = 20,
    adapter: str = "pool",
    last: str = "keep",
    alpha: float = 0.1,
) -> Experiment:
    table: dict[str, Any] = {
        "rounds": rounds,
        "clients": clients,
        "device": "cpu",
        "method": {"name": method},
        "data": {
            "source": data,
            "pool": "all",
            "partition": {"kind": "dirichlet", "alpha": alpha},
            "split": {"test": 0.25, "validation": 0.0, "stratify": False},
        },
        "models": {"family": family, "dim": 512, "adapter": adapter},
        "training": {"batch": batch, "lr": lr, "last": last},
        "evaluation": {"shared": "never"},
    }
    if samples:
        table["data"]["samples"] = samples
    return experiment_from_table(table)


def compared(
    experiment: Experiment, threads: int = 0
) -> tuple[dict[str, list[float]], dict[str, list[tuple[float, float]]]]:
    """Seconds of each round, and its loss and accuracy, of both."""
    factory = prepare(experiment)
    said: dict[str, list[tuple[float, float]]] = {"plain": [], "protea": []}

    def by_hand() -> Iterator[None]:
        for found in plain.rounds(experiment, factory, threads or cores()):
            said["plain"].append((found.loss, found.accuracy["method"]))
            yield

    with closing(open_engine(experiment, factory)) as engine:

        def by_protea() -> Iterator[None]:
            for record in federation(experiment, factory, engine).run():
                loss = math.nan if record.loss is None else record.loss
                said["protea"].append((loss, record.test["method"].weighted))
                yield

        one, other = by_hand(), by_protea()
        seconds = in_turns({"plain": lambda: next(one), "protea": lambda: next(other)}, experiment.rounds)
    return seconds, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(plain.METHODS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--samples", type=int, help="of the data set; all if not given")
    parser.add_argument("--family", default="htcnn8")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--adapter", default="pool")
    parser.add_argument("--last", default="keep", help="drop: a last batch that is not full, for BatchNorm")
    parser.add_argument("--alpha", type=float, default=0.1, help="of the Dirichlet partition")
    parser.add_argument("--threads", type=int, default=0, help="of the plain loop; 0 for one per core")
    given = vars(parser.parse_args())
    options = {name: value for name, value in given.items() if name not in ("methods", "threads")}
    table = Table(
        method=12, plain_s=10, protea_s=10, plain_over_protea=20, totals=9,
        loss_plain=12, loss_protea=13, accuracy_plain=16, accuracy_protea=17,
    )  # fmt: skip
    for method in given["methods"].split(","):
        seconds, said = compared(setting(method, **options), given["threads"])
        one, other = seconds["plain"], seconds["protea"]
        (loss, accuracy), (own_loss, own_accuracy) = said["plain"][-1], said["protea"][-1]
        means = (sum(each[1:]) / len(each[1:]) for each in (one, other))
        table.add(method, *means, ratio(one, other), of_totals(one, other), loss, own_loss, accuracy, own_accuracy)
    table.keep("target", given)


if __name__ == "__main__":
    main()
