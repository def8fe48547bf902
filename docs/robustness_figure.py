"""Figure and tables of robustness.md:  python docs/robustness_figure.py RUNS docs/robustness.csv docs/robustness.png

RUNS is the directory of ``protea reproduce protea/robustness``.  Without runs, the figure is drawn from the CSV file.
Bars are means over seeds of the accuracy of honest clients, lines reach from the lowest to the highest seed; the dashed
line is the same without an attack and without a defence.  Needs matplotlib.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from protea.studies import papers
from protea.studies.papers.plan import Scale, plan
from protea.studies.reproduce import TableResults, value

ATTACKS = ["scale", "flip", "swap", "random", "labels", "collude"]
DEFENCES = ["undefended", "bound", "geometric_median", "multi_krum", "cosine"]
COLOURS = ["#999999", "#0072b2", "#e69f00", "#009e73", "#cc79a7"]
Row = tuple[str, str, str, int, float]  # method, attack, defence, seed, accuracy in %


def of_runs(folder: Path) -> list[Row]:
    """Return the finished runs of the study."""
    preset, cells = papers.find("protea/robustness")
    found = TableResults(plan(preset, cells, [], Scale(), folder), {})
    rows = []
    for each in found.plan.runs:
        if each.path in found.readers:
            accuracy = value(found.readers[each.path], "honest", "final")
            attack, defence, _ = each.cell.split("/")
            if accuracy is not None:
                rows.append((each.row, attack, defence, each.seed, round(accuracy, 2)))
    return rows


def of_file(path: Path) -> list[Row]:
    """Read what :func:`of_runs` found before."""
    with path.open() as file:
        return [
            (method, attack, defence, int(seed), float(accuracy))
            for method, attack, defence, seed, accuracy in list(csv.reader(file))[1:]
        ]


def write(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [("method", "attack", "defence", "seed", "honest"), *sorted(rows)]
        )


def collected(table: Path) -> dict[tuple[str, str, str], list[float]]:
    """Return accuracies by method, attack and defence, one for each seed."""
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for method, attack, defence, _, accuracy in of_file(table):
        found[method, attack, defence].append(accuracy)
    return found


def main(folder: Path, table: Path, picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    if folder.is_dir():
        write(table, of_runs(folder))
    found = collected(table)
    methods = list(dict.fromkeys(method for method, _, _ in found))
    figure, places = plt.subplots(
        len(methods),
        1,
        figsize=(9, 0.8 + 2.3 * len(methods)),
        sharex=True,
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    width = 0.8 / len(DEFENCES)
    attacks = [attack for attack in ATTACKS if any(of == attack for _, of, _ in found)]  # that were run
    for axes, method in zip(places[:, 0], methods, strict=True):
        for number, (defence, colour) in enumerate(zip(DEFENCES, COLOURS, strict=True)):
            for place, attack in enumerate(attacks):
                if values := found.get((method, attack, defence)):
                    x = place + (number - (len(DEFENCES) - 1) / 2) * width
                    axes.bar(x, fmean(values), width * 0.92, color=colour)
                    axes.plot([x, x], [min(values), max(values)], color="black", linewidth=0.8)
        if clean := found.get((method, "clean", "undefended")):
            axes.axhline(fmean(clean), color="black", linestyle="--", linewidth=0.8)
        axes.set_ylim(0, 100)
        axes.set_ylabel(f"{method}\nhonest clients, %")
        axes.spines[["top", "right"]].set_visible(False)
    places[-1, 0].set_xticks(range(len(attacks)), attacks)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS]
    figure.legend(handles, DEFENCES, loc="outside upper center", ncols=len(DEFENCES), frameon=False)
    figure.savefig(picture, dpi=110)
    sys.stdout.write("\n\n".join(markdown(found, method) for method in methods) + "\n")


def markdown(found: Mapping[tuple[str, str, str], list[float]], method: str) -> str:
    """Return a method's table for the page: mean, and in brackets the lowest and highest seed."""
    lines = [f"| {method} | {' | '.join(DEFENCES)} |", f"|---|{'---|' * len(DEFENCES)}"]
    for attack in ("clean", *ATTACKS):
        cells = [found.get((method, attack, defence), []) for defence in DEFENCES]
        numbers = [f"{fmean(v):.1f} ({min(v):.0f} to {max(v):.0f})" if v else "-" for v in cells]
        lines.append(f"| {attack} | {' | '.join(numbers)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
