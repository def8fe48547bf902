"""A run that goes on, read again and again: each time only what is new in its files."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from protea.core.errors import ConfigError
from protea.federation.record import DataRecord, Record, read_metrics
from protea.runs.directory import RunDirectory
from protea.runs.reader import RunReader

Signature = tuple[int, int, int] | None  # inode, size and time of change of a file; None where there is none

CLIENT = b'{"kind": "client"'  # how the line of a client begins


class RunFollower:
    """Reads a run directory, which another process may be writing to; it never writes."""

    def __init__(self, path: Path, *, clients: bool = True) -> None:
        self.path, self.clients = path, clients
        self._marks: dict[str, Signature] = {}
        self._config: dict[str, Any] = {}
        self._summary: dict[str, Any] | None = None
        self._begin()
        self._found: RunReader | None = None

    def _begin(self) -> None:
        """Forget what was read of the metrics."""
        self._data = DataRecord()
        self._ended: list[Record] = []  # rounds whose lines are complete
        self._latest: list[Record] = []  # the newest one, whose clients may still be written
        self._offset = 0  # of the newest round's line in the file

    def read(self) -> RunReader:
        """The run as it is now; the same object as before if nothing has changed.

        Raise :class:`ConfigError` if the files are not those of a run.
        """
        directory = RunDirectory.open(self.path)
        try:
            changed = [name for name in ("config.toml", "metrics.jsonl", "summary.json") if self._is_new(name)]
            if self._found is not None and not changed:
                return self._found
            if "config.toml" in changed:
                self._config = tomllib.loads(directory.config_path.read_text(encoding="utf-8"))
            if "metrics.jsonl" in changed:
                self._read_metrics(directory.metrics_path)
            if "summary.json" in changed:
                self._summary = directory.summary()
        except (OSError, ValueError, KeyError, IndexError) as error:
            self._marks.clear()
            self._begin()
            raise ConfigError(f"{self.path} cannot be read as a run: {error!r}.") from error
        self._found = RunReader(self.path, self._config, self._data, [*self._ended, *self._latest], self._summary)
        return self._found

    def _is_new(self, name: str) -> bool:
        """Tell whether a file was written since it was last asked for; metrics that were cut are read anew."""
        mark, before = signature(self.path / name), self._marks.get(name)
        if name == "metrics.jsonl" and (mark is None or before is None or mark[0] != before[0] or mark[1] < before[1]):
            self._begin()
        known = name in self._marks
        self._marks[name] = mark
        return not known or mark != before

    def _read_metrics(self, path: Path) -> None:
        """Read from the newest round's line to the last complete line."""
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
        parsed, place, newest = [], self._offset, None
        for line in lines:
            if self.clients or not line.startswith(CLIENT):
                parsed.append(json.loads(line))
                if parsed[-1]["kind"] == "round":
                    newest = place
            place += len(line)
        data, records = read_metrics(parsed, self.clients)
        if any(line["kind"] == "data" for line in parsed):
            self._data = data
        if newest is not None:
            self._ended += records[:-1]
            self._latest = records[-1:]
            self._offset = newest


def signature(path: Path) -> Signature:
    """What changes when a file is written."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
