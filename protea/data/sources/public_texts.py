"""Public sets of labelled texts, each in one table.

They have no one official address, so nothing is downloaded.  The tables are looked for in the
folder ``text`` of each place that ``protea.data.files`` names, plain or as .gz.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import Tensor

from protea.core.errors import DataError
from protea.data import files
from protea.data.dataset import Dataset
from protea.data.files import SourceFiles
from protea.data.sources.csv_table import Csv
from protea.data.texts import Texts

OUT_OF_SCOPE = "oos"


@dataclass(frozen=True)
class Banking77:
    """10,003 and 3,080 questions to a bank, with 77 intents (Casanueva et al., NLP4ConvAI 2020)."""

    def load(self) -> Dataset:
        return read_table("banking77.csv", "label", split="split")


@dataclass(frozen=True)
class Clinc150:
    """18,000 and 4,500 requests to an assistant, with 150 intents (Larson et al., EMNLP 2019).

    The validation rows belong to the training part.  ``out_of_scope`` adds, as a class of its
    own, 200 and 1,000 requests that have none of these intents.
    """

    out_of_scope: bool = False

    def load(self) -> Dataset:
        data = read_table("clinc150.csv", "label", split="split", test=("test", "oos_test"))
        wanted = [self.out_of_scope or name != OUT_OF_SCOPE for name in data.names]
        return of_classes(data, torch.tensor(wanted))


@dataclass(frozen=True)
class Trec:
    """5,452 and 500 questions, by which of 6 kinds of answer they ask for (Li and Roth, COLING 2002)."""

    def load(self) -> Dataset:
        return read_table("trec.csv", "label", split="split")


@dataclass(frozen=True)
class Ohsumed:
    """3,357 and 4,043 medical abstracts on one of 23 kinds of disease each (Hersh et al., SIGIR 1994)."""

    def load(self) -> Dataset:
        return read_table("ohsumed_single_23.csv", "label_name", split="split")


@dataclass(frozen=True)
class MTSamples:
    """2,376 sample reports of doctors, by medical specialty; each is its own key.

    Specialties with fewer than ``least`` reports are left out: some have just one.
    """

    least: PositiveInt = 20

    def load(self) -> Dataset:
        data = read_table("mtsamples_single.csv", "label", key="sample_id")
        return of_classes(data, data.y.bincount(minlength=data.classes) >= self.least)


def read_table(
    name: str, label: str, *, split: str | None = None, key: str | None = None, test: tuple[str, ...] = ("test",)
) -> Dataset:
    """Read a table of texts; raise :class:`DataError` that says where to put it if it is not there."""
    wanted = SourceFiles(name, ("text",), (name,), ())
    folder = wanted.folder()
    if folder is None:
        raise DataError(missing_table(wanted, [column for column in (split, key, label, "text") if column]))
    path = files.find_file(folder, name) or folder / name
    return Csv(str(path), label, key=key, text="text", split=split, test=test).load()


def missing_table(wanted: SourceFiles, columns: Sequence[str]) -> str:
    """Return the message for a table that is not on this machine."""
    return (
        f"{wanted.name} is not on this machine, plain or as .gz, and is not downloaded.\n"
        f"  Looked in: {', '.join(map(str, wanted.places))}.\n"
        f"  Put it into {wanted.places[0]}, or set PROTEA_DATA to the folder that holds text/.\n"
        f"  It is a table with a header line and the columns {', '.join(columns)}."
    )


def of_classes(data: Dataset, wanted: Tensor) -> Dataset:
    """Return the samples of those classes for which ``wanted``, a bool per class, is true."""
    assert isinstance(data.x, Texts)
    if not wanted.any():
        raise DataError(
            f"None of the {data.classes} classes is left: the largest has {data.y.bincount().max()} samples."
        )
    rows = wanted[data.y].nonzero().squeeze(1)
    names = tuple(name for name, keep in zip(data.names, wanted.tolist(), strict=True) if keep)
    number = wanted.cumsum(0) - 1  # of each class among those that stay
    tests = int((rows >= len(data) - data.tests).sum())
    keys = None if data.keys is None else data.keys[rows].unique(return_inverse=True)[1]
    return Dataset(Texts.of(data.x.take(rows)), number[data.y[rows]], names, tests, keys)
