"""Curves of results.md:  python docs/results_figure.py FOLDER [FOLDER ...] docs/results-fashion.png

FOLDER holds run directories named ``something-METHOD-sSEED``.  Lines are means over seeds, bands reach from
the lowest to the highest.  Of each FOLDER, left: clients on their own test samples; right: all clients as an
ensemble on the shared test set.  Both by the method's own rule; one with a single round is left out.  FOLDER may end
in a pattern, ``runs/some/*-source=mtsamples-*``.  Needs matplotlib.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from protea.federation.record import Record
from protea.runs.reader import RunReader, find

COLOURS = ["#000000", "#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#0072b2", "#d55e00", "#999999", "#7f3c8d"]


def own(record: Record) -> float | None:
    return record.accuracy


def ensemble(record: Record) -> float | None:
    return record.shared["method"].ensemble if record.shared else None


def rounds(run: RunReader, of: Callable[[Record], float | None]) -> list[int]:
    return [record.round for record in run.rounds if of(record) is not None]


def draw(axes: plt.Axes, runs: list[RunReader], of: Callable[[Record], float | None], colour: str) -> None:
    by_round = defaultdict(list)
    for run in runs:
        for record in run.rounds:
            if (value := of(record)) is not None:
                by_round[record.round].append(100 * value)
    found = sorted(by_round)
    means = [sum(by_round[r]) / len(by_round[r]) for r in found]
    axes.plot(found, means, color=colour, label=runs[0].method, marker="o" if len(found) < 10 else None)
    lowest, highest = [min(by_round[r]) for r in found], [max(by_round[r]) for r in found]
    axes.fill_between(found, lowest, highest, color=colour, alpha=0.12, linewidth=0)


PANELS = {"Clients on their own test samples": own, "Ensemble on the shared test set": ensemble}


def main(*folders: str, out: str) -> None:
    panels = []
    for folder in folders:
        above, _, pattern = folder.rpartition("/")
        places = [str(path) for path in sorted(Path(above).glob(pattern))] if "*" in pattern else [folder]
        methods: dict[str, list[RunReader]] = defaultdict(list)
        for run in map(RunReader.read, find(places)):
            methods[run.method].append(run)
        every = [run for runs in methods.values() for run in runs]
        name = f"{every[0].config['data']['source']['kind']}: " if len(folders) > 1 else ""
        panels += [
            (f"{name}{title}", of, methods)
            for title, of in PANELS.items()
            if any(len(rounds(run, of)) > 1 for run in every)
        ]
    size = (2 + 4.5 * len(panels), 4.4)
    figure, grid = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
    for axes, (title, of, methods) in zip(grid[0], panels, strict=True):
        for (_, runs), colour in zip(sorted(methods.items()), COLOURS, strict=False):
            draw(axes, runs, of, colour)
        axes.set(xlabel="round", ylabel="accuracy, %", title=title)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0][-1].legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:-1], out=sys.argv[-1])
