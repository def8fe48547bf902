"""``protea reproduce --leaderboard``: results of many runs as one page, methods by setting."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from protea.core.errors import ConfigError
from protea.core.files import write_text
from protea.report.document import Document, DocumentSection, DocumentTable, document_page
from protea.studies.leaderboard import ASIDE, MEANING, OVERVIEW, Board, boards, markdown, overview
from protea.studies.result_rows import ResultRow, merged, read_rows, rows_of, write_rows

DATA = Path("docs/results/data/runs.parquet")  # the results that come with the sources
PAGE = Path("leaderboard.md")


def leaderboard(console: Console, places: Sequence[str], data: Path | None, out: Path | None) -> None:
    """Write the page as Markdown and as HTML, and the table that it was made from; print the overview."""
    page = out or PAGE
    if page.suffix != ".md":
        raise ConfigError(f"--out is {page}, which does not end in .md.  Type: --out {shlex.quote(f'{page}.md')}")
    if not page.parent.is_dir():
        raise ConfigError(f"{page.parent} is no folder.  Make it first, or choose another --out.")
    rows = gathered(places, data)
    found = boards(row for row in rows if not row.setting.startswith(ASIDE))
    if data is not None and places:
        write_rows(data, rows)
        say(console, f"Results: {data}, {len(rows):,} rows")
    write_text(page, markdown(found, command(places, data, out)))
    write_text(page.with_suffix(".html"), document_page(document(found)))
    table = Table(*OVERVIEW, box=None, padding=(0, 2, 0, 0))
    for line in overview(found):
        table.add_row(*line)
    console.print(table)
    say(console, f"Leaderboard: {page} and {page.with_suffix('.html')}, {len(found)} settings")


def gathered(places: Sequence[str], data: Path | None) -> list[ResultRow]:
    """Return the results of runs in folders, beside those of a file; without either, those that come with Protea."""
    known: list[ResultRow] = []
    if data is None and not places:
        if not DATA.is_file():
            raise ConfigError(
                f"There is no {DATA} here, and no run was named.  Name folders of runs: "
                "protea reproduce --leaderboard runs/gain, or a file of results by --data FILE."
            )
        known = read_rows(DATA)
    elif data is not None and data.is_file():
        known = read_rows(data)
    elif data is not None and not places:
        raise ConfigError(f"--data {data}: there is no such file.  Name folders of runs, and it is made from them.")
    rows = merged(known, rows_of(places)) if places else merged(known)
    if not rows:
        raise ConfigError("None of these runs has ended and was evaluated, so there is nothing to rank.")
    return rows


def command(places: Sequence[str], data: Path | None, out: Path | None) -> str:
    """Return what was typed."""
    words = ["protea", "reproduce", "--leaderboard", *places]
    words += ["--data", str(data)] if data is not None else []
    words += ["--out", str(out)] if out is not None else []
    return shlex.join(words)


def document(found: Sequence[Board]) -> Document:
    """Lay out the page for HTML."""
    day = datetime.now(UTC).date().isoformat()
    sections = [DocumentSection("All settings", (), DocumentTable(OVERVIEW, overview(found), OVERVIEW[1:]))]
    for board in found:
        head, rows = board.table()
        plain = [[cell.replace("**", "") for cell in row] for row in rows]
        sections.append(DocumentSection(board.setting, (), DocumentTable(head, plain, head[1:])))
    return Document("Leaderboard", (f"Made on {day}.", *MEANING), (), sections)


def say(console: Console, text: str) -> None:
    """Print plain text, neither wrapped nor marked up."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)
