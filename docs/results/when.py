"""README's table of when federating helps, from the runs of examples/gain/when.sh.

python docs/results/when.py runs/when    # collects finished runs into when.csv and prints the table
python docs/results/when.py              # prints the table from when.csv
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gain import OURS, Runs, collect, difference, lines, markdown, shown

CSV = Path(__file__).parent / "when.csv"
SITUATIONS = {
    "many-samples": "many samples: 3 clients with 239 digits each, all classes",
    "few-samples": "few samples: 20 clients with 36 digits each, all classes",
    "missing-classes": "missing classes: 10 clients with 72 digits each, most of them of two or three classes",
    "unlike-data": "unlike data: 10 clients with 72 digits each, turned, mirrored or inverted at each",
    "many-classes": "many classes: 8 clients with some 170 short texts each, of 77 intents",
}
HEAD = ["situation", "Local", "FedLOO", "the others", "FedPAGR", "FedProto", "together: Local", "FedLOO"]


def table(runs: Runs) -> str:
    """Return accuracy of Local in %, and what methods have more, in points with 95 % intervals over seeds."""
    rows = []
    for data, words in SITUATIONS.items():
        if data not in runs.data:
            continue  # not run yet
        local = runs.local(data)
        alone, base = runs.values(data, OURS, "own", True), runs.values(data, local, "own")
        gains = {
            name: shown(difference(runs.values(data, name, "own"), base)) for name in (OURS, "fedpagr", "fedproto")
        }
        others = shown(difference(runs.values(data, OURS, "own"), alone))
        together = [runs.mean(data, local, "ensemble"), runs.mean(data, OURS, "ensemble")]
        own = runs.mean(data, local, "own")
        rows.append([words, own, gains[OURS], others, gains["fedpagr"], gains["fedproto"], *together])
    return markdown(HEAD, rows)


def main(arguments: Sequence[str]) -> None:
    """Collect the runs of a folder, if one is given, and print the table."""
    for folder in arguments:
        collect(Path(folder), CSV)
    sys.stdout.write(table(Runs(lines(CSV))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
