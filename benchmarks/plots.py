"""Draw docs/performance.png from the newest numbers in benchmarks/results: how cost grows.

    python benchmarks/plots.py [FILE.png]
    python benchmarks/plots.py sites [FILE.png]

The first needs growth.py, scale.py, geometry.py and target.py to have been run, the second, which draws
docs/sites.png, needs sites.py.  Both need matplotlib (``protea[docs]``).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from measure import RESULTS

BLUE, ORANGE, GREEN = "#2b6cb0", "#c05621", "#2f855a"
NAMES = {"batch": "batch size", "dim": "dimension of prototypes", "classes": "classes"}
STEPS = {"fedpagr": ("FedPAGR", BLUE), "thomson": ("Thomson (ProtoNorm)", ORANGE), "fedtgp": ("FedTGP", GREEN)}


def runs(name: str) -> list[dict[str, Any]]:
    """What is kept of a benchmark's runs, the newest last."""
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text("utf-8").splitlines()]


def newest(name: str, **settings: object) -> list[dict[str, Any]]:
    """The rows of the last run of a benchmark with these settings."""
    *_, line = (line for line in runs(name) if settings.items() <= line["settings"].items())
    rows: list[dict[str, Any]] = line["numbers"]
    return rows


def growth(axes: Axes, setting: str, rows: list[dict[str, Any]]) -> None:
    own = [row for row in rows if row["setting"] == setting]
    x, y = [row["value"] for row in own], [row["over_first"] for row in own]
    axes.plot(x, y, "o-", color=BLUE)
    axes.axhline(1, color="#cccccc", lw=1, zorder=0)
    axes.set(xscale="log", ylim=(0, 1.15 * max(y)), xlabel=NAMES[setting], title=f"A round by {NAMES[setting]}")
    axes.set_ylabel(f"time, against {x[0]}")
    axes.set_xticks(x, [str(value) for value in x])
    axes.minorticks_off()


def clients(axes: Axes, lines: list[dict[str, Any]]) -> None:
    """Of each number of samples, the newest row for each number of clients without a limit of memory."""
    found: dict[int, dict[int, float]] = {}
    for line in lines:
        own = found.setdefault(line["settings"]["samples"], {20: 1.0})
        own |= {row["clients"]: row["over_20_clients"] for row in line["numbers"] if row["engine_memory"] is None}
    for (samples, own), colour in zip(sorted(found.items()), (ORANGE, BLUE, GREEN), strict=False):
        points = sorted(own.items())
        axes.plot([x for x, _ in points], [y for _, y in points], "o-", color=colour, label=f"{samples:,} images")
    axes.axhline(1, color="#cccccc", lw=1, zorder=0)
    axes.set(xscale="log", ylim=(0, None), xlabel="clients", ylabel="time, against 20", title="A round by clients")
    axes.set_xticks([20, 100, 500, 1000], ["20", "100", "500", "1000"])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def servers(axes: Axes, rows: list[dict[str, Any]]) -> None:
    for step, (label, colour) in STEPS.items():
        for form, style in (("ours", "o-"), ("autograd", "x:"), ("gram autograd", "x:"), ("differences", "x:")):
            own = [row for row in rows if row["step"] == step and row["form"] == form]
            if own:
                name = label if form == "ours" else None
                axes.plot([r["classes"] for r in own], [r["ms"] for r in own], style, color=colour, label=name)
    axes.set(xscale="log", yscale="log", xlabel="classes", ylabel="ms", title="A server's step (dotted: usual form)")
    axes.legend(frameon=False, fontsize=8)


def against_plain(axes: Axes, rows: list[dict[str, Any]]) -> None:
    names, ratios = [row["method"] for row in rows], [row["plain_over_protea"] for row in rows]
    axes.barh(names[::-1], ratios[::-1], color=BLUE, height=0.6)
    axes.axvline(1, color="#666666", lw=1)
    for place, value in enumerate(ratios[::-1]):
        axes.text(value + 0.02, place, f"{value:.2f}", va="center", fontsize=9)
    axes.set(xlim=(0, 1.2 * max(ratios)), xlabel="times as fast", title="Against the plain loop")


def sites(path: str = "docs/sites.png") -> None:
    """Of each number of sites the newest row."""
    rows = {row["sites"]: row for line in runs("sites") for row in line["numbers"]}
    found = [rows[count] for count in sorted(rows)]
    x = [row["sites"] for row in found]
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    times, own, memory = figure.subplots(1, 3)
    times.plot(x, [row["round_s"] for row in found], "o-", color=BLUE)
    times.set(title="A round, on two cores for all", ylabel="seconds", ylim=(0, None))
    for name, colour in (("superlink", ORANGE), ("coordinator", BLUE), ("sites", GREEN)):
        own.plot(x, [1000 * row[f"{name}_cpu_s"] / row["sites"] for row in found], "o-", color=colour, label=name)
    own.set(title="CPU of a round, by site", ylabel="ms", ylim=(0, None))
    own.legend(frameon=False, fontsize=8)
    for name, colour in (("coordinator", BLUE), ("superlink", ORANGE), ("site", GREEN)):
        label = "one site, client process" if name == "site" else name
        memory.plot(x, [row[f"{name}_mb"] for row in found], "o-", color=colour, label=label)
    memory.set(title="Memory (shared pages in parts)", ylabel="MB", ylim=(0, None))
    memory.legend(frameon=False, fontsize=8)
    for axes in (times, own, memory):
        axes.set(xlabel="sites", xticks=x)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(Path(path), dpi=110)


def main(path: str = "docs/performance.png") -> None:
    figure = Figure(figsize=(11, 6.2), layout="constrained")
    grid = figure.subplots(2, 3).flat
    rows = newest("growth")
    for setting in NAMES:
        growth(next(grid), setting, rows)
    clients(next(grid), runs("scale"))
    servers(next(grid), newest("geometry"))
    against_plain(next(grid), newest("target", family="htcnn8", batch=10))
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(Path(path), dpi=110)


if __name__ == "__main__":
    sites(*sys.argv[2:]) if sys.argv[1:2] == ["sites"] else main(*sys.argv[1:])
