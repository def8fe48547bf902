"""The picture of the README, from two run directories:  python docs/demo_figure.py runs/A runs/B docs/demo.png

Left: which classes each client has.  Right: accuracy over rounds, beside the majority class.  Needs matplotlib.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from protea.runs.store import Run

COLOURS = ["#0072b2", "#d55e00", "#009e73"]  # told apart by colour-blind readers too


def main(*arguments: str) -> None:
    runs = [Run.open(Path(path)) for path in arguments[:-1]]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), width_ratios=[1, 1.4], layout="constrained")

    counts = json.loads((runs[0].path / "partition.json").read_text())["class_counts"]
    for client, row in enumerate(counts):
        left.scatter([client] * len(row), range(len(row)), s=[1.6 * n for n in row], color=COLOURS[0], alpha=0.75)
    left.set(xlabel="client", ylabel="class", title="Who has which digits", xticks=range(len(counts)))
    left.set_yticks(range(len(counts[0])))

    for run, colour in zip(runs, COLOURS, strict=False):
        summary = run.summary() or {}
        lines = [line for line in run.metrics() if line["kind"] == "round" and line["accuracy"] is not None]
        rounds, accuracies = [line["round"] for line in lines], [100 * line["accuracy"] for line in lines]
        right.plot(rounds, accuracies, color=colour, label=summary["method"])
    right.axhline(100 * summary["majority"], color="0.4", linestyle="--", label="majority class")
    right.set(xlabel="round", ylabel="accuracy on own test samples, %", title="Five architectures, ten clients")
    right.legend(frameon=False, loc="lower right")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(arguments[-1], dpi=130)


if __name__ == "__main__":
    main(*sys.argv[1:])
