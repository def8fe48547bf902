"""A user's own table: numbers to learn from, and a column that says the class."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from protea.data import convert, files
from protea.data.dataset import Dataset
from protea.errors import DataError, nearest

MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}


@dataclass(frozen=True)
class Csv:
    """A .csv or .csv.gz file with a header line.

    ``label`` is the column with the class, ``key`` the one that says whose a row is, and
    ``features`` are those to learn from: all others, if not given.  ``standardise`` brings
    each feature to mean 0 and deviation 1 over the whole table, test rows included.
    """

    path: str
    label: str
    key: str | None = None
    features: tuple[str, ...] | None = None
    standardise: bool = False
    delimiter: str = ","

    def load(self) -> Dataset:
        path = files.own(self.path)
        header, rows = self.rows(path)
        for name in (self.label, *([self.key] if self.key else []), *(self.features or ())):
            if name not in header:
                raise DataError(f"{path} has no column {name!r}.  {nearest(name, header)}")
        place = {name: column for column, name in enumerate(header)}
        features = self.features or tuple(name for name in header if name not in (self.label, self.key))
        if not features:
            raise DataError(f"{path} has no column besides {', '.join(header)}: nothing to learn from.")
        for line, row in rows:
            for column in filter(None, (self.label, self.key)):
                if row[place[column]].strip().lower() in MISSING:
                    raise missing(path, line, column)
        x = np.array(
            [[number(row[place[name]], path, line, name) for name in features] for line, row in rows],
            np.float64,
        )
        if self.standardise:
            deviation = x.std(0)
            x = (x - x.mean(0)) / np.where(deviation > 0, deviation, 1)
        y, names = convert.labels([row[place[self.label]].strip() for _, row in rows])
        keys = convert.numbered([row[place[self.key]].strip() for _, row in rows]) if self.key else None
        return Dataset(torch.from_numpy(x.astype(np.float32)), y, names, keys=keys)

    def rows(self, path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
        """The column names, and each row with the number of its line."""
        try:
            text = files.content(path).decode("utf-8-sig")
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=self.delimiter, strict=True)
            header = [name.strip() for name in next(reader, [])]
            rows = [(reader.line_num, row) for row in reader if row]
        except (UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{path} is not a table in UTF-8 text: {error}.") from error
        if not rows:
            raise DataError(f"{path} has no rows.  Expected a line of column names and then one line per sample.")
        if twice := [name for name, times in Counter(header).items() if times > 1]:
            raise DataError(f"{path} has two columns called {twice[0]!r}.")
        for line, row in rows:
            if len(row) != len(header):
                raise DataError(f"{path}, line {line}: {len(row)} cells where the header has {len(header)}.")
        return header, rows


def number(cell: str, path: Path, line: int, column: str) -> float:
    if cell.strip().lower() in MISSING:
        raise missing(path, line, column)
    try:
        value = float(cell)
    except ValueError:
        raise DataError(
            f"{path}, line {line}, column {column!r}: {cell!r} is not a number.\n"
            f"  Leave the column out by naming the others in features, or write its categories as numbers."
        ) from None
    if not math.isfinite(value):
        raise DataError(f"{path}, line {line}, column {column!r}: {cell!r} is not a finite number.")
    return value


def missing(path: Path, line: int, column: str) -> DataError:
    return DataError(
        f"{path}, line {line}, column {column!r}: the value is missing.\n"
        f"  Fill it in or remove the line, or leave the column out by naming the others in features."
    )
