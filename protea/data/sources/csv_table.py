"""A user's own table: numbers to learn from, and a column that says the class."""

from __future__ import annotations

import codecs
import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protea.core.errors import DataError, nearest
from protea.data import convert, files
from protea.data.dataset import Dataset
from protea.data.new_samples import NewSamples, SampleForm
from protea.data.table_cells import Categories, TableRow, cell_numbers, find_categories, is_missing, missing_value
from protea.data.texts import Texts

LONGEST = 1 << 27  # characters that a cell may have: a clinical note may be long
DELIMITERS = ",;\t|"


@dataclass(frozen=True)
class Csv:
    """A .csv or .csv.gz file with a header line.

    ``label`` is the column with the class, ``key`` the one that says whose a row is.  Samples are the texts in the
    column ``text``; without that, the numbers in ``features``, which are all other columns if not given, but for those
    in ``drop``.  What parts columns (``delimiter``) and how letters are written (``encoding``) is guessed if not given.
    In the column ``split`` the words in ``test`` mark rows of the test part.  ``standardise`` brings each feature to
    mean 0 and deviation 1 over the whole table, test rows included.

    A column of words is a category, of which each value becomes a feature that is 0 or 1.  ``categories`` names such
    columns and their values, ``{ ward = ["A", "B"], stage = [] }``: needed where words are numbers, and where sites
    must agree; of an empty list, values are those of the rows that are not of the test part.  With ``missing = "drop"``
    rows are left out that lack something; with ``"impute"`` each client fills in missing numbers by the medians of its
    own training samples, and a missing category is none of its values.
    """

    path: str
    label: str
    key: str | None = None
    text: str | None = None
    features: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    split: str | None = None
    test: tuple[str, ...] = ("test",)
    standardise: bool = False
    delimiter: str | None = None
    encoding: str | None = None
    missing: Literal["refuse", "drop", "impute"] = "refuse"
    categories: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def mixes_records(self) -> bool:
        """Whether a row's numbers depend on other rows by these settings: no epsilon is claimed then.

        Categories whose values are not given, but found in the table, are seen when it is read (``Dataset.mixed``).
        """
        return self.standardise or self.missing == "impute"

    def load(self) -> Dataset:
        path = files.user_path(self.path)
        header, rows = self.rows(path)
        if self.text is not None and (self.features is not None or self.standardise):
            raise DataError(f"{path}: samples are texts ({self.text!r}) or numbers (features, standardise), not both.")
        named = [name for name in (self.label, self.key, self.text, self.split) if name is not None]
        for name in (*named, *(self.features or ()), *self.drop, *self.categories):
            if name not in header:  # which there are is not said of texts: without a header they are one
                known = "Expected is a header line." if self.text is not None else nearest(name, header)
                raise DataError(f"{path} has no column {name!r}.  {known}")
        place = {name: column for column, name in enumerate(header)}
        features = self.columns_learned(header)
        if self.text is not None:
            pass  # the text alone
        elif not features:
            raise DataError(f"{path} has no column besides {', '.join(header)}: nothing to learn from.")
        categories = self.found_categories(path, rows, place, features)
        rows = self.complete(path, rows, place, named, features, categories)
        marked = [self.is_test(row, place) for _, row in rows]
        rows = [rows[i] for i in sorted(range(len(rows)), key=lambda i: marked[i])]  # test rows are last
        labels = [row[place[self.label]].strip() for _, row in rows]
        refuse_no_classes(path, self.label, labels)
        y, names = convert.to_labels(labels)
        whose = [row[place[self.key]].strip() for _, row in rows] if self.key else None
        keys, called = (None, None) if whose is None else (convert.number_keys(whose), convert.names_of_keys(whose))
        x: Tensor | Texts
        if self.text is not None:
            x = Texts.of(row[place[self.text]] for _, row in rows)
        else:
            x = self.numbers(path, rows, place, features, categories)
        gaps = isinstance(x, Tensor) and bool(x.isnan().any())
        guessed = any(not self.categories.get(name) for name in categories)  # a new word would be one more feature
        mixed = self.mixes_records or guessed
        return Dataset(x, y, names, sum(marked), keys, called, gaps=gaps, mixed=mixed)

    def is_test(self, row: Sequence[str], place: Mapping[str, int]) -> bool:
        """Whether the table marks a row as one of its test part."""
        return self.split is not None and row[place[self.split]].strip() in self.test

    def found_categories(
        self, path: Path, rows: Sequence[TableRow], place: Mapping[str, int], features: Sequence[str]
    ) -> Categories:
        """Return the columns that are categories, with their values in the rows that are not of the test part."""
        learned = [(line, row) for line, row in rows if not self.is_test(row, place)]
        return find_categories(path, learned, place, features, self.categories)

    def columns_learned(self, header: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of numbers that samples are made of; none where samples are texts."""
        named = (self.label, self.key, self.text, self.split, *self.drop)
        if self.text is not None:
            return ()
        return tuple(name for name in self.features or header if self.features or name not in named)

    def how_read(self) -> str:
        """Say how the table is read: what parts its columns, and its encoding, guessed or given."""
        found, path = self.settled(), files.user_path(self.path)
        guessed = [name for name in ("delimiter", "encoding") if getattr(self, name) is None]
        how = f" ({' and '.join(guessed)} guessed)" if guessed else ""
        said = f"{Path(self.path).name} is read as {found.encoding}, its columns parted by {found.delimiter!r}{how}."
        header, rows = found.rows(path)
        place, features = {name: column for column, name in enumerate(header)}, self.columns_learned(header)
        categories = self.found_categories(path, rows, place, features)
        if categories:
            shown = ", ".join(f"{name} ({len(values)} values)" for name, values in categories.items())
            said += f"\nCategories, a feature for each value: {shown}."
        lacking = sum(any(is_missing(row[place[name]], categories.get(name)) for name in features) for _, row in rows)
        if lacking and self.missing == "impute":
            said += (
                f"\n{lacking:,} of {len(rows):,} rows lack something: numbers are filled in by the medians of each "
                f"client's own training samples; a missing category is none of its values."
            )
        return said

    def settled(self) -> Csv:
        """Return the same source with the delimiter and encoding that its table is read with."""
        content = files.read_content(files.user_path(self.path))
        encoding = self.encoding or guessed_encoding(content)
        delimiter = self.delimiter or guessed_delimiter(content.decode(encoding, errors="replace"))
        return replace(self, delimiter=delimiter, encoding=encoding)

    def read_new(self, path: Path, form: SampleForm) -> NewSamples:
        """Read rows of another table as :meth:`load` reads those of this one: the same columns, found by name.

        Where features are standardised, it is by the means and deviations of this table.  The label column may be
        missing.  Samples are called by the key column, or else by the number of their row, from 0.
        """
        from protea.data.table_form import TableForm, refuse_no_table  # which are built on this class

        refuse_no_table(path, self)
        return TableForm.of(self, form.fill).read_new(path, form)

    def complete(
        self,
        path: Path,
        rows: list[TableRow],
        place: Mapping[str, int],
        named: Sequence[str],
        features: Sequence[str],
        categories: Categories,
    ) -> list[TableRow]:
        """Return the rows in which nothing needed is missing; with ``missing = "refuse"`` raise at the first other one.

        Words such as "none" mean a missing value in columns of numbers only: a class may be called "none".  Features
        may be missing where they are imputed.
        """
        found = []
        needed = () if self.missing == "impute" else features
        for line, row in rows:
            lacking = next((name for name in named if not row[place[name]].strip()), None)
            if lacking is None:
                lacking = next((name for name in needed if is_missing(row[place[name]], categories.get(name))), None)
            if lacking is None:
                found.append((line, row))
            elif self.missing != "drop":
                raise missing_value(path, line, lacking)
        if not found:
            raise DataError(f"{path} has no row in which nothing is missing.")
        return found

    def numbers(
        self,
        path: Path,
        rows: list[TableRow],
        place: Mapping[str, int],
        features: Sequence[str],
        categories: Categories,
    ) -> Tensor:
        """Return the features, float32 (rows, features), standardised if wanted; nan where they are to be imputed."""
        x = self.raw(path, rows, place, features, categories)
        if self.standardise:
            mean, deviation = self.spread(path, x, features, categories)
            x = (x - mean) / deviation
        return torch.from_numpy(x.astype(np.float32))

    def raw(
        self,
        path: Path,
        rows: list[TableRow],
        place: Mapping[str, int],
        features: Sequence[str],
        categories: Categories,
    ) -> npt.NDArray[np.float64]:
        """Return the features as they are in the table: numbers, categories one-hot, nan where they are imputed."""
        columns, gaps = [(name, place[name], categories.get(name)) for name in features], self.missing == "impute"
        cells = [
            [
                number
                for name, column, values in columns
                for number in cell_numbers(row[column], values, path, line, name, gaps=gaps)
            ]
            for line, row in rows
        ]
        return np.array(cells, np.float64)

    def spread(
        self, path: Path, x: npt.NDArray[np.float64], features: Sequence[str], categories: Categories
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return what is subtracted from each feature and what it is divided by; 0 and 1 of categories."""
        lengths = [len(categories.get(name, ("",))) for name in features]
        whose = [name for name, length in zip(features, lengths, strict=True) for _ in range(length)]
        known = ~np.isnan(x)
        if (~known).all(0).any():
            raise DataError(
                f"{path}: column {whose[int((~known).all(0).argmax())]!r} has no value at all.  Leave it out: drop."
            )
        if known.all():
            mean, deviation = x.mean(0), x.std(0)
        else:
            mean, deviation = np.nanmean(x, 0), np.nanstd(x, 0)
        words = np.array([name in categories for name in whose])
        return np.where(words, 0.0, mean), np.where(words | (deviation <= 0), 1.0, deviation)

    def rows(self, path: Path) -> tuple[list[str], list[TableRow]]:
        """Read the table: the names of its columns, and each row with the number of its line."""
        csv.field_size_limit(LONGEST)
        content = files.read_content(path)
        encoding = self.encoding or guessed_encoding(content)
        try:
            text = content.decode(encoding).removeprefix("\ufeff")
            delimiter = self.delimiter or guessed_delimiter(text)
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
            header = [name.strip() for name in next(reader, [])]
            rows = [(reader.line_num, row) for row in reader if row]
        except LookupError as error:
            raise DataError(f"{path}: there is no encoding {encoding!r}.  utf-8 and latin-1 are two.") from error
        except (UnicodeDecodeError, csv.Error) as error:
            raise DataError(
                f"{path} is not a table in {encoding} text: {reason(error)}.\n"
                f'  If it has another encoding, say so: encoding = "latin-1".'
            ) from error
        if not rows:
            raise DataError(f"{path} has no rows.  Expected a line of column names and then one line per sample.")
        if twice := [name for name, times in Counter(header).items() if times > 1]:
            raise DataError(f"{path} has two columns called {twice[0]!r}.")
        for line, row in rows:
            if len(row) != len(header):
                raise DataError(f"{path}, line {line}: {len(row)} cells where the header has {len(header)}.")
        return header, rows


def guessed_encoding(content: bytes) -> str:
    """Return how the letters of a file are probably written: as its first bytes say, in UTF-8, or as in Windows.

    >>> guessed_encoding("größe".encode()), guessed_encoding("größe".encode("cp1252"))
    ('utf-8', 'cp1252')
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for name in ("utf-8", "cp1252"):
        with suppress(UnicodeDecodeError):
            content.decode(name)
            return name
    return "latin-1"


def guessed_delimiter(text: str) -> str:
    """Return what parts the header of a table into most columns; a comma where nothing does.

    >>> guessed_delimiter('age;"weight, kg";ward'), guessed_delimiter("age")
    (';', ',')
    """
    header = text.lstrip("\ufeff").partition("\n")[0]
    return max(DELIMITERS, key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))


def refuse_no_classes(path: Path, column: str, labels: Sequence[str]) -> None:
    """Raise :class:`DataError` for a label column that has nearly as many values as rows: it says no class."""
    values = len(set(labels))
    if len(labels) >= 20 and values > 0.5 * len(labels):
        raise DataError(
            f"{path}: the label column {column!r} has {values} different values in {len(labels)} rows, so it names no "
            f"classes.  Name the column with the class as label; a number to predict must be put into classes first."
        )


def reason(error: Exception) -> str:
    """Say what is wrong without quoting the bytes or words it was found in: these may be about a patient."""
    return f"byte {error.start} does not fit" if isinstance(error, UnicodeDecodeError) else str(error)
