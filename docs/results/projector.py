"""The tables of results.md on what the earlier projector bent.

    python docs/results/projector.py [--before] [RUNS ...]

RUNS are folders of sweeps with the sections' settings; with ``--before`` they were made with the projector that ended
with unit length.  Their finished runs are added to projector.csv.  From that file the page's tables are written, and a
paragraph on the page of each method that has the marks for it.
"""

from __future__ import annotations

import csv
import sys
import textwrap
from pathlib import Path
from statistics import mean

from marks import filled

from protea.core.files import write_text
from protea.runs.reader import RunReader, find

HERE = Path(__file__).parent
TABLE, PAGE, METHODS = HERE / "projector.csv", HERE.parent / "results.md", HERE.parent / "methods"
MARK = "projector"  # on the page of a method
SETTINGS = {
    "cifar10": "CIFAR-10, five architectures with a projector, 20 rounds, 5,000 images",
    "mtsamples": "MTSamples, language models of three depths and a TextCNN, 8 rounds, 1,000 texts",
    "ohsumed": "OHSUMED, the same models",
}
COLUMNS = ("data", "projector", "method", "seed", "own", "head", "ensemble")
BEFORE = {  # own accuracy minus Local's with the earlier projector, seeds 1 to 3, as this page once had it
    "cifar10": {
        "fedproc": (-1.6, -1.1, -0.9), "fedsa": (-10.9, 5.2, 0.7), "fedpagr": (1.5, 2.4, -15.9),
        "fedpkd": (-2.0, -1.5, -8.6), "protonorm": (-0.8, 2.5, -14.2), "fedprotokd": (-16.9, -15.8, -24.2),
        "fedproto": (-46.5, -32.5, -48.3), "fedtgp": (-46.7, -46.9, -50.2),
    },
    "mtsamples": {
        "fedpagr": (-1.5, -0.5, 0.5), "fedproc": (-2.5, -1.5, -2.0), "fedproto": (-14.5, -10.5, -16.4),
        "fedtgp": (-8.0, -21.0, -15.9),
    },
    "ohsumed": {
        "fedproc": (-2.5, -1.5, 0.0), "fedpagr": (-3.5, -4.0, 0.0), "fedproto": (-6.5, -11.0, -12.4),
        "fedtgp": (-7.0, -32.0, -39.3),
    },
}  # fmt: skip
Lines = dict[tuple[str, str, str, int], dict[str, str]]  # by data, projector, method and seed


def key_of(line: dict[str, str]) -> tuple[str, str, str, int]:
    """Return what names a run of the table."""
    return line["data"], line["projector"], line["method"], int(line["seed"])


def known() -> Lines:
    """Read the table of runs."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {key_of(line): line for line in csv.DictReader(file)}


def collected(folders: list[Path], projector: str) -> Lines:
    """Read the finished runs of sweeps: the last round, in percent."""
    found: Lines = {}
    for path in find(folders) if folders else []:
        run = RunReader.read(path, clients=False)
        if run.summary is not None:
            last, data = run.scored[-1], str(run.config["data"]["source"]["kind"])
            numbers = (last.accuracy, last.test["head"].weighted, last.shared["method"].ensemble)
            words = [f"{100 * number:.1f}" for number in numbers if number is not None]
            method = run.method.partition("@")[0]  # on texts fedpagr@paper-text, before and now
            line = dict(zip(COLUMNS, [data, projector, method, str(run.seed), *words], strict=True))
            found[key_of(line)] = line
    return found


def table(lines: Lines, data: str) -> str:
    """Write the table of a data set: before and after, seed by seed, and what the runs have now in the mean."""
    seeds = {name: seeds_of(lines, data, "now", name) for name in methods_of(lines, data, "now")}
    most = max(len(each) for each in seeds.values())
    rows = [
        "| method | before, minus Local | now, minus Local | now, own | by head | ensemble |",
        "|---|---|---|---|---|---|",
    ]
    for name, own in sorted(seeds.items(), key=lambda each: -average(each[1], "own")):
        means = [f"{average(own, column):.1f}" for column in ("own", "head", "ensemble")]
        mark = "" if len(own) == most else f", seed{'s'[: len(own) > 1]} {' '.join(map(str, sorted(own)))}"
        rows.append(f"| `{name}`{mark} | {before(lines, data, name)} | {now(seeds, name)} | {' | '.join(means)} |")
    missing = sorted(BEFORE[data].keys() - seeds.keys())
    said = f"\nNot run again yet: {', '.join(f'`{name}`' for name in missing)}.\n" if missing else ""
    return "\n".join(rows) + "\n" + said


def methods_of(lines: Lines, data: str, projector: str) -> list[str]:
    """Return the methods that have runs, in order."""
    return sorted({name for of, with_, name, _ in lines if (of, with_) == (data, projector)})


def seeds_of(lines: Lines, data: str, projector: str, method: str) -> dict[int, dict[str, str]]:
    """Return the runs of a method by seed."""
    return {key[3]: line for key, line in sorted(lines.items()) if key[:3] == (data, projector, method)}


def average(own: dict[int, dict[str, str]], column: str) -> float:
    """Return the mean over seeds."""
    return mean(float(line[column]) for line in own.values())


def differences(own: dict[int, dict[str, str]], local: dict[int, dict[str, str]]) -> str:
    """Write own accuracy minus Local's, seed by seed."""
    found = [f"{float(own[seed]['own']) - float(local[seed]['own']):+.1f}" for seed in sorted(own) if seed in local]
    return " ".join(found)


