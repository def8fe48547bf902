"""How the rows of a table become samples: known from the table that a model was trained on, and kept without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from protea.core.errors import DataError, nearest
from protea.data import files
from protea.data.gaps import fill_in
from protea.data.new_samples import TABLES, NewSamples, SampleForm, label_numbers
from protea.data.scaling import Scaling
from protea.data.sources.csv_table import Csv
from protea.data.table_cells import Categories, is_missing

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
    categories: Categories = field(default_factory=dict)  # columns of which each value is a feature
    fill: Tensor | None = None  # of the shape of a sample: what stands for a missing number, after scaling

    @classmethod
    def of(cls, source: Csv, fill: Tensor | None = None) -> Self:
        """Read the table that a model was trained on; ``fill`` is what its client puts for missing numbers."""
        source, path = source.settled(), files.user_path(source.path)
        columns, rows = source.rows(path)
        named = [name for name in (source.label, source.key, source.text, source.split) if name is not None]
        features = source.columns_learned(columns)
        place = {name: column for column, name in enumerate(columns)}
        categories, scaling = source.found_categories(path, rows, place, features), None
        if source.standardise and features:
            complete = source.complete(path, rows, place, named, features, categories)
            x = source.raw(path, complete, place, features, categories)
            mean, deviation = source.spread(path, x, features, categories)
            scaling = Scaling(torch.from_numpy(mean), torch.from_numpy(deviation))
        return cls(source, tuple(columns), features, scaling, categories, fill)

    def read_new(self, path: Path, form: SampleForm, *, raw: bool = False) -> NewSamples:
        """Read rows of another table as those of the training table: the same columns, found by name.

        With ``raw`` features are the numbers of the file, in float64, nan where they are to be filled in; else float32,
        standardised and filled in where these were.  A value that a category had not is none of its values.
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
        found = source.complete(path, rows, place, there, features, self.categories)
        labels = None
        if source.label in header:
            labels = label_numbers([row[place[source.label]].strip() for _, row in found], form.names, path)
        key = source.key if source.key in header else None
        keys = [numbers[line] if key is None else row[place[key]].strip() for line, row in found]
        x: Tensor | list[str]
        if source.text:
            x = [row[place[source.text]] for _, row in found]
        else:
            x = torch.from_numpy(source.raw(path, found, place, features, self.categories))
            if not raw:
                x = x.float() if self.scaling is None else self.scaling(x)
                x = x if self.fill is None else fill_in(x, self.fill)
        unseen = sum(
            cell not in values and not is_missing(cell, values)
            for name, values in self.categories.items()
            for cell in (row[place[name]].strip() for _, row in found)
        )
        return NewSamples(x, keys, key or "index", labels, len(rows) - len(found), unseen)

    def to_table(self) -> dict[str, Any]:
        """Return the form for JSON; of the training table only its name."""
        settings = {name: getattr(self.source, name) for name in KEPT}
        scaling = None if self.scaling is None else self.scaling.to_table()
        columns: dict[str, Any] = {"columns": list(self.columns), "features": list(self.features)}
        categories = {name: list(values) for name, values in self.categories.items()}
        fill = None if self.fill is None else self.fill.tolist()
        columns |= {"categories": categories, "scaling": scaling, "fill": fill}
        return {"table": Path(self.source.path).name, **settings, **columns}

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
            categories = {str(name): tuple(map(str, values)) for name, values in table.get("categories", {}).items()}
            fill = None if table.get("fill") is None else torch.tensor(table["fill"], dtype=torch.float32)
            if fill is not None and not fill.isfinite().all():
                raise DataError("The form of a table fills in numbers that are not finite.")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"This is no form of a table: {error!r}.") from error
        return cls(source, columns, features, scaling, categories, fill)
