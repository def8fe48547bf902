"""The numbers of gain.md: collect them from finished runs, and write the tables and the figure from the collection.

python docs/results/gain.py chosen runs/chosen     # what seed 1 prefers on held-out samples, as arguments of sweep
python docs/results/gain.py collect runs/gain      # a folder for each data set -> gain.csv, beside what it has
python docs/results/gain.py page                   # gain.csv -> the tables of gain.md
python docs/results/gain.py figure                 # gain.csv -> gain.png; needs matplotlib
"""

from __future__ import annotations

import csv
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from protea.config import registry
from protea.core.files import write_text
from protea.runs.reader import RunReader, find
from protea.runs.spread import Spread

HERE = Path(__file__).parent
CSV, TIMES, PAGE = HERE / "gain.csv", HERE / "gain_times.csv", HERE / "gain.md"
OURS = "fedloo"
MEASURES = ("own", "blend", "worst", "ensemble", "ensemble_blend")  # accuracies, in %
KEY = ("data", "method", "alone", "seed")  # of a run
COLUMNS = (*KEY, *MEASURES, "bytes", "seconds")
Run = dict[str, str]  # a line of gain.csv


def lines(table: Path = CSV) -> list[Run]:
    """Read runs that were collected; none where there is no such file yet."""
    if not table.exists():
        return []
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def collect(folder: Path, table: Path = CSV) -> None:
    """Add the finished runs below a folder to a table, beside those that were made elsewhere."""
    found = {tuple(each[name] for name in KEY): each for each in [*lines(table), *collected(folder)]}
    rows = sorted(",".join(each[name] for name in COLUMNS) for each in found.values())
    write_text(table, "\n".join([",".join(COLUMNS), *rows]) + "\n")


def collected(folder: Path) -> Iterator[Run]:
    """Read one line for every finished run below a folder."""
    for path in find([folder]):
        run = RunReader.read(path)
        if run.summary is None:
            continue
        last, name = run.rounds[-1], run.method.removesuffix(" alone")
        accuracies = {
            "own": last.accuracy,
            "blend": last.test["blend"].weighted,
            "worst": min(client.accuracy for client in last.clients if client.accuracy is not None),
            "ensemble": last.shared["method"].ensemble,
            "ensemble_blend": last.shared["blend"].ensemble,
        }
        yield {
            "data": path.parent.name,
            "method": name if name.startswith("local") else name.partition("@")[0],  # a chosen value may be a variant's
            "alone": str(int(run.alone)),
            "seed": str(run.seed),
            **{name: "" if each is None else f"{100 * each:.2f}" for name, each in accuracies.items()},
            "bytes": str(run.summary["bytes_up"] + run.summary["bytes_down"]),
            "seconds": f"{run.summary['cost']['seconds']:.0f}",
        }


CHOICES = {  # the field that is chosen for each opponent
    "fedproto": "pull", "fedtgp": "pull", "fedsa": "pull", "protonorm": "scale", "fedpagr": "temperature",
    "fedpcl": "temperature",
}  # fmt: skip


DEFAULTS = {name: getattr(registry.find("methods", name)(), field) for name, field in CHOICES.items()}


def chosen(folder: Path) -> Iterator[str]:
    """Say for each data set what is best on validation samples in the last round; of equal ones, the default."""
    for data in sorted(path for path in folder.iterdir() if path.is_dir()):
        best: dict[str, tuple[float, bool, str]] = {}
        for path in find([data]):
            run = RunReader.read(path)
            name = run.method.partition("@")[0]
            value = run.config["method"].get(CHOICES.get(name, ""))
            default = run.method == "local" or value == DEFAULTS.get(name)
            words = f"method.name={run.method}" if name == "local" else f"{name}:method.{CHOICES[name]}={value:g}"
            score = (run.rounds[-1].validation["method"].weighted, default, words)
            best[name] = max(score, best.get(name, score))
        yield f"{data.name} {' '.join(words for _, _, words in best.values())}"


