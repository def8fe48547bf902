"""All runs in some folders, looked at again and again; whoever waits is told when something is new."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from protea.core.errors import ConfigError
from protea.runs.follower import RunFollower, Signature, signature
from protea.runs.reader import RunReader
from protea.watch.places import federation_of, mark_of, name_of, run_paths, sweep_of
from protea.watch.rows import row

Plain = dict[str, Any]

PAUSE = 0.5  # seconds between two looks
WRITTEN = ("config.toml", "metrics.jsonl", "summary.json", "error.txt", "prototypes")  # files of a run that are asked


class Collection:
    """The runs in some folders, without the records of their clients; ``version`` grows when anything is new."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = list(folders)
        self.version = 0
        self.rows: dict[str, Plain] = {}  # by mark of the run, with the version in which each last changed
        self.places: list[Plain] = []  # sweeps and federations
        self.runs: dict[str, RunReader] = {}
        self.news = threading.Condition()
        self._followers: dict[Path, RunFollower] = {}
        self._seen: dict[Path, tuple[Signature, ...]] = {}
        self._stop = threading.Event()
        self._used = threading.Lock()  # by the one look at a time

    def look(self) -> None:
        """Read what is new in the folders, and wake those who wait if something is."""
        with self._used:
            rows, runs = {}, {}
            for path in run_paths(self.folders):
                mark = mark_of(path)
                marks = tuple(signature(path / name) for name in WRITTEN)
                rows[mark], run = self._look_at(path, marks)
                self._seen[path] = marks
                if run is not None:
                    runs[mark] = run
            places = self._look_around([path.parent for path in self._followers])
            with self.news:
                changed = [mark for mark, found in rows.items() if stripped(self.rows.get(mark)) != found]
                if changed or places != self.places or self.rows.keys() != rows.keys():
                    self.version += 1
                    versions = {mark: self.version if mark in changed else self.rows[mark]["version"] for mark in rows}
                    self.rows = {mark: {**found, "version": versions[mark]} for mark, found in rows.items()}
                    self.places, self.runs = places, runs
                    self.news.notify_all()

    def _look_at(self, path: Path, marks: tuple[Signature, ...]) -> tuple[Plain, RunReader | None]:
        follower = self._followers.setdefault(path, RunFollower(path, clients=False))
        told = {"name": name_of(path, self.folders), "path": str(path), "snapshots": marks[-1] and marks[-1][2]}
        error = path / "error.txt"
        try:
            run = follower.read()
            failed = error.read_text(encoding="utf-8", errors="replace")[-500:] if error.is_file() else None
            times = [mark[2] for mark in marks if mark is not None]
            return {**told, **row(run, max(times) / 1e9, failed)}, run
        except (ConfigError, OSError, KeyError, TypeError, ValueError) as trouble:
            return {**told, "state": "unreadable", "error": str(trouble)[:500], "warnings": []}, None

    def _look_around(self, parents: Sequence[Path]) -> list[Plain]:
        found = []
        for folder in dict.fromkeys([*self.folders, *parents]):
            told = sweep_of(folder) or federation_of(folder)
            if told is not None:
                inside = [mark_of(path) for path in self._followers if path.parent == folder]
                found.append({"name": folder.resolve().name, "path": str(folder), "runs": inside, **told})
        return found

    def since(self, version: int, seconds: float) -> int:
        """Wait until there is a newer version than one, at most so long; return the newest."""
        with self.news:
            self.news.wait_for(lambda: self.version > version or self._stop.is_set(), seconds)
            return self.version

    def news_since(self, version: int) -> Plain:
        """All rows that changed after a version, the marks of all runs in order, and sweeps and federations."""
        with self.news:
            rows = {mark: each for mark, each in self.rows.items() if each["version"] > version}
            return {"version": self.version, "order": list(self.rows), "rows": rows, "places": self.places}

    def start(self, failed: Callable[[Exception], None]) -> None:
        """Look again and again, in a thread of its own, until :meth:`stop`."""

        def follow() -> None:
            while not self._stop.wait(PAUSE):
                try:
                    self.look()
                except Exception as error:  # the page goes on with what it has
                    failed(error)

        threading.Thread(target=follow, name="protea-watch", daemon=True).start()

    def stop(self) -> None:
        """End the thread, and wake those who wait."""
        self._stop.set()
        with self.news:
            self.news.notify_all()

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stop.is_set()


def stripped(row: Plain | None) -> Plain | None:
    """A row without the version in which it last changed."""
    return None if row is None else {name: value for name, value in row.items() if name != "version"}
