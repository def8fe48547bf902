"""From the numbers of a file to what a model was trained on: columns, scaling and normalising, kept with the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from protea.core.errors import ConfigError, DataError
from protea.core.samples import normalise
from protea.data import Arrays, Csv, Npz, files
from protea.data.gaps import fill_in
from protea.data.new_samples import NewSamples, SampleForm, described, fitted, read_in_form
from protea.data.scaling import Scaling
from protea.data.table_form import TableForm
from protea.runs.model_folder.reading import Reading

DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "float64": torch.float64, "int64": torch.int64}


@dataclass(frozen=True)
class Preparation:
    """What is done to new samples before the model sees them."""

    shape: tuple[int, ...]  # of one sample
    dtype: torch.dtype  # of the numbers in a file: uint8 of images, float64 of tables, int64 of tokens, else float32
    table: TableForm | None = None
    scaling: Scaling | None = None  # after that of the table
    counted: bool = True  # labels that are numbers count through the classes, from 0; else they are their names
    texts: Reading | None = None  # how texts become the numbers; they are in a column of the table

    @classmethod
    def of(
        cls,
        source: Any,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        scaling: Scaling | None = None,
        fill: Tensor | None = None,
    ) -> Self:
        """Find out what a source does, for samples of a shape and type; ``fill`` stands for missing numbers."""
        if isinstance(source, Csv):
            return cls(shape, torch.float64, TableForm.of(source, fill), scaling)
        counted = True
        if isinstance(source, Npz):
            with np.load(files.user_path(source.path), allow_pickle=False) as own:
                counted = "names" in own.files
        elif isinstance(source, Arrays):
            counted = source.names is not None
        return cls(shape, dtype, None, scaling, counted)

    def of_texts(self, reading: Reading) -> Self:
        """Return the same preparation for texts: columns are those of the table, or else ``text`` and ``label``."""
        table = self.table or TableForm(Csv("texts.csv", "label", text="text"), ("text", "label"), ())
        return replace(self, shape=(reading.length,), dtype=torch.int64, table=table, texts=reading)

    @property
    def scalings(self) -> list[Scaling]:
        """All scalings, in the order in which they are applied."""
        own = None if self.table is None else self.table.scaling
        return [each for each in (own, self.scaling) if each is not None]

    @property
    def fill(self) -> Tensor | None:
        """What stands for a missing number, after the table's own scaling."""
        return None if self.table is None else self.table.fill

    @property
    def word(self) -> str:
        """The name of the type of the numbers in a file."""
        return next(name for name, dtype in DTYPES.items() if dtype == self.dtype)

    def read(self, path: Path, names: tuple[str, ...], *, resize: bool = False) -> NewSamples:
        """Read new samples as the numbers or texts of a file; raise :class:`DataError` for what does not fit."""
        texts = self.texts is not None
        form = SampleForm(names, self.shape, self.dtype, texts, resize=resize, gaps=self.fill is not None)
        if not path.exists():
            raise DataError(f"There is no {path}.  Give a table (.csv), arrays (.npz), or a folder of images.")
        found = (
            read_in_form(path, form, counted=self.counted)
            if self.table is None
            else self.table.read_new(path, form, raw=True)
        )
        if not len(found):
            raise DataError(f"{path} has no samples.")
        found = fitted(found, path, form)
        if self.dtype == torch.uint8 and isinstance(found.x, Tensor) and found.x.dtype != torch.uint8:
            raise DataError(f"{path}: this model takes {described(form)} as bytes.  Save them as uint8.")
        return found

    def drawn(self, count: int, example: Tensor) -> Tensor:
        """Draw inputs to try a program with: of the form of a file's numbers, in the range of an ``example`` batch."""
        draw = torch.Generator().manual_seed(0)
        if self.texts is not None:
            return self.texts.drawn(count, draw)
        if self.dtype == torch.uint8:
            return torch.randint(0, 256, (count, *self.shape), generator=draw, dtype=torch.uint8)
        if self.dtype == torch.int64:
            return torch.randint(0, int(example.max()) + 1, (count, *self.shape), generator=draw)
        found = torch.randn(count, *self.shape, generator=draw, dtype=torch.float64)
        for scaling in reversed(self.scalings):
            found = found * scaling.deviation + scaling.mean
        if self.fill is not None:
            found[::4, 0] = torch.nan
        return found.to(self.dtype)

    def to_table(self) -> dict[str, Any]:
        """Return the preparation for JSON."""
        return {
            "shape": list(self.shape),
            "dtype": self.word,
            "table": None if self.table is None else self.table.to_table(),
            "scaling": None if self.scaling is None else self.scaling.to_table(),
            "counted": self.counted,
            "texts": None if self.texts is None else self.texts.to_table(),
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_table` wrote."""
        try:
            return cls(
                tuple(map(int, table["shape"])),
                DTYPES[table["dtype"]],
                None if table["table"] is None else TableForm.from_table(table["table"]),
                None if table["scaling"] is None else Scaling.from_table(table["scaling"]),
                bool(table["counted"]),
                None if table.get("texts") is None else Reading.from_table(table["texts"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the preparation of samples is not one: {error!r}.") from error


class Prepare(nn.Module):
    """A preparation as the first layer of a program."""

    fill: Tensor

    def __init__(self, preparation: Preparation) -> None:
        super().__init__()
        self.dtype, self.count = preparation.dtype, len(preparation.scalings)
        self.own = int(preparation.table is not None and preparation.table.scaling is not None)
        self.fills = preparation.fill is not None
        if preparation.fill is not None:
            self.register_buffer("fill", preparation.fill)
        for place, scaling in enumerate(preparation.scalings):
            self.register_buffer(f"mean_{place}", scaling.mean)
            self.register_buffer(f"deviation_{place}", scaling.deviation)

    def forward(self, x: Tensor) -> Tensor:
        if self.dtype == torch.uint8:
            return normalise(x)
        for place in range(self.count + 1):
            if self.fills and place == self.own:  # after the table's own scaling, before that of a site
                x = fill_in(x.float(), self.fill)
            if place < self.count:
                x = Scaling(getattr(self, f"mean_{place}"), getattr(self, f"deviation_{place}"))(x)
        return x if self.dtype == torch.int64 else x.float()
