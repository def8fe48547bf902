"""Put the collected runs of the results' pages into one table:  python docs/results/data/make.py

Reads gain.csv and when.csv, and writes runs.parquet beside this file, which may have further runs already; add those of
run directories by ``protea reproduce --leaderboard RUN... --data docs/results/data/runs.parquet``.  Needs pyarrow.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterator
from pathlib import Path

from protea.studies.result_rows import ResultRow, merged, read_rows, write_rows

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "examples" / "gain"
TABLE = HERE / "runs.parquet"


def collected(table: Path, kind: str) -> Iterator[ResultRow]:
    """Read the runs of a collection; ``kind`` is said with the name of their data."""
    with table.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            accuracies = {
                name: float(line[name]) if line[name] else None
                for name in ("own", "blend", "worst", "ensemble", "ensemble_blend")
            }
            yield ResultRow(
                f"{kind}: {line['data']}",
                line["method"] + (" alone" if line["alone"] == "1" else ""),
                int(line["seed"]),
                rounds(line["data"]),
                bytes=int(line["bytes"]),
                seconds=float(line["seconds"]),
                **accuracies,
            )


def rounds(data: str) -> int:
    """Return the number of rounds in a setting's file; that of the digits where it has none of its own."""
    file = EXAMPLES / f"{data}.toml"
    return int(tomllib.loads((file if file.is_file() else EXAMPLES / "digits.toml").read_text("utf-8"))["rounds"])


if __name__ == "__main__":
    known = read_rows(TABLE) if TABLE.is_file() else []
    write_rows(
        TABLE,
        merged(
            known,
            collected(HERE.parent / "gain.csv", "fair test"),
            collected(HERE.parent / "when.csv", "when federating helps"),
        ),
    )
