"""Tables of labels and numbers for a screen that may be narrow: what does not fit beside goes on below."""

from __future__ import annotations

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

FOLDED = 9  # columns that the labels keep where a table is wide


def tables_of(columns: dict[str, list[str]], width: int) -> list[Table]:
    """Lay out columns, the first of which has the labels, in as many tables as it takes."""
    return [drawn(part) for part in fitting(columns, width)]


def fitting(columns: dict[str, list[str]], width: int) -> list[dict[str, list[str]]]:
    """Divide columns into tables that are not too wide; each begins with the labels, which may be folded somewhat."""
    wide = {name: max(map(len, [name, *column])) for name, column in columns.items()}
    first, *others = columns
    label = min(wide[first], FOLDED)
    parts, used = [{first: columns[first]}], label
    for name in others:
        if used + 1 + wide[name] > width - 2 and len(parts[-1]) > 1:
            parts.append({first: columns[first]})
            used = label
        parts[-1][name] = columns[name]
        used += 1 + wide[name]
    return parts


def drawn(columns: dict[str, list[str]]) -> Table:
    """Lay out one table; where it is too wide, the labels are folded."""
    table, first = Table(box=SIMPLE, padding=0), next(iter(columns))
    for name in columns:
        table.add_column(name, justify="left" if name == first else "right", no_wrap=name != first, overflow="fold")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(Text, row))
    return table
