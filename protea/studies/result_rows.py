"""Results of many runs as one table, a row for each evaluated round: the data behind a leaderboard."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from protea.config import registry
from protea.core.errors import ConfigError
from protea.core.files import writing
from protea.core.shell import install_hint
from protea.federation.record import Record
from protea.runs.reader import RunReader, find
from protea.runs.settings_diff import shown
from protea.runs.steps import mean_steps, steps_by_client

ResultKey = tuple[str, str, int, int]  # what names a row: setting, method, seed, round


@dataclass(frozen=True)
class ResultRow:
    """One evaluated round of one run.  Accuracies are in percent; None where a run does not have the number."""

    setting: str  # data, clients, partition: runs with the same setting compare
    method: str  # with its variant, the fields that were changed, and "alone" for a federation of one
    seed: int
    round: int
    steps: int | None = None  # SGD steps of a client on its own samples until this round, mean over clients
    own: float | None = None  # on the clients' own test samples, by the method's own rule, every sample counting once
    blend: float | None = None  # the same, by the blend
    worst: float | None = None  # of the client with the lowest, by the method's own rule
    ensemble: float | None = None  # of all clients together on the shared test set, by the method's own rule
    ensemble_blend: float | None = None
    single: float | None = None  # of a client by itself on the shared test set, by its own rule, mean over clients
    server: float | None = None  # of the server's model on the shared test set
    teacher: float | None = None  # of what clients together tell the server, on the public samples
    margin: float | None = None  # of the global prototypes, in percent of the widest client's, mean over classes
    server_loss: float | None = None  # of what the server trains, where it trains; no percentage
    loss_bound: float | None = None  # what that loss cannot fall below with this round's uploads
    bytes: int | None = None  # of payload, both ways, until this round
    seconds: float | None = None  # of training, server and evaluation, until this round
    commit: str | None = None  # of the code that made it

    @property
    def key(self) -> ResultKey:
        """What names the row."""
        return self.setting, self.method, self.seed, self.round


PARTED_BY = ("kind", "alpha", "classes_per_client")  # what a setting says of its partition
NAMES = tuple(each.name for each in fields(ResultRow))


def rows_of(paths: Iterable[Path | str]) -> list[ResultRow]:
    """Read a row for every evaluated round of the finished runs in these folders."""
    readers = [RunReader.read(path) for path in find(paths)]
    return [row for run in readers if run.summary is not None for row in run_rows(run)]


def run_rows(run: RunReader) -> list[ResultRow]:
    """Read a row for every evaluated round of a run."""
    setting, method, commit = setting_of(run), method_of(run), commit_of(run.path)
    by_client = steps_by_client(run.config, run.data)
    seconds, found = 0.0, []
    for place, record in enumerate(run.rounds, 1):
        seconds += sum(record.cost.seconds.values())
        if record.test:
            found.append(
                ResultRow(
                    setting,
                    method,
                    run.seed,
                    record.round,
                    steps=mean_steps(by_client, run.rounds[:place]),
                    bytes=record.total_up + record.total_down,
                    seconds=round(seconds, 2),
                    server_loss=record.values.get("server_loss"),
                    loss_bound=record.values.get("server_loss_bound"),
                    commit=commit,
                    **accuracies(record),
                )
            )
    return found


def accuracies(record: Record) -> dict[str, float | None]:
    """Return the accuracies of a round, and its margin, in percent, by the name of their column."""
    clients = [each.accuracy for each in record.clients if each.accuracy is not None]
    found = {
        "own": record.accuracy,
        "blend": record.test["blend"].weighted if "blend" in record.test else None,
        "worst": min(clients, default=None),
        "ensemble": record.shared["method"].ensemble if "method" in record.shared else None,
        "ensemble_blend": record.shared["blend"].ensemble if "blend" in record.shared else None,
        "single": record.shared["method"].clients if "method" in record.shared else None,
        "server": record.server.get("head"),
        "teacher": record.values.get("teacher_accuracy"),
        "margin": None if record.geometry is None else record.geometry.shrinkage,
    }
    return {name: None if value is None else round(100 * value, 2) for name, value in found.items()}


def setting_of(run: RunReader) -> str:
    """Describe what a run's method had to learn: ``cifar10, 3,000 samples, 10 clients, dirichlet 0.1, 15 rounds``."""
    config = run.config
    data, part = config["data"], config["data"].get("partition", {})
    source = data.get("source", {})
    name = Path(str(source["path"])).stem if "path" in source else str(source.get("kind", "data"))
    words = [name]
    words += [f"{data['samples']:,} samples"] if data.get("samples") else []
    words += [f"{config['clients']} clients"] if "clients" in config else []
    words += (
        [" ".join(str(part[each]) for each in ("kind", "alpha", "classes_per_client") if each in part)] if part else []
    )
    return ", ".join([*words, f"{config.get('rounds', len(run.rounds))} rounds"])


