"""Filters, with numbers that can be checked in one's head, and the pipeline that they stand in."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass

import pytest
import torch
import toy

from protea import Prototypes, Scripted
from protea.config.experiment import experiment_from_table, experiment_to_toml
from protea.core.errors import ClientError, ConfigError, PayloadError
from protea.core.message import Named, nbytes
from protea.core.payload import Payload, pack, places_of
from protea.core.rng import Streams
from protea.core.weights import Weights
from protea.federation.jobs import Job, Reply
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.filters.base import Filter, Passage, arrive_all, leave_all
from protea.filters.clip import Clip
from protea.filters.quantize import Quantize
from protea.methods.fednh import BodyAndPrototypes
from protea.methods.fedpcl import PrototypesOfAll
from protea.methods.fedproto import FedProto
from protea.methods.fedsa import AnchorsAndMeans

LONG = Prototypes(torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), torch.tensor([2.0, 1.0, 0.0]))


def at(kind: type[Payload] = Prototypes, classes: int = 3, dim: int = 2) -> Passage:
    return Passage(0, 1, kind, classes, dim, Streams(1))


def test_long_class_vectors_are_shortened_and_others_are_left_alone():
    up = Clip(norm=1.0).leave(pack(LONG), at())
    torch.testing.assert_close(up["vectors"], torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    assert torch.equal(up["counts"], LONG.counts)
    again = Clip(norm=1.0).arrive(up, at())
    assert torch.equal(again["vectors"], up["vectors"])  # the server changes nothing that was shortened


def test_only_class_vectors_are_shortened_wherever_they_are():
    both = AnchorsAndMeans(LONG, LONG)
    assert places_of(Prototypes, AnchorsAndMeans, pack(both)) == ["anchors", "means"]
    assert places_of(Prototypes, AnchorsAndMeans, pack(AnchorsAndMeans(LONG, None))) == ["anchors"]
    many = PrototypesOfAll(LONG, {"0": LONG, "7": LONG})
    assert places_of(Prototypes, PrototypesOfAll, pack(many)) == ["mean", "of.0", "of.7"]
    weights = Weights({"head.weight": torch.full((3, 2), 9.0)})
    assert places_of(Prototypes, Weights, pack(weights)) == []
    assert torch.equal(Clip(1.0).leave(pack(weights), at(Weights))["tensors.head.weight"], torch.full((3, 2), 9.0))
    mixed = Clip(1.0).leave(pack(BodyAndPrototypes(weights, LONG)), at(BodyAndPrototypes))
    assert mixed["prototypes.vectors"].norm(dim=1).max() <= 1.0 + 1e-6
    assert mixed["body.tensors.head.weight"].max() == 9.0


@pytest.mark.parametrize(("to", "share", "error"), [("float16", 0.5, 2e-3), ("int8", 0.25, 4.0 / 254 + 1e-6)])
def test_quantized_numbers_take_less_and_come_back_nearly_the_same(to: str, share: float, error: float):
    wide = Prototypes(4 * torch.randn(3, 400, generator=torch.Generator().manual_seed(1)), torch.ones(3))
    filter = Quantize(to)  # type: ignore[arg-type]
    packed = pack(wide)
    sent = filter.leave(packed, at())
    vectors = nbytes(sent) - nbytes({"counts": packed["counts"]})
    back = filter.arrive(sent, at())
    assert back.keys() == packed.keys() and all(back[name].dtype == torch.float32 for name in back)
    scale = wide.vectors.abs().amax(1, keepdim=True) / 4
    assert ((back["vectors"] - wide.vectors).abs() <= error * torch.maximum(scale, wide.vectors.abs())).all()
    assert vectors == pytest.approx(share * nbytes({"v": wide.vectors}), rel=0.02)


def test_int8_rows_by_hand():
    sent = Quantize("int8").leave({"v": torch.tensor([[1.27, -0.5], [0.0, 0.0]])}, at())
    assert sent["v~int8"].tolist() == [[127, -50], [0, 0]]
    torch.testing.assert_close(sent["v~scale"], torch.tensor([[0.01], [0.0]]))
    back = Quantize("int8").arrive(sent, at())
    torch.testing.assert_close(back["v"], torch.tensor([[1.27, -0.5], [0.0, 0.0]]))


def test_whole_numbers_and_single_ones_are_sent_as_they_are():
    up = {"counts": torch.tensor([3, 4]), "loss": torch.tensor(0.5), "none": torch.zeros(0, 3), "row": torch.ones(3)}
    for to in ("float16", "int8"):
        filter = Quantize(to)  # type: ignore[arg-type]
        sent = filter.leave(up, at())
        assert sent["counts"].dtype == torch.int64 and sent["loss"].dtype == sent["row"].dtype == torch.float32
        back = filter.arrive(sent, at())
        assert back.keys() == up.keys() and back["none"].shape == (0, 3)


def test_what_half_floats_cannot_hold_is_the_clients_failure():
    with pytest.raises(ClientError, match=r"client 0, round 1: v holds numbers up to 1e\+05; float16 has none above"):
        Quantize().leave({"v": torch.tensor([[1e5]])}, at())


@pytest.mark.parametrize(
    ("up", "complaint"),
    [
        ({"v~int8": torch.ones(2, 2, dtype=torch.int8)}, "arrived without one scale for each of its rows"),
        ({"v~int8": torch.ones(2, 2, dtype=torch.int8), "v~scale": torch.ones(2)}, "without one scale"),
        ({"v~int8": torch.ones(2, 2), "v~scale": torch.ones(2, 1)}, "torch.float32; torch.int8 was expected"),
        ({"v~float16": torch.ones(2, 2)}, "torch.float32; torch.float16 was expected"),
    ],
)
def test_what_quantize_cannot_have_sent_is_refused(up: Named, complaint: str):
    with pytest.raises(PayloadError, match=complaint):
        Quantize().arrive(up, at())


@dataclass(frozen=True)
class Add(Filter):
    number: float = 1.0

    def leave(self, up: Named, at: Passage) -> Named:
        return {name: tensor + self.number for name, tensor in up.items()}

    def arrive(self, up: Named, at: Passage) -> Named:
        return {name: tensor - self.number for name, tensor in up.items()}


@dataclass(frozen=True)
class Double(Filter):
    def leave(self, up: Named, at: Passage) -> Named:
        return {name: tensor * 2 for name, tensor in up.items()}

    def arrive(self, up: Named, at: Passage) -> Named:
        return {name: tensor / 2 for name, tensor in up.items()}


@dataclass(frozen=True)
class Draws(Filter):
    def leave(self, up: Named, at: Passage) -> Named:
        return {"drawn": torch.rand(3, generator=at.rng.generator("noise"))}


def test_filters_are_undone_in_reverse():
    up = {"v": torch.tensor([3.0])}
    sent = leave_all([Add(1.0), Double()], up, at())
    assert sent["v"].item() == 8.0  # (3 + 1) * 2
    assert arrive_all([Add(1.0), Double()], sent, at())["v"].item() == 3.0


def test_two_filters_of_a_kind_draw_differently_and_the_same_again():
    first, second = (leave_all([Draws()] * count, {}, at())["drawn"] for count in (1, 2))
    assert not torch.equal(first, second) and torch.equal(first, leave_all([Draws()], {}, at())["drawn"])


def test_the_server_counts_bytes_as_sent_and_aggregates_what_was_meant():
    def script(job: Job) -> Named:
        up = Prototypes(torch.full((toy.CLASSES, toy.DIM), float(job.client)), torch.ones(toy.CLASSES))
        passage = Passage(job.client, job.round, Prototypes, toy.CLASSES, toy.DIM, Streams(0))
        return leave_all(filters, pack(up), passage)

    filters, server = (Clip(norm=4.0), Quantize("int8")), toy.server()

    engine = Scripted(lambda job: Reply(job.client, job.round, script(job), 1))
    plan = FederationPlan(clients=3, rounds=1, filters=filters)
    (record,) = Federation(FedProto(), engine, server, plan).run()
    each = toy.CLASSES * toy.DIM + 4 * toy.CLASSES + 4 * toy.CLASSES  # int8 vectors, a scale for each, counts
    assert record.bytes_up == 3 * each
    # Client 2 has vectors of norm 8, which become 4: ones.  The mean of 0, 1 and 1.
    torch.testing.assert_close(
        server.memory["prototypes"].vectors, torch.full((toy.CLASSES, toy.DIM), 2 / 3), atol=0.01, rtol=0
    )


def test_what_a_filter_cannot_undo_is_a_refused_upload():
    engine = Scripted(lambda job: Prototypes(torch.zeros(toy.CLASSES, toy.DIM), torch.ones(toy.CLASSES)))
    plan = FederationPlan(clients=2, rounds=1, filters=(Quantize("int8"),), failures="skip", min_replies=0)
    server = toy.server()
    (record,) = Federation(FedProto(), engine, server, plan).run()
    assert record.refused == [] and "prototypes" in server.memory  # plain tensors are what a filter leaves alone

    spoiled = Scripted(lambda job: Reply(job.client, job.round, {"v~float16": torch.ones(1)}, 1))
    (record,) = Federation(FedProto(), spoiled, toy.server(), plan).run()
    assert record.refused == [0, 1] and "torch.float16 was expected" in record.failures[0]


def test_filters_are_written_as_tables_and_read_back():
    table = {"filters": [{"name": "clip", "norm": 2.0}, "quantize", {"name": "quantize", "to": "int8"}]}
    experiment = experiment_from_table(table)
    assert experiment.filters == (Clip(2.0), Quantize(), Quantize("int8"))
    assert experiment_from_table(tomllib.loads(experiment_to_toml(experiment))) == experiment


@pytest.mark.parametrize(
    ("filters", "complaint"),
    [
        ("clip", r"filters must be a list; found 'clip'.  In a file, write each as \[\[filters\]\] with its name"),
        ([{"norm": 1.0}], r'filters\[0\] must say which one by name = "..."'),
        (["clipp"], r"filters\[0\].name: 'clipp' is not among the filters.  Did you mean clip\?"),
        ([{"name": "clip", "norm": 0.0}], r"filters\[0\].norm = 0.0: input should be greater than 0"),
        ([{"name": "quantize", "too": "int8"}], r"filters\[0\].too is not a setting of quantize"),
    ],
)
def test_filters_that_cannot_be_are_refused_before_any_work(filters: object, complaint: str):
    with pytest.raises(ConfigError, match=complaint):
        experiment_from_table({"filters": filters})
