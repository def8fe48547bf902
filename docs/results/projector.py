"""The table of results.md on what the earlier projector bent:  python docs/results/projector.py RUNS

RUNS is the folder of a sweep with seed 1 of the section's setting; its runs are added to projector.csv, and the table
of the page is written from that file.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from protea.core.files import write_text
from protea.runs.reader import RunReader, find

HERE = Path(__file__).parent
TABLE, PAGE = HERE / "projector.csv", HERE.parent / "results.md"
BEGIN, END = "<!-- projector: begin -->\n", "<!-- projector: end -->"
COLUMNS = ("method", "own", "head", "ensemble")
BEFORE = {  # own accuracy minus Local's with the earlier projector, seed 1, as this page once had it
    "fedpagr": 1.5, "fedproc": -1.6, "fedsa": -10.9, "fedpkd": -2.0, "protonorm": -0.8, "fedprotokd": -16.9,
    "fedproto": -46.5, "fedtgp": -46.7,
}  # fmt: skip


def known() -> dict[str, dict[str, str]]:
    """Read the table of runs, by method."""
    if not TABLE.exists():
        return {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {line["method"]: line for line in csv.DictReader(file)}


def collected(folder: Path) -> dict[str, dict[str, str]]:
    """Read the finished runs of a sweep: the last round, in percent."""
    found = {}
    for path in find([folder]):
        run = RunReader.read(path, clients=False)
        if run.summary is not None and run.seed == 1:
            last = run.scored[-1]
            numbers = (last.accuracy, last.test["head"].weighted, last.shared["method"].ensemble)
            words = [f"{100 * number:.1f}" for number in numbers if number is not None]
            found[run.method] = dict(zip(COLUMNS, [run.method, *words], strict=True))
    return found


def page(lines: dict[str, dict[str, str]]) -> str:
    """Write the table: before, after, and what the runs have now."""
    local = float(lines["local"]["own"])
    rows = [
        "| method | before, minus Local | now, minus Local | now, own | by head | ensemble |",
        "|---|---|---|---|---|---|",
    ]
    for method, line in sorted(lines.items(), key=lambda each: -float(each[1]["own"])):
        before = f"{BEFORE[method]:+.1f}" if method in BEFORE else ""
        now = "" if method == "local" else f"{float(line['own']) - local:+.1f}"
        rows.append(f"| `{method}` | {before} | {now} | {line['own']} | {line['head']} | {line['ensemble']} |")
    missing = sorted(BEFORE.keys() - lines.keys())
    said = f"\nNot run again yet: {', '.join(f'`{name}`' for name in missing)}.\n" if missing else ""
    return "\n" + "\n".join(rows) + "\n" + said + "\n"


if __name__ == "__main__":
    lines = known() | (collected(Path(sys.argv[1])) if len(sys.argv) > 1 else {})
    text = [",".join(COLUMNS), *(",".join(lines[name][column] for column in COLUMNS) for name in sorted(lines))]
    write_text(TABLE, "\n".join(text) + "\n")
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    write_text(PAGE, before + BEGIN + page(lines) + END + rest.partition(END)[2])