def method_of(run: RunReader) -> str:
    """Name a run's method, its variant, and the fields that are not as that has them: ``fedproto pull=10 alone``.

    A variant of which a further field was changed keeps its name: ``fedprotokd@zeta public_epochs=1``.
    """
    table, alone = dict(run.config["method"]), " alone" if run.alone else ""
    name, method = run.method.removesuffix(alone), registry.find("methods", str(table.pop("name")))
    fields = variant_of(method.variants, table) if "@" not in name else name.partition("@")[2]
    usual = vars(method(**method.variants.get(fields, {})))
    label = f"{name.partition('@')[0]}@{fields}" if fields else name
    changed = [f"{key}={shown(value)}" for key, value in table.items() if key in usual and usual[key] != value]
    return " ".join([label, *changed]) + alone


def variant_of(variants: Mapping[str, Mapping[str, Any]], found: Mapping[str, Any]) -> str:
    """Return the variant with most fields, all of which a method has; "" where there is none."""
    held = {name: len(changed) for name, changed in variants.items() if changed and changed.items() <= found.items()}
    return max(held, key=lambda name: held[name], default="")


def commit_of(path: Path) -> str | None:
    """Return the commit of the code that made a run, shortened; None where nobody knows."""
    file = path / "environment.json"
    found = json.loads(file.read_text(encoding="utf-8")).get("commit") if file.is_file() else None
    return str(found)[:10] if found else None


def merged(*tables: Iterable[ResultRow]) -> list[ResultRow]:
    """Join tables, each row once, a later in place of an earlier one, in the order of what names them."""
    found = {row.key: row for table in tables for row in table}
    return [found[key] for key in sorted(found)]


def read_rows(path: Path) -> list[ResultRow]:
    """Read the rows of a Parquet file."""
    _, parquet = _arrow()
    try:
        known = set(parquet.read_schema(path).names)  # a file of an earlier version has fewer
        table = parquet.read_table(path, columns=[name for name in NAMES if name in known]).to_pylist()
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{path} cannot be read as a table of results: {str(error).splitlines()[0]}  "
            "Give the Parquet file that protea reproduce --leaderboard wrote."
        ) from error
    if not {"setting", "method", "seed", "round"} <= known:
        raise ConfigError(f"{path} has no columns setting, method, seed and round, so it is no table of results.")
    return [ResultRow(**row) for row in table]


def write_rows(path: Path, rows: Sequence[ResultRow]) -> None:
    """Write rows to a Parquet file."""
    arrow, parquet = _arrow()
    text, whole, number = arrow.string(), arrow.int64(), arrow.float64()
    kinds = {"setting": text, "method": text, "commit": text}
    kinds |= dict.fromkeys(("seed", "round", "steps", "bytes"), whole)
    schema = arrow.schema([(name, kinds.get(name, number)) for name in NAMES])
    with writing(path) as file:
        parquet.write_table(arrow.Table.from_pylist([asdict(row) for row in rows], schema), file, compression="zstd")


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            f"Tables of results are Parquet files, and pyarrow is not installed.  Type: {install_hint('parquet')}"
        ) from None
    return pyarrow, pyarrow.parquet
