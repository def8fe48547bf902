"""Draw every page from the table of results, data/runs.parquet:  python docs/results/redraw.py

Claims of results.md, tables and figures of results/long.md, leaderboard.md and leaderboard.html.  Those of gain.md are
made from gain.csv, whose runs are in the table too: python docs/results/gain.py page.
"""

from __future__ import annotations

import os
from pathlib import Path

import claims
import long
from rich.console import Console

from protea.cli.leaderboard import leaderboard
from protea.core.files import write_text
from protea.studies.leaderboard import boards
from protea.studies.result_rows import read_rows


def main() -> None:
    """Write all pages anew."""
    os.chdir(Path(__file__).parents[2])  # the leaderboard names its command, which is typed there
    rows = read_rows(long.TABLE)
    long.main(["page"])
    write_text(claims.PAGE, claims.written(claims.PAGE.read_text("utf-8"), boards(rows)))
    leaderboard(Console(), [], None, Path("docs/leaderboard.md"))


if __name__ == "__main__":
    main()
