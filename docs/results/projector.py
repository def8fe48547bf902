"""The tables of results.md on what the earlier projector bent:  python docs/results/projector.py [RUNS ...]

RUNS are folders of sweeps with seed 1 of the sections' settings.  Their finished runs are added to projector.csv, and
the tables of the page are written from that file.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from protea.core.files import write_text
from protea.runs.reader import RunReader, find

HERE = Path(__file__).parent
TABLE, PAGE = HERE / "projector.csv", HERE.parent / "results.md"
COLUMNS = ("data", "method", "own", "head", "ensemble")
BEFORE = {  # own accuracy minus Local's with the earlier projector, seed 1, as this page once had it
    "cifar10": {
        "fedpagr": 1.5, "fedproc": -1.6, "fedsa": -10.9, "fedpkd": -2.0, "protonorm": -0.8, "fedprotokd": -16.9,
        "fedproto": -46.5, "fedtgp": -46.7,
    },
    "mtsamples": {"fedpagr": -1.5, "fedproc": -2.5, "fedproto": -14.5, "fedtgp": -8.0},
    "ohsumed": {"fedproc": -2.5, "fedpagr": -3.5, "fedproto": -6.5, "fedtgp": -7.0},
}  # fmt: skip
Lines = dict[tuple[str, str], dict[str, str]]  # by data and method


def known() -> Lines:
    """Read the table of runs."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {(line["data"], line["method"]): line for line in csv.DictReader(file)}


def collected(folders: list[Path]) -> Lines:
    """Read the finished runs of sweeps: the last round, in percent."""
    found: Lines = {}
    for path in find(folders) if folders else []:
        run = RunReader.read(path, clients=False)
        if run.summary is not None and run.seed == 1:
            last, data = run.scored[-1], str(run.config["data"]["source"]["kind"])
            numbers = (last.accuracy, last.test["head"].weighted, last.shared["method"].ensemble)
            words = [f"{100 * number:.1f}" for number in numbers if number is not None]
            found[data, run.method] = dict(zip(COLUMNS, [data, run.method, *words], strict=True))
    return found


def table(lines: Lines, data: str) -> str:
    """Write the table of a data set: before, after, and what the runs have now."""
    own = {method: line for (of, method), line in lines.items() if of == data}
    local = float(own["local"]["own"])
    rows = [
        "| method | before, minus Local | now, minus Local | now, own | by head | ensemble |",
        "|---|---|---|---|---|---|",
    ]
    for method, line in sorted(own.items(), key=lambda each: -float(each[1]["own"])):
        before = f"{BEFORE[data][method]:+.1f}" if method in BEFORE[data] else ""
        now = "" if method == "local" else f"{float(line['own']) - local:+.1f}"
        rows.append(f"| `{method}` | {before} | {now} | {line['own']} | {line['head']} | {line['ensemble']} |")
    missing = sorted(BEFORE[data].keys() - own.keys())
    said = f"\nNot run again yet: {', '.join(f'`{name}`' for name in missing)}.\n" if missing else ""
    return "\n" + "\n".join(rows) + "\n" + said + "\n"


def written(page: str, lines: Lines) -> str:
    """Return the page with the tables of these runs in their places."""
    for data in BEFORE:
        if (data, "local") in lines:
            begin, end = f"<!-- projector, {data}: begin -->\n", f"<!-- projector, {data}: end -->"
            before, _, rest = page.partition(begin)
            page = before + begin + table(lines, data) + end + rest.partition(end)[2]
    return page


if __name__ == "__main__":
    lines = known() | collected([Path(name) for name in sys.argv[1:]])
    rows = [",".join(lines[key][column] for column in COLUMNS) for key in sorted(lines)]
    write_text(TABLE, "\n".join([",".join(COLUMNS), *rows]) + "\n")
    write_text(PAGE, written(PAGE.read_text("utf-8"), lines))
