"""What makes clients, and what a builder need not say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toy

from protea import Prototypes
from protea.clients.builder import Builder, FunctionBuilder
from protea.core.message import Named
from protea.core.rng import Streams
from protea.federation.jobs import Job
from protea.filters.base import Filter, Passage
from protea.methods.fedproto import FedProto


def test_a_function_is_a_builder_with_all_defaults(tmp_path: Path):
    made = FunctionBuilder(toy.build)
    assert made(2, Streams(1)).id == 2 and made.size(2) == 1 and made.device == "cpu"
    assert made.lend(tmp_path) is made and made.moved(tmp_path) is made and not list(tmp_path.iterdir())


def test_a_builder_must_say_how_a_client_is_made():
    with pytest.raises(TypeError, match="abstract"):
        Builder()  # type: ignore[abstract]


class Lent(FunctionBuilder):
    """Says where its data are."""

    def lend(self, folder: Path) -> Builder:
        (folder / "data").touch()
        return FunctionBuilder(toy.build)


def test_processes_share_the_memory_and_the_data_of_a_plan(tmp_path: Path):
    plan = toy.plan(FedProto(), Lent(toy.build), memory=900)
    sent = plan.for_processes(tmp_path, 3)
    assert (sent.memory, sent.folder) == (300, tmp_path) and (tmp_path / "data").exists()
    assert replace(sent, builder=plan.builder, memory=900, folder=None) == plan
    assert sent.moved(tmp_path / "there") == replace(sent, folder=tmp_path / "there")


class Doubles(Filter):
    def leave(self, up: Named, at: Passage) -> Named:
        assert (at.client, at.round, at.kind, at.classes, at.dim) == (1, 3, Prototypes, toy.CLASSES, toy.DIM)
        assert at.rng == Streams(7).at("client", 1, "round", 3, "filter", 0)
        return {**up, "vectors": 2 * up["vectors"]}


def test_an_upload_goes_through_the_filters_and_nothing_else_does():
    plain = toy.worker(FedProto())
    filtered = toy.worker(FedProto(), filters=(Doubles(),))
    for job in (Job("train", 3, 1), Job("evaluate", 3, 1)):
        one, two = plain.run(job), filtered.run(job)
        assert one.error is two.error is None
        expected = {name: 2 * t if (job.task, name) == ("train", "vectors") else t for name, t in one.up.items()}
        assert expected.keys() == two.up.keys() and all(torch.equal(expected[name], two.up[name]) for name in expected)