def now(seeds: dict[str, dict[int, dict[str, str]]], name: str) -> str:
    """Write what a method has more than Local today; nothing of Local itself."""
    return "" if name == "local" else differences(seeds[name], seeds["local"])


def before(lines: Lines, data: str, name: str) -> str:
    """Write what a method had more than Local with the earlier projector, for as many seeds as are known."""
    if name in BEFORE[data]:
        return " ".join(f"{each:+.1f}" for each in BEFORE[data][name])
    then = seeds_of(lines, data, "before", name)
    return differences(then, seeds_of(lines, data, "before", "local")) if name != "local" else ""


def written(page: str, lines: Lines) -> str:
    """Return the page with the tables of these runs in their places."""
    made = [data for data in BEFORE if "local" in methods_of(lines, data, "now")]
    return filled(page, {f"projector, {data}": table(lines, data) for data in made}, PAGE.name)


def paragraph(lines: Lines, name: str) -> str:
    """Write what a method has now on each data set, beside Local with the same seeds."""
    said = []
    for data, setting in SETTINGS.items():
        every = seeds_of(lines, data, "now", "local")
        own = {seed: line for seed, line in seeds_of(lines, data, "now", name).items() if seed in every}
        if own:
            local = {seed: every[seed] for seed in own}
            seeds = f"seed {min(own)}" if len(own) == 1 else f"mean of seeds {', '.join(map(str, own))}"
            said.append(
                f"{setting}, {seeds}: {average(own, 'own'):.1f} % (by head {average(own, 'head'):.1f}), as an "
                f"ensemble {average(own, 'ensemble'):.1f}; training alone has {average(local, 'own'):.1f} and "
                f"{average(local, 'ensemble'):.1f}."
            )
    return textwrap.fill(" ".join(said), 120, break_on_hyphens=False)


def of_method(page: str, lines: Lines, name: str) -> str:
    """Return the page of a method with its paragraph in place; as it is where it has no marks."""
    return filled(page, {MARK: paragraph(lines, name)}, f"{name}.md") if f"<!-- {MARK}: begin -->" in page else page


def main(arguments: list[str]) -> None:
    """Add the runs of folders to the table of runs, and write the page."""
    projector = "before" if "--before" in arguments else "now"
    lines = known() | collected([Path(name) for name in arguments if name != "--before"], projector)
    rows = [",".join(lines[key][column] for column in COLUMNS) for key in sorted(lines)]
    write_text(TABLE, "\n".join([",".join(COLUMNS), *rows]) + "\n")
    write_text(PAGE, written(PAGE.read_text("utf-8"), lines))
    for path in METHODS.glob("*.md"):
        write_text(path, of_method(path.read_text("utf-8"), lines, path.stem))


if __name__ == "__main__":
    main(sys.argv[1:])
