"""Plays the rounds of a run, and writes each of them down before the next begins."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from protea.core.errors import ConfigError
from protea.core.message import to_bytes, to_half
from protea.federation.jobs import Watch
from protea.federation.loop import Federation
from protea.federation.record import Record
from protea.runs import checkpoint
from protea.runs.directory import RunDirectory
from protea.runs.setup import RunSetup


class Driver:
    """The round loop of a run and the directory that it is written to, both open."""

    def __init__(self, setup: RunSetup, directory: RunDirectory | None, watch: Watch) -> None:
        """Begin a run, or go on with the one in the directory from its newest checkpoint."""
        self.setup, self.directory = setup, directory
        start = None
        with ExitStack() as opened:
            if directory is not None and directory.begun:
                opened.enter_context(directory.held())
                if directory.ended():
                    raise ConfigError(f"{directory.path} has ended meanwhile: another process went on with it.")
                directory.check()
                start = checkpoint.newest(directory.checkpoints)
            setup.prepare(directory if start is not None else None)
            if directory is not None and not directory.begun:
                RunDirectory.create(directory.path, setup.config(), setup.environment())
                opened.enter_context(directory.held())
            opened.callback(setup.close)
            self.loop: Federation = setup.federation(watch)
            self.records: list[Record] = [] if directory is None else self._recall(directory, start)
            self._opened = opened.pop_all()

    def _recall(self, directory: RunDirectory, start: Path | None) -> list[Record]:
        """Put loop and directory back to the checkpoint ``start``, or to the beginning; the rounds until there."""
        if start is not None:
            checkpoint.load(start, self.loop)
        with directory.writing():
            checkpoint.clear(directory.checkpoints, self.setup.checkpoint.keep)
            directory.cut(checkpoint.metrics_size(start) if start else 0, self.loop.server.round)
            if start is None:
                self.setup.keep(directory)
                directory.append([self.setup.describe()])
        records = Record.read(directory.metrics())
        self.loop.recall(records)
        return records

    @property
    def done(self) -> bool:
        """Whether all rounds were played that can be: those planned, or until every privacy budget is spent."""
        return self.loop.done

    def play_round(self) -> Record:
        """Play one round and write it down; the checkpoint last, since it vouches for the rest."""
        record = self.loop.play_round()
        self.records.append(record)
        if self.directory is not None:
            with self.directory.writing():
                self.directory.append(record.lines())
                if self.setup.evaluation.snapshot_due(record.round, self.setup.rounds):
                    self.directory.keep_snapshot(record.round, to_bytes(to_half(self.loop.look())))
            if record.round % self.setup.checkpoint.every == 0 or self.done:
                self.save()
        return record

    def save(self) -> None:
        """Write a checkpoint of the last round, unless there is one."""
        if self.directory is not None and not checkpoint.is_of(self.directory.checkpoints, self.loop.server.round):
            with self.directory.writing():
                checkpoint.save(self.directory.checkpoints, self.loop, self.setup.checkpoint.keep)

    def end(self) -> dict[str, Any]:
        """Write the summary, with which the run counts as ended."""
        summary = self.setup.summary(self.records)
        self.setup.end()
        if self.directory is not None:
            with self.directory.writing():
                self.directory.finish(summary)
        return summary

    def close(self) -> None:
        """Give back processes, files and the lock on the directory."""
        self._opened.close()
