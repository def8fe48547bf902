"""Pulls that do nothing are named, others are not."""

from __future__ import annotations

from pathlib import Path

from answered import answered_run

from protea.methods.fedproto import FedProto
from protea.methods.local import Local
from protea.runs.inert import inert_pulls
from protea.runs.reader import RunReader

SAME = {0: "1101", 1: "0111", 2: "1111"}
OTHER = {0: "1000", 1: "0111", 2: "0011"}


def told(
    folder: Path, answers: dict[int, str], pull: float = 1.0, clients: bool = True, strength: float | None = None
) -> list[str]:
    answered_run(folder / "local", Local(), SAME)
    answered_run(folder / "fedproto", FedProto(pull=pull), answers, pull=strength)
    return inert_pulls([RunReader.read(folder / name, clients=clients) for name in ("local", "fedproto")])


def test_heads_that_are_locals_are_named_with_the_pull(tmp_path: Path):
    [sentence] = told(tmp_path, SAME, pull=0.1)
    assert sentence.startswith("fedproto, seed 1: the heads of 100% of the clients") and "than 0.1" in sentence


def test_clients_are_read_from_disk_where_they_are_not_in_memory(tmp_path: Path):
    assert len(told(tmp_path, SAME, clients=False)) == 1


def test_other_heads_and_no_pull_are_not_named(tmp_path: Path):
    assert told(tmp_path / "other", OTHER) == []
    assert told(tmp_path / "none", SAME, pull=0.0) == []


def test_the_gradient_is_told_and_one_that_is_not_small_is_no_inert_pull(tmp_path: Path):
    [sentence] = told(tmp_path / "faint", SAME, strength=0.004)
    assert "Its gradient is 0.004 times that of cross entropy." in sentence
    assert told(tmp_path / "strong", SAME, strength=0.5) == []