class Runs:
    """All lines of gain.csv, by data set, method, alone or not, and seed."""

    def __init__(self, lines: Sequence[Run]) -> None:
        self.lines = {(each["data"], each["method"], each["alone"] == "1", int(each["seed"])): each for each in lines}
        self.data = list(dict.fromkeys(data for data, *_ in self.lines))
        self.methods = list(dict.fromkeys(method for _, method, *_ in self.lines))

    def values(self, data: str, method: str, measure: str, alone: bool = False) -> dict[int, float]:
        """Return a measure by seed, over the runs that have finished."""
        found = {key[3]: each[measure] for key, each in self.lines.items() if key[:3] == (data, method, alone)}
        return {seed: float(value) for seed, value in found.items() if value}

    def local(self, data: str) -> str:
        """Return the variant of Local that was run on a data set."""
        return next(method for at, method, *_ in self.lines if at == data and method.partition("@")[0] == "local")

    def mean(self, data: str, method: str, measure: str, alone: bool = False) -> str:
        """Format the mean over seeds; a dash where there is none."""
        found = self.values(data, method, measure, alone).values()
        return f"{statistics.fmean(found):.1f}" if found else "-"


def difference(one: dict[int, float], other: dict[int, float]) -> Spread | None:
    """Return by how much one is higher than the other, in pairs of equal seeds."""
    pairs = [one[seed] - other[seed] for seed in one if seed in other]
    return Spread.of(pairs) if pairs else None


def shown(found: Spread | None) -> str:
    """Format a difference with its 95 % interval, bold where the interval leaves out zero."""
    if found is None or found.low is None or found.high is None:
        return "-"
    text = f"{found.mean:+.1f} [{found.low:.1f}, {found.high:.1f}]"
    return f"**{text}**" if found.low > 0 or found.high < 0 else text


def means(runs: Runs, measure: str) -> list[list[str]]:
    """Return a table of means over seeds: a row for each method and for each method alone, a column for a data set."""
    federated = [name for name in runs.methods if not name.startswith("local")]
    rows = [["Local, the best variant", *(runs.mean(data, runs.local(data), measure) for data in runs.data)]]
    for method in federated:
        rows += [[method, *(runs.mean(data, method, measure) for data in runs.data)]]
        rows += [[f"{method} alone", *(runs.mean(data, method, measure, True) for data in runs.data)]]
    return rows


def against(runs: Runs, measure: str, alone: bool = False) -> list[list[str]]:
    """Return a table of our method minus each other one, or that alone, and how often it wins, ties and loses."""
    rows = []
    others = [name for name in runs.methods if (alone or name != OURS) and not name.startswith("local")]
    for method in others if alone else ["local", *others]:
        found = []
        for data in runs.data:
            other = runs.values(data, runs.local(data) if method == "local" else method, measure, alone)
            found.append(difference(runs.values(data, OURS, measure), other))
        won = sum(each is not None and each.low is not None and each.low > 0 for each in found)
        lost = sum(each is not None and each.high is not None and each.high < 0 for each in found)
        known = sum(each is not None for each in found)
        name = f"{method} alone" if alone else method
        rows.append([name, *map(shown, found), f"{won} / {known - won - lost} / {lost}"])
    return rows


def causes(runs: Runs) -> list[list[str]]:
    """Return, for each method, its training (alone minus Local) and the others (with them minus alone), in points."""
    rows = []
    for method in (name for name in runs.methods if not name.startswith("local")):
        training, others = [], []
        for data in runs.data:
            alone = runs.values(data, method, "own", True)
            training.append(shown(difference(alone, runs.values(data, runs.local(data), "own"))))
            others.append(shown(difference(runs.values(data, method, "own"), alone)))
        rows += [[f"{method}: its training", *training], [f"{method}: the others", *others]]
    return rows


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def sizes(runs: Runs) -> list[list[str]]:
    """Return the kilobytes of a run, both ways."""
    rows = []
    for method in (name for name in runs.methods if not name.startswith("local")):
        found = [runs.values(data, method, "bytes").values() for data in runs.data]
        rows.append([method, *(f"{statistics.fmean(each) / 1000:,.0f}" if each else "-" for each in found)])
    return rows


def times() -> list[list[str]]:
    """Return the table of gain_times.csv: rounds of Local that one round takes."""
    found: dict[str, dict[str, str]] = {}
    for line in lines(TIMES):
        found.setdefault(line["method"], {})[line["data"]] = f"{float(line['times']):.1f}"
    return [[name, *(of.get(data, "-") for data in timed())] for name, of in found.items()]


