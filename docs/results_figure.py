"""Curves of results.md:  python docs/results_figure.py FOLDER docs/results-fashion.png

FOLDER holds run directories named ``something-METHOD-sSEED``.  Lines are means over seeds, bands reach from
the lowest to the highest.  Left: clients on their own test samples.  Right: all clients as an
ensemble on the shared test set.  Both by the method's own rule; one with a single
round is left out.  Needs matplotlib.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from protea.runs.past import Line, Past, find

COLOURS = ["#000000", "#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#0072b2", "#d55e00", "#999999", "#7f3c8d"]


def own(line: Line) -> float | None:
    return line["test"]["method"]["weighted"] if line["test"] else None


def ensemble(line: Line) -> float | None:
    return line["shared"]["method"]["ensemble"] if line["shared"] else None


def rounds(run: Past, of: Callable[[Line], float | None]) -> list[int]:
    return [line["round"] for line in run.rounds if of(line) is not None]


def draw(axes: plt.Axes, runs: list[Past], of: Callable[[Line], float | None], colour: str) -> None:
    by_round = defaultdict(list)
    for run in runs:
        for line in run.rounds:
            if (value := of(line)) is not None:
                by_round[line["round"]].append(100 * value)
    found = sorted(by_round)
    means = [sum(by_round[r]) / len(by_round[r]) for r in found]
    axes.plot(found, means, color=colour, label=runs[0].method, marker="o" if len(found) < 10 else None)
    lowest, highest = [min(by_round[r]) for r in found], [max(by_round[r]) for r in found]
    axes.fill_between(found, lowest, highest, color=colour, alpha=0.12, linewidth=0)


def main(folder: str, out: str) -> None:
    methods: dict[str, list[Past]] = defaultdict(list)
    for run in map(Past.read, find([folder])):
        methods[run.method].append(run)
    panels = {"Clients on their own test samples": own, "Ensemble on the shared test set": ensemble}
    every = [run for runs in methods.values() for run in runs]
    panels = {title: of for title, of in panels.items() if any(len(rounds(run, of)) > 1 for run in every)}
    size = (2 + 4.5 * len(panels), 4.4)
    figure, grid = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
    for axes, (title, of) in zip(grid[0], panels.items(), strict=True):
        for (_, runs), colour in zip(sorted(methods.items()), COLOURS, strict=False):
            draw(axes, runs, of, colour)
        axes.set(xlabel="round", ylabel="accuracy, %", title=title)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0][-1].legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:])
