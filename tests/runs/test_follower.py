"""A run that goes on is read again and again, and only what is new."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from answered import answered_round, answered_run

from protea.core.errors import ConfigError
from protea.methods.fedproto import FedProto
from protea.runs.directory import RunDirectory
from protea.runs.follower import RunFollower
from protea.runs.reader import RunReader

ANSWERS = {0: "1101", 1: "10"}


def going(path: Path, rounds: int) -> RunDirectory:
    """A run that is in the round after these."""
    answered_run(path, FedProto(), *([ANSWERS] * rounds))
    (path / "summary.json").unlink()
    return RunDirectory(path)


@pytest.mark.parametrize("clients", [True, False])
def test_the_run_is_that_of_the_reader_after_every_step(tmp_path: Path, clients: bool) -> None:
    run = going(tmp_path / "run", 1)
    follower = RunFollower(run.path, clients=clients)
    for number in (2, 3, 4):
        assert follower.read() == RunReader.read(run.path, clients=clients)
        assert follower.read() is follower.read()
        run.append(answered_round(number, ANSWERS).lines())
    run.finish({"method": "fedproto"})
    assert follower.read() == RunReader.read(run.path, clients=clients)
    assert [record.round for record in follower.read().rounds] == [1, 2, 3, 4]


def test_lines_that_are_still_written_come_with_the_next_look(tmp_path: Path) -> None:
    run = going(tmp_path / "run", 1)
    follower = RunFollower(run.path)
    follower.read()
    before = run.metrics_path.read_bytes()
    run.append(answered_round(2, ANSWERS).lines())
    whole = run.metrics_path.read_bytes()
    for end in range(len(before), len(whole), 97):  # also between a round's line and those of its clients
        run.metrics_path.write_bytes(whole[:end])
        assert follower.read() == RunReader.read(run.path)
    run.metrics_path.write_bytes(whole)
    os.utime(run.metrics_path)
    assert len(follower.read().rounds[-1].clients) == 2


def test_a_run_that_was_cut_back_is_read_anew(tmp_path: Path) -> None:
    run = going(tmp_path / "run", 3)
    follower = RunFollower(run.path)
    assert len(follower.read().rounds) == 3
    size = run.metrics_path.read_bytes().index(b'{"kind": "round", "accuracy"', 200)
    run.cut(size, 0)
    assert follower.read() == RunReader.read(run.path)


def test_what_is_no_run_is_refused_and_may_become_one(tmp_path: Path) -> None:
    follower = RunFollower(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"no config\.toml"):
        follower.read()
    run = going(tmp_path / "run", 1)
    good = run.metrics_path.read_bytes()
    run.metrics_path.write_bytes(b"not json\n")
    with pytest.raises(ConfigError, match="cannot be read as a run"):
        follower.read()
    run.metrics_path.write_bytes(good)
    assert len(follower.read().rounds) == 1