def timed() -> list[str]:
    """Return the data sets of gain_times.csv."""
    return list(dict.fromkeys(line["data"] for line in lines(TIMES)))


def tables(runs: Runs) -> dict[str, str]:
    """Return the tables of gain.md, by the words that stand before each."""
    head, wins = ["", *runs.data], ["", *runs.data, "won, level, lost"]
    return {
        "**Own accuracy**": markdown(head, means(runs, "own")),
        "**FedLOO minus each other**": markdown(wins, against(runs, "own")),
        "**The same, the others alone.**": markdown(wins, against(runs, "own", alone=True)),
        "**The same, everybody by the blend.**": markdown(wins, against(runs, "blend")),
        "**Where it comes from.**": markdown(head, causes(runs)),
        "**Worst client**": markdown(head, means(runs, "worst")),
        "**Ensemble** on": markdown(head, means(runs, "ensemble")),
        "**Ensemble, FedLOO minus each other.**": markdown(wins, against(runs, "ensemble")),
        "**Ensemble by the blend**": markdown(head, means(runs, "ensemble_blend")),
        "**Ensemble by the blend, FedLOO minus each other.**": markdown(wins, against(runs, "ensemble_blend")),
        "**Bytes**": markdown(head, sizes(runs)),
        "**Time**": markdown(["", *timed()], times()),
    }


def written(page: str, runs: Runs) -> str:
    """Return the page with its tables, and the line that counts runs, as the runs have them now."""
    for words, table in tables(runs).items():
        before, found, after = page.partition(words)
        if not found:
            raise SystemExit(f"{PAGE.name} has no {words!r}, after which a table should stand.")
        text, _, rest = after.partition("\n|")
        lines = rest.split("\n")
        end = next(place for place, line in enumerate(lines[1:], 1) if not line.startswith("|"))
        page = before + found + text + "\n" + "\n".join([table, *lines[end:]])
    return re.sub(r"\*\*State: of 900 runs, .*\*\*", f"**State: of 900 runs, {len(runs.lines)} are made.**", page)


def figure(runs: Runs, path: Path) -> None:
    """Draw what each method gains over the best Local, and which part of it the others give, by data set."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    methods = [name for name in runs.methods if not name.startswith("local")]
    drawing, axes = plt.subplots(1, len(runs.data), figsize=(2.3 * len(runs.data), 3.2), sharey=True)
    for ax, data in zip(axes, runs.data, strict=True):
        for place, method in enumerate(reversed(methods)):
            local, alone = runs.values(data, runs.local(data), "own"), runs.values(data, method, "own", True)
            over, training = difference(runs.values(data, method, "own"), local), difference(alone, local)
            if over is None or training is None:
                continue
            ax.plot([training.mean, over.mean], [place, place], color="#999999", linewidth=2, zorder=1)
            ax.errorbar(over.mean, place, xerr=over.margin, fmt="o", color="#0072b2", label="with the others")
            ax.plot(training.mean, place, "o", color="#0072b2", markerfacecolor="white", label="alone", zorder=2)
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set_title(data, fontsize=10)
        ax.set_yticks(range(len(methods)), list(reversed(methods)))
        ax.tick_params(labelsize=8)
    handles, labels = axes[0].get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))  # each once
    drawing.legend(list(named.values()), list(named), loc="lower center", ncols=2, fontsize=8, frameon=False)
    drawing.supxlabel("points of own accuracy over the best Local", fontsize=9, y=0.07)
    drawing.tight_layout(rect=(0, 0.08, 1, 1))
    drawing.savefig(path, dpi=150)


def main(arguments: Sequence[str]) -> None:
    """Do what the first argument says: chosen, collect, page or figure."""
    match arguments:
        case ["chosen", folder]:
            sys.stdout.writelines(f"{line}\n" for line in chosen(Path(folder)))
        case ["collect", folder]:
            collect(Path(folder))
        case ["page"]:
            write_text(PAGE, written(PAGE.read_text("utf-8"), Runs(lines())))
        case ["figure"]:
            figure(Runs(lines()), HERE / "gain.png")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
