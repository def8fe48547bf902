"""All numbers of runs in long form, one per row, for pandas and other tools."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any

from protea.core.errors import ConfigError
from protea.core.files import writing
from protea.core.shell import install_hint
from protea.federation.record import Line
from protea.runs.reader import RunReader, find
from protea.runs.settings_diff import labels

COLUMNS = ("run", "method", "seed", "round", "client", "name", "value")
ExportRow = tuple[str, str, int, int, int | None, str, float]

KEYS = ("kind", "round", "client")  # of a line; they are in columns of their own
COUNTED = ("participants", "failures")  # of a round's line; exported is how many there were


def entries(paths: Iterable[Path | str]) -> Iterator[ExportRow]:
    """Every number of every round and client; ``client`` is None where the number is of the whole round.

    Runs are read one at a time: together they may be large.
    """
    found = find(paths)
    for path, label in zip(found, labels([RunReader.read(each, clients=False) for each in found]), strict=True):
        run = RunReader.read(path)
        rounds = (record.line() for record in run.rounds)
        clients = (each.line(record.round) for record in run.rounds for each in record.clients)
        for line in chain(rounds, clients):
            for name, value in numbers(line):
                yield str(path), label, run.seed, line["round"], line.get("client"), name, value


def numbers(line: Line) -> Iterator[tuple[str, float]]:
    """The numbers in a line of the metrics by their path in it: ``test/head/weighted``, ``geometry/margins/3``."""
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


def write_csv(path: Path, found: Iterable[ExportRow]) -> int:
    """Write the rows to a CSV file; the answer is how many there were."""
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


def write_parquet(path: Path, found: Iterable[ExportRow], group: int = 100_000) -> int:
    """Write the rows to a Parquet file; the answer is how many there were.  ``group`` of them are in memory at once."""
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
            f"--parquet needs pyarrow, which is not installed.  Add it: {install_hint('parquet')}.  Or write --csv."
        ) from error
    return pyarrow, parquet
