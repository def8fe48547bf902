"""Figure and tables of robustness.md by the number of bad clients:  python docs/robustness_shares.py [RUNS]

RUNS is the directory of ``protea reproduce protea/robustness-shares``, from which robustness-shares.csv is made.  From
that file the figure is drawn, and the tables of the page are written.  None and two bad clients of ten are those of
robustness.csv.  Lines are means over seeds of the accuracy of honest clients, bars reach from the lowest to the highest
seed.  Needs matplotlib.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from protea.core.files import write_text
from protea.studies import papers
from protea.studies.papers.plan import Scale, plan
from protea.studies.reproduce import TableResults, value

ATTACKS = ["scale", "swap", "collude"]
DEFENCES = {"undefended": "#999999", "bound": "#0072b2", "bound45": "#56b4e9", "geometric_median": "#e69f00"}
BAD = (0, 1, 2, 3, 4)  # clients of ten
HERE = Path(__file__).parent
TABLE, TWO, PAGE = HERE / "robustness-shares.csv", HERE / "robustness.csv", HERE / "robustness.md"
Found = dict[tuple[str, str, str, int], list[float]]  # by method, attack, defence and bad clients, one for each seed


def write_runs(folder: Path) -> None:
    """Write the finished runs of the study as a table."""
    preset, cells = papers.find("protea/robustness-shares")
    found = TableResults(plan(preset, cells, [], Scale(), folder), {})
    rows = []
    for each in found.plan.runs:
        if each.path in found.readers:
            accuracy = value(found.readers[each.path], "honest", "final")
            attack, defence, share = each.cell.split("/")
            if accuracy is not None:
                bad = int(share.removeprefix("share")) // 10
                rows.append((each.row, attack, defence, bad, each.seed, round(accuracy, 2)))
    with TABLE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [("method", "attack", "defence", "bad", "seed", "honest"), *sorted(rows)]
        )


def collected() -> Found:
    """Return all accuracies, those of none and of two bad clients too."""
    found: Found = defaultdict(list)
    with TABLE.open() as file:
        for row in csv.DictReader(file):
            found[row["method"], row["attack"], row["defence"], int(row["bad"])].append(float(row["honest"]))
    with TWO.open() as file:
        for row in csv.DictReader(file):
            attacks = ATTACKS if row["attack"] == "clean" else [row["attack"]]
            for attack in attacks:
                bad = 0 if row["attack"] == "clean" else 2
                found[row["method"], attack, row["defence"], bad].append(float(row["honest"]))
    return found


def draw(found: Found, picture: Path) -> None:
    """Draw a panel for each method and attack: accuracy of honest clients against the number of bad ones."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    methods = methods_of(found)
    figure, places = plt.subplots(
        len(methods), 3, figsize=(9, 0.9 + 1.7 * len(methods)), sharex=True, sharey=True, layout="constrained"
    )
    for line, method in zip(places, methods, strict=True):
        for axes, attack in zip(line, ATTACKS, strict=True):
            for number, (defence, colour) in enumerate(DEFENCES.items()):
                known = [(bad, found[method, attack, defence, bad]) for bad in BAD]
                known = [(bad, values) for bad, values in known if values]
                x = [bad + 0.06 * (number - 1.5) for bad, _ in known]
                axes.plot(x, [fmean(values) for _, values in known], color=colour, marker="o", markersize=3)
                for place, (_, values) in zip(x, known, strict=True):
                    axes.plot([place, place], [min(values), max(values)], color=colour, linewidth=0.8)
            axes.set_ylim(0, 100)
            axes.set_xticks(BAD)
            axes.spines[["top", "right"]].set_visible(False)
        line[0].set_ylabel(f"{method}\nhonest clients, %", fontsize=8)
    for axes, attack in zip(places[0], ATTACKS, strict=True):
        axes.set_title(attack, fontsize=10)
    places[-1][1].set_xlabel("bad clients of ten")
    handles = [plt.Line2D([], [], color=colour, marker="o") for colour in DEFENCES.values()]
    figure.legend(handles, DEFENCES, loc="outside upper center", ncols=len(DEFENCES), frameon=False)
    figure.savefig(picture, dpi=110)


def methods_of(found: Found) -> list[str]:
    """Return the methods, in the order of the alphabet."""
    return sorted({method for method, _, _, _ in found})


def markdown(found: Found, attack: str) -> str:
    """Return the table of an attack: means over seeds, a row for each method and defence."""
    lines = ["| method | defence | " + " | ".join(f"{bad} bad" for bad in BAD) + " |", "|---|---|" + "---|" * len(BAD)]
    for method in methods_of(found):
        for defence in DEFENCES:
            cells = [found.get((method, attack, defence, bad), []) for bad in BAD]
            if any(cells[1:]):
                numbers = [f"{fmean(values):.1f}" if values else "-" for values in cells]
                lines.append(f"| {method} | {defence} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def written(page: str, found: Found) -> str:
    """Return the page with the tables of these accuracies in their places."""
    for attack in ATTACKS:
        begin, end = f"<!-- shares, {attack}: begin -->\n", f"\n<!-- shares, {attack}: end -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{markdown(found, attack)}\n{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_runs(Path(sys.argv[1]))
    found = collected()
    draw(found, HERE / "robustness-shares.png")
    write_text(PAGE, written(PAGE.read_text("utf-8"), found))
