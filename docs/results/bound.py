"""What limits.bound does to honest clients, and against one that sends ten times as long vectors: robustness.md.

    python docs/results/bound.py run      # adds to docs/results/bound.csv what is not in it; hours on one core
    python docs/results/bound.py table    # the tables of robustness.md

Every run is one row: the accuracy of honest clients in the last round in %, by the method's own rule, every test
sample counting once, and in how many uploads a filter changed anything.  Rows of the study "reported" are of the round
that a run reports by default, which is chosen on validation samples.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import protea
from protea.config.experiment import experiment_from_table

TABLE = Path(__file__).with_suffix(".csv")
FIELDS = ("study", "data", "alpha", "method", "seed", "client", "attack", "bound", "honest", "changed")
METHODS = {"fedproto": "FedProto", "fedtgp": "FedTGP", "protonorm": "ProtoNorm", "fedsa": "FedSA", "fedpagr": "FedPAGR"}
SOURCES = ("digits", "fashion-mnist")
ALPHAS = (0.5, 0.1)
SEEDS = (1, 2, 3)
BAD = (0, 3)  # clients, one at a time


def rows() -> Iterator[tuple[Any, ...]]:
    """Yield every run by the first fields of its row, those first that are quick and say most."""
    for seed in SEEDS:
        for method in ("fedproto", "fedtgp"):
            for client in BAD:
                for attack in ("none", "scale"):
                    yield "one of five", "digits", 0.5, method, seed, client, attack, True
    for seed in SEEDS:
        for method in ("fedproto", "fedtgp"):
            for client in range(5):
                for attack in ("none", "scale"):
                    yield "reported", "digits", 0.5, method, seed, client, attack, True
    for bound in (True, False):
        for seed in SEEDS:
            for source in SOURCES:
                for alpha in ALPHAS:
                    for method in METHODS:
                        yield "honest", source, alpha, method, seed, "", "none", bound
    for method in ("fedproto", "fedtgp"):
        yield "one of five", "digits", 0.5, method, 1, 0, "scale", False


def experiment(
    study: str, data: str, alpha: float, method: str, seed: int, client: Any, attack: str, bound: bool
) -> Any:
    """Return the experiment of a row: all settings are the default but for these."""
    rounds, clients = (8, 10) if study == "honest" else (15, 5)
    samples = {"samples": 1500} if data == "fashion-mnist" else {}
    table: dict[str, Any] = {
        "seed": seed,
        "rounds": rounds,
        "clients": clients,
        "method": method,
        "failures": "skip",
        "data": {"source": data, "partition": {"kind": "dirichlet", "alpha": alpha}, **samples},
        "limits": {"bound": bound},
        "engine": {"name": "inline"},
        "evaluation": {
            "every": rounds, "protocol": "final", "shared": "never", "snapshots": 0, "local_prototypes": False,
        },
    }  # fmt: skip
    if study == "reported":
        del table["evaluation"]
    if client != "":
        table["attack"] = {"kind": attack, "clients": [client], "factor": 10.0}
    return experiment_from_table(table)


def kept() -> list[dict[str, str]]:
    """Return the rows that are there."""
    if not TABLE.exists():
        return []
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def run(words: list[str]) -> None:
    """Play what is missing, of rows that have all ``words``."""
    done = {tuple(row[name] for name in FIELDS[:8]) for row in kept()}
    for row in rows():
        key = tuple(map(str, row))
        if key in done or not set(words) <= set(key):
            continue
        made = protea.Run(experiment(*row), progress=False, keep_models=False)
        records = list(made)
        last = records[-1]
        honest = last.accuracy if last.honest is None else last.honest
        if key[0] == "reported":
            honest = made.result.honest
        assert honest is not None
        changed = sum(len(record.changed) for record in records)
        new = not TABLE.exists()
        with TABLE.open("a", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerows([FIELDS] if new else [])
            out.writerow([*row, f"{100 * honest:.2f}", changed])
        sys.stdout.write(f"{' '.join(key)}: {100 * honest:.1f}, {changed} changed\n")
        sys.stdout.flush()


def tables() -> str:
    """Return the tables of the page."""
    found = {tuple(row[name] for name in FIELDS[:8]): row for row in kept()}

    def shown(*row: Any) -> str:
        there = found.get(tuple(map(str, row)))
        return "" if there is None else f"{float(there['honest']):.1f}"

    lines = [f"| | {' | '.join(f'seed {seed}' for seed in SEEDS)} |", f"|---|{'---|' * len(SEEDS)}"]
    for method, name in (("fedproto", "FedProto"), ("fedtgp", "FedTGP")):
        for client in BAD:
            for attack, words in (("none", "nobody is bad"), ("scale", "is bad, default")):
                cells = [shown("one of five", "digits", 0.5, method, seed, client, attack, True) for seed in SEEDS]
                lines.append(f"| {name}, client {client}{',' * (attack == 'none')} {words} | {' | '.join(cells)} |")
        cells = [shown("one of five", "digits", 0.5, method, seed, 0, "scale", False) for seed in SEEDS]
        lines.append(f"| {name}, client 0 is bad, `limits.bound = false` | {' | '.join(cells)} |")
    lines += ["", f"| | bad client | {' | '.join(f'seed {seed}' for seed in SEEDS)} |", "|---|---|---|---|---|"]
    for method, name in (("fedproto", "FedProto"), ("fedtgp", "FedTGP")):
        for client in range(5):
            pairs = [
                ", ".join(
                    shown("reported", "digits", 0.5, method, seed, client, attack, True) for attack in ("none", "scale")
                )
                for seed in SEEDS
            ]
            lines.append(f"| {name if not client else ''} | {client} | {' | '.join(pairs)} |".replace("|  |", "| |"))
    lines += ["", "| | digits, 0.5 | digits, 0.1 | Fashion-MNIST, 0.5 | Fashion-MNIST, 0.1 |", "|---|---|---|---|---|"]
    for method, name in METHODS.items():
        cells = [
            " ".join(shown("honest", source, alpha, method, seed, "", "none", True) for seed in SEEDS)
            for source in SOURCES
            for alpha in ALPHAS
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(sys.argv[2:])
    else:
        sys.stdout.write(tables() + "\n")
