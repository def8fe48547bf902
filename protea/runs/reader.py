"""A run as its directory tells it: plain values, read without torch, also while it goes on."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from protea.config.words import label_with
from protea.core.errors import ConfigError, nearest
from protea.federation.record import ClientRecord, DataRecord, Record, read_metrics
from protea.runs.directory import RunDirectory


@dataclass(frozen=True)
class RunReader:
    """One run: its settings, its rounds so far, and its summary if it has ended."""

    path: Path
    config: dict[str, Any]
    data: DataRecord = field(default_factory=DataRecord)
    rounds: list[Record] = field(default_factory=list)
    summary: dict[str, Any] | None = None  # None until it has ended

    @classmethod
    def read(cls, path: Path | str, *, clients: bool = True) -> RunReader:
        """The run in a directory; without ``clients``, the rounds have no records of single clients, which are many."""
        run = RunDirectory.open(Path(path))
        try:
            data, rounds = read_metrics(run.metrics(), clients)
            config = tomllib.loads((run.path / "config.toml").read_text(encoding="utf-8"))
            summary = run.summary()
        except (OSError, ValueError, KeyError, IndexError, RecursionError) as error:
            raise ConfigError(f"{path} cannot be read as a run: {error!r}.") from error
        return cls(run.path, config, data, rounds, summary)

    @property
    def method(self) -> str:
        """``fedproto``, ``fedproto@htfllib``, ``fedproto alone``: as the run's summary has it."""
        if self.summary is not None:
            return str(self.summary["method"])
        method = self.config["method"]
        name = str(method if isinstance(method, str) else method["name"])
        attacked = self.config.get("attack", {}).get("kind", "none") != "none"
        return label_with(name, self.alone, self.config.get("protect", False), attacked)

    @property
    def seed(self) -> int:
        """The seed of all its draws."""
        return int(self.config.get("seed", 1))

    @property
    def scored(self) -> list[Record]:
        """The rounds in which clients were evaluated."""
        return [record for record in self.rounds if record.test]

    @property
    def ended(self) -> dict[str, Any]:
        """The summary of a run that has ended; empty of one that has not."""
        return self.summary or {}

    @property
    def partition(self) -> str:
        """A checksum of who has which samples; where nobody knows, one that no other run has."""
        return self.split or f"of {self.path}"

    @cached_property
    def split(self) -> str | None:
        """A checksum of who has which samples, None in a federation over a network, where nobody knows."""
        return split_mark(self.path)

    @property
    def alone(self) -> bool:
        """Whether every client is in a federation of one."""
        return bool(self.config.get("alone", False))

    def clients_in(self, rounds: Iterable[int]) -> list[ClientRecord]:
        """Read the clients' records of some rounds, which need not be in memory."""
        wanted = set(rounds)
        return [
            ClientRecord.read(line)
            for line in RunDirectory(self.path).metrics()
            if line["kind"] == "client" and line["round"] in wanted
        ]


def names_in(directory: Path) -> dict[int, str]:
    """Read what the clients of a run are called, by their numbers; those that have only a number are left out."""
    first = next(iter(RunDirectory(directory).metrics()), None)
    data = DataRecord() if first is None or first["kind"] != "data" else DataRecord.read(first)
    return {client.client: client.site for client in data.clients if client.site}


def client_number(directory: Path, client: str) -> int:
    """Give the number of a client that is called by it, or by its name."""
    names = {name: number for number, name in names_in(RunDirectory.open(directory).path).items()}
    if client in names:
        return names[client]
    if re.fullmatch(r"-?[0-9]{1,18}", client):
        return int(client)
    known = nearest(client, names) if names else "The clients of this run have numbers and no names."
    raise ConfigError(f"--client {client}: no client is called so.  {known}")


def client_words(directory: Path, client: int) -> str:
    """Call a client by its name and number, such as ``Client north (0)``."""
    name = names_in(directory).get(client)
    return f"Client {client}" if name is None else f"Client {name} ({client})"


def split_mark(directory: Path) -> str | None:
    """Compute a checksum of who has which samples: equal for equal splits of the same data; None where nobody knows."""
    file = directory / "partition.json"
    if not file.exists():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    parts = {name: content[name] for name in ("samples", "clients", "public", "test")}
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).hexdigest()


def unwell(groups: Mapping[str, Sequence[RunReader]]) -> list[str]:
    """What runs warned of at their end: once for each group and kind of doubt, in the words of the first run."""
    found = []
    for name, runs in groups.items():
        doubts: dict[str, list[RunReader]] = {}
        for run in runs:
            for kind in run.ended.get("warnings", {}):
                doubts.setdefault(kind, []).append(run)
        for kind, doubtful in doubts.items():
            seeds = ", ".join(map(str, sorted(run.seed for run in doubtful)))
            texts = [run.ended["warnings"][kind] for run in doubtful]
            whose = "" if len(set(texts)) == 1 else f" (Numbers of seed {doubtful[0].seed}.)"
            found.append(f"{name}, seed{'s' if len(doubtful) > 1 else ''} {seeds}: {texts[0]}{whose}")
    return found


def find(paths: Iterable[Path | str]) -> list[Path]:
    """Run directories among the paths and one or two levels below them, each once, in order."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise ConfigError(f"{path} is not a folder.  Give a run directory, or a folder that holds some.")
        inside = [config.parent for level in ("", "*/", "*/*/") for config in sorted(path.glob(f"{level}config.toml"))]
        if not inside:
            raise ConfigError(f"{path} holds no run: there is no config.toml in it or below.")
        found |= dict.fromkeys(inside)
    return list(found)
