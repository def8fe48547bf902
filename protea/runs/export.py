"""All numbers of runs in long form, one per line, for pandas and its like."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

from protea.core.errors import ConfigError
from protea.core.files import writing
from protea.runs.reader import Line, Past, find
from protea.runs.settings_diff import labels

COLUMNS = ("run", "method", "seed", "round", "client", "name", "value")
Entry = tuple[str, str, int, int, int | None, str, float]

KEYS = ("kind", "round", "client")  # of a line: what the other columns say
COUNTED = ("participants", "failures")  # of a round: how many there were


def entries(paths: Iterable[Path | str]) -> Iterator[Entry]:
    """Every number of every round and client; ``client`` is None where the number is of the whole round.

    Runs are read one at a time: together they may be large.
    """
    found = find(paths)
    for path, label in zip(found, labels([replace(Past.read(p), rounds=[], clients=[]) for p in found]), strict=True):
        past = Past.read(path)
        for line in (*past.rounds, *past.clients):
            for name, value in numbers(line):
                yield str(path), label, past.seed, line["round"], line.get("client"), name, value


def numbers(line: Line) -> Iterator[tuple[str, float]]:
    """The numbers of a line by their path in it: ``test/head/weighted``, ``geometry/margins/3``."""
    for name, value in line.items():
        if name in COUNTED:
            yield name, float(len(value))
        elif name not in KEYS:
            yield from _inner(name, value)


def _inner(name: str, value: object) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _inner(f"{name}/{key}", inner)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _inner(f"{name}/{place}", inner)
    elif isinstance(value, int | float):
        yield name, float(value)


def write_csv(path: Path, found: Iterable[Entry]) -> int:
    """How many lines it became."""
    count = 0
    with writing(path) as file:
        text = TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for entry in found:
            writer.writerow(entry)
            count += 1
        text.detach()  # writes what is left; the file stays open
    return count


def write_parquet(path: Path, found: Iterable[Entry], group: int = 100_000) -> int:
    """How many lines it became; ``group`` of them are in memory at once."""
    arrow, parquet = _arrow()
    text, whole = arrow.string(), arrow.int64()
    kinds = (text, text, whole, whole, whole, text, arrow.float64())
    schema = arrow.schema(list(zip(COLUMNS, kinds, strict=True)))
    left, count = iter(found), 0
    with writing(path) as file, parquet.ParquetWriter(file, schema) as writer:
        while rows := list(islice(left, group)):
            columns = [arrow.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
            writer.write_table(arrow.Table.from_arrays(columns, schema=schema))
            count += len(rows)
    return count


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError(
            "--parquet needs pyarrow, which is not installed.  Add it: pip install -e '.[parquet]'.  Or write --csv."
        ) from error
    return pyarrow, parquet
