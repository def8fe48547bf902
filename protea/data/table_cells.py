"""The cells of a table as numbers: numbers as they are, categories one-hot, and nan where a value is missing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from protea.core.errors import DataError

TableRow = tuple[int, list[str]]  # the number of its line, and its cells
Categories = Mapping[str, tuple[str, ...]]  # the values of a column, each of which has a feature of its own

MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
MOST = 100  # values of a column that become features unasked


def is_missing(cell: str, values: tuple[str, ...] | None = None) -> bool:
    """Whether a cell lacks its value; a category may be called "none", or anything that ``values`` has.

    >>> is_missing("none"), is_missing("none", ("none", "some")), is_missing(" NA ", ("yes", "no"))
    (True, False, True)
    """
    word = cell.strip()
    return word.lower() in MISSING and (values is None or (word not in values and word.lower() != "none"))


def find_categories(
    path: Path, rows: Sequence[TableRow], place: Mapping[str, int], features: Sequence[str], given: Categories
) -> dict[str, tuple[str, ...]]:
    """Return the columns that are categories, with their values: those ``given``, and those without any number.

    Values are those in ``rows``, sorted, unless they are given.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name in features:
        if given.get(name):
            found[name] = tuple(given[name])
            continue
        cells = {row[place[name]].strip() for _, row in rows}
        known = {cell for cell in cells if not is_missing(cell, ())}
        if name not in given and (not known or any(is_number(cell) for cell in known) or known <= {"none", "None"}):
            continue
        if name not in given and (len(known) > MOST or (len(rows) >= 20 and len(known) > len(rows) / 2)):
            raise DataError(
                f"{path}: column {name!r} holds words, {len(known)} different ones in {len(rows)} rows: too many for a "
                f"feature each.\n  Leave it out (drop = [{name!r}]), name it as text, or say that it is a category: "
                f"categories = {{ {name} = [] }}."
            )
        found[name] = tuple(sorted(known))
    return found


def is_number(cell: str) -> bool:
    """Whether a cell can be read as a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def cell_numbers(
    cell: str, values: tuple[str, ...] | None, path: Path, line: int, column: str, *, gaps: bool
) -> Iterator[float]:
    """Give the features of one cell: its number, or of a category a 1 for its value and 0 for all others.

    A value that is not among ``values``, or a missing one, is 0 in all of them.  With ``gaps`` a missing number is nan.
    """
    if values is not None:
        yield from (float(cell.strip() == value) for value in values)
    elif gaps and is_missing(cell):
        yield math.nan
    else:
        yield parse_number(cell, path, line, column)


def parse_number(cell: str, path: Path, line: int, column: str) -> float:
    """Return the number in a cell; raise :class:`DataError` for anything else."""
    if is_missing(cell):
        raise missing_value(path, line, column)
    try:
        value = float(cell)
    except ValueError:
        raise DataError(
            f"{path}, line {line}, column {column!r}: {shown_cell(cell)} is not a number.\n"
            f"  Leave the column out (drop = [{column!r}]), call it a category (categories = {{ {column} = [] }}), "
            f"or name it as text."
        ) from None
    if not math.isfinite(value):
        raise DataError(f"{path}, line {line}, column {column!r}: {cell!r} is not a finite number.")
    return value


def missing_value(path: Path, line: int, column: str) -> DataError:
    """Make the error for an empty cell."""
    return DataError(
        f"{path}, line {line}, column {column!r}: the value is missing.\n"
        f'  Fill it in, or leave such lines out (missing = "drop"), or the column (drop = [{column!r}]); '
        f'missing = "impute" fills in features.'
    )


def shown_cell(cell: str) -> str:
    """Return a cell for a message, if it is one word; more may be what somebody wrote about a patient."""
    return repr(cell) if len(cell) < 20 and " " not in cell.strip() else f"a cell of {len(cell)} characters"
