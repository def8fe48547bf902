"""How the rows of a table become samples: known from the table that a model was trained on, and kept without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from protea.core.errors import DataError, nearest
from protea.data import files
from protea.data.new_samples import TABLES, NewSamples, SampleForm, label_numbers
from protea.data.scaling import Scaling
from protea.data.sources.csv_table import Csv

KEPT = ("label", "key", "text", "delimiter", "encoding", "missing")  # settings by which new rows are read


def refuse_no_table(path: Path, source: Csv) -> None:
    """Raise :class:`DataError` for new samples that are not in a table."""
    if not path.name.endswith(TABLES):
        raise DataError(f"{path} is not a table.  This run was trained on {source.path}: give a .csv or .csv.gz file.")


@dataclass(frozen=True)
class TableForm:
    """The columns of a table, and the means and deviations of its features if these are standardised."""

    source: Csv
    columns: tuple[str, ...]  # all of the training table
    features: tuple[str, ...]  # whose numbers are a sample, in this order; none of texts
    scaling: Scaling | None = None

    @classmethod
    def of(cls, source: Csv) -> Self:
        """Read the table that a model was trained on."""
        source, path = source.settled(), files.user_path(source.path)
        columns, rows = source.rows(path)
        named = [name for name in (source.label, source.key, source.text, source.split) if name is not None]
        features = source.columns_learned(columns)
        scaling = None
        if source.standardise and features:
            place = {name: column for column, name in enumerate(columns)}
            x = source.raw(path, source.complete(path, rows, place, named, features), place, features)
            deviation = x.std(0)
            deviation = np.where(deviation > 0, deviation, 1.0)
            scaling = Scaling(torch.from_numpy(x.mean(0)), torch.from_numpy(deviation))
        return cls(source, tuple(columns), features, scaling)

    def read_new(self, path: Path, form: SampleForm, *, raw: bool = False) -> NewSamples:
        """Read rows of another table as those of the training table: the same columns, found by name.

        With ``raw`` features are the numbers of the file, in float64; else float32, standardised where these were.
        The label column may be missing.  Samples are called by the key column, or else by the number of their row.
        """
        source, features = self.source, self.features
        refuse_no_table(path, source)
        header, rows = source.rows(path)
        for name in (source.text,) if source.text else features:
            if name not in header:
                hint = "" if source.text else f"  {nearest(name, header)}"
                raise DataError(f"{path} has no column {name!r}, which this run was trained on.{hint}")
        if not source.text and (strange := [name for name in header if name not in self.columns]):
            raise DataError(f"{path} has a column {strange[0]!r}, which the table of this run has not.  Remove it.")
        there = [name for name in (source.label, source.key, source.text) if name is not None and name in header]
        place = {name: column for column, name in enumerate(header)}
        numbers = {line: str(row) for row, (line, _) in enumerate(rows)}
        found = source.complete(path, rows, place, there, features)
        labels = None
        if source.label in header:
            labels = label_numbers([row[place[source.label]].strip() for _, row in found], form.names, path)
        key = source.key if source.key in header else None
        keys = [numbers[line] if key is None else row[place[key]].strip() for line, row in found]
        x: Tensor | list[str]
        if source.text:
            x = [row[place[source.text]] for _, row in found]
        else:
            x = torch.from_numpy(source.raw(path, found, place, features))
            if not raw:
                x = x.float() if self.scaling is None else self.scaling(x)
        return NewSamples(x, keys, key or "index", labels, len(rows) - len(found))

    def to_table(self) -> dict[str, Any]:
        """Return the form for JSON; of the training table only its name."""
        settings = {name: getattr(self.source, name) for name in KEPT}
        scaling = None if self.scaling is None else self.scaling.to_table()
        columns = {"columns": list(self.columns), "features": list(self.features)}
        return {"table": Path(self.source.path).name, **settings, **columns, "scaling": scaling}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_table` wrote; raise :class:`DataError` for what cannot be such a form."""
        try:
            settings = {name: table[name] for name in KEPT}
            odd = [name for name, value in settings.items() if value is not None and not isinstance(value, str)]
            columns, features = tuple(map(str, table["columns"])), tuple(map(str, table["features"]))
            if odd or not isinstance(settings["label"], str):
                raise DataError(f"The form of a table has no such {(odd or ['label'])[0]}.")
            scaling = None if table["scaling"] is None else Scaling.from_table(table["scaling"])
            source = Csv(str(table["table"]), standardise=scaling is not None, **settings)
        except (KeyError, TypeError) as error:
            raise DataError(f"This is no form of a table: {error!r}.") from error
        return cls(source, columns, features, scaling)
