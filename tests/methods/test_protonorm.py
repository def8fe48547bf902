from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import toy
from toy import same

from protea import Prototypes, Upload
from protea.core.rng import Streams
from protea.engines.inline import Inline
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.methods.fedproto import FedProto
from protea.methods.local import Local
from protea.methods.protonorm import ProtoNorm


def prototypes(vectors: list[list[float]], counts: list[float]) -> Prototypes:
    return Prototypes(torch.tensor(vectors), torch.tensor(counts))


def together(method: ProtoNorm, *rounds: list[Prototypes]) -> Prototypes:
    """What the server has after these rounds."""
    server = toy.server()
    for parts in rounds:
        method.aggregate(server, [Upload(i, part, 1) for i, part in enumerate(parts)])
    found = server.memory["prototypes"]
    assert isinstance(found, Prototypes) and torch.isfinite(found.vectors).all()
    return found


def run(method: Any, rounds: int = 2) -> tuple[dict[str, torch.Tensor], Prototypes | None]:
    worker, server = toy.play(method, rounds)
    return toy.models(worker), server.memory.get("prototypes")


# The server


def test_three_classes_end_120_degrees_apart():
    found = together(ProtoNorm(tol=1e-6), [prototypes([[5, 0, 0, 0], [4, 1, 0, 0], [4, 0, 1, 0]], [1, 1, 1])])
    cosines = (found.vectors @ found.vectors.T)[~torch.eye(3, dtype=torch.bool)]
    torch.testing.assert_close(cosines, torch.full((6,), -0.5), atol=1e-4, rtol=0)
    torch.testing.assert_close(found.vectors.norm(dim=1), torch.ones(3))


def test_clients_are_averaged_before_directions_are_taken():
    """(8, 0) and (0, 6) have the mean (4, 3), of length 5."""
    parts = [prototypes([[8, 0]], [9]), prototypes([[0, 6]], [1])]
    assert together(ProtoNorm(), parts).vectors.tolist()[0] == pytest.approx([0.8, 0.6])
    assert together(ProtoNorm(average="count"), parts).vectors.tolist()[0] == pytest.approx([0.9965458, 0.0830455])


def test_alignment_can_stop_at_unit_length_or_be_left_out():
    parts = [prototypes([[3, 4], [0, 2]], [1, 1])]
    unit = together(ProtoNorm(alignment="unit"), parts).vectors
    torch.testing.assert_close(unit, torch.tensor([[0.6, 0.8], [0.0, 1.0]]))
    assert together(ProtoNorm(alignment="none"), parts).vectors.tolist() == [[3, 4], [0, 2]]


@pytest.mark.parametrize(("missing", "left"), [("keep", [True, True, False]), ("drop", [True, False, False])])
def test_a_class_that_nobody_reports_keeps_its_place_among_the_others_or_goes(missing: Any, left: list[bool]):
    first, second = prototypes([[1, 0], [0, 1], [0, 0]], [1, 1, 0]), prototypes([[1, 1], [0, 0], [0, 0]], [1, 0, 0])
    found = together(ProtoNorm(missing=missing, tol=1e-6), [first], [second])
    assert found.present.tolist() == left
    assert found.vectors[2].tolist() == [0, 0]
    if missing == "keep":  # it took part: two classes are opposite each other
        assert (found.vectors[0] @ found.vectors[1]).item() == pytest.approx(-1, abs=1e-4)


def test_a_class_of_dead_features_has_no_direction_and_keeps_the_one_it_had():
    dead = prototypes([[1, 0], [0, 0]], [1, 1])
    assert together(ProtoNorm(), [dead]).present.tolist() == [True, False]
    assert together(ProtoNorm(), [prototypes([[1e-30, 0], [0, 0]], [1, 1])]).present.tolist() == [False, False]
    before = together(ProtoNorm(), [prototypes([[1, 0], [0, 1]], [1, 1])], [dead])
    assert before.present.all() and (before.vectors[0] @ before.vectors[1]).item() < -0.99


def test_one_class_one_client_equal_classes_and_no_class_at_all():
    assert together(ProtoNorm(), [prototypes([[3, 4]], [1])]).vectors.tolist()[0] == pytest.approx([0.6, 0.8])
    equal = together(ProtoNorm(), [prototypes([[3, 4], [3, 4]], [1, 1])] * 2).vectors
    assert (equal[0] @ equal[1]).item() < -0.99
    assert not together(ProtoNorm(), [prototypes([[0, 0]], [0])]).present.any()


def test_the_rule_of_the_code_stops_before_rest():
    """At rest six classes are all sqrt(2 * 6 / 5) apart."""
    part = Prototypes(torch.rand(6, 16, generator=torch.Generator().manual_seed(0)), torch.ones(6))
    early = together(ProtoNorm(stop="code"), [part]).vectors
    late = together(ProtoNorm(), [part]).vectors
    off = [torch.pdist(v).sub(math.sqrt(12 / 5)).abs().max().item() for v in (early, late)]
    assert off[1] < 1e-3 < off[0]


def test_the_first_prototypes_are_none_or_random_directions():
    nothing, random = toy.server(), toy.server()
    ProtoNorm().start_server(nothing)
    ProtoNorm(first="random").start_server(random)
    assert ProtoNorm().broadcast(nothing, 0) is None
    sent = ProtoNorm(first="random").broadcast(random, 0)
    assert sent is not None and sent.present.all()
    torch.testing.assert_close(sent.vectors.norm(dim=1), torch.ones(toy.CLASSES))


# The client


def test_without_pull_it_is_local_training_to_the_bit():
    alone, _ = run(Local())
    for fields in ({}, {"first": "random"}, {"stop": "code", "taken": "before"}, {"distance": "euclidean"}):
        assert same(run(ProtoNorm(pull=0.0, **fields))[0], alone), fields  # type: ignore[arg-type]
    assert not same(run(ProtoNorm())[0], alone)


@pytest.mark.parametrize("scale", [1.0, 1.1])
def test_without_alignment_it_is_fedproto_with_that_scale_to_the_bit(scale: float):
    ours, theirs = run(ProtoNorm(alignment="none", scale=scale)), run(FedProto(scale=scale))
    assert same(ours[0], theirs[0])
    assert ours[1] is not None and theirs[1] is not None
    assert torch.equal(ours[1].vectors, theirs[1].vectors)


def test_features_are_pulled_to_the_scaled_prototype():
    """Scale 4 with prototypes is scale 1 with prototypes four times as long."""
    found = []
    for scale, length in ((4.0, 1.0), (1.0, 4.0)):
        client = toy.build(0, Streams(1))
        down = Prototypes(length * torch.eye(toy.CLASSES, toy.DIM), torch.ones(toy.CLASSES))
        FedProto(scale=scale).local_update(client, down)
        found.append(client.model.state_dict())
    assert same(found[0], found[1])


def test_a_larger_scale_gives_longer_features():
    lengths = []
    for scale in (1.0, 10.0):
        worker = toy.worker(ProtoNorm(scale=scale), toy.build, seed=7)
        list(
            Federation(worker.method, Inline(worker), toy.server(), FederationPlan(clients=toy.CLIENTS, rounds=3)).run()
        )
        lengths.append(worker.client(0).features()[0].norm(dim=1).mean().item())
    assert lengths[1] > 3 * lengths[0]


def test_how_many_samples_a_client_has_stays_with_it_unless_they_are_asked_for():
    client = toy.build(0, Streams(1))
    assert torch.equal(ProtoNorm().local_update(client, None).counts, client.own_classes.float())
    assert torch.equal(ProtoNorm(average="count").local_update(client, None).counts, client.train.counts(6).float())


def test_it_answers_by_direction_whatever_the_scale():
    client = toy.build(0, Streams(1))
    x, _ = client.train.batch(torch.arange(30))
    client.model.eval()
    z = client.model.features(x)
    down = Prototypes(torch.nn.functional.normalize(torch.randn(toy.CLASSES, toy.DIM), dim=1), torch.ones(toy.CLASSES))
    answers = [ProtoNorm(scale=scale).predict(client, x, down).argmax(1) for scale in (1.0, 400.0)]
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], (z @ down.vectors.T).argmax(1))


def test_it_can_answer_by_the_clients_own_prototypes():
    client, method = toy.build(0, Streams(1)), ProtoNorm(answer="local")
    sent = method.local_update(client, None)
    client.model.eval()
    x, _ = client.train.batch(torch.arange(30))
    assert torch.equal(method.predict(client, x, None), sent.scores(client.model.features(x)))


def test_the_steps_of_alignment_are_recorded():
    _, server = toy.play(ProtoNorm(), 2)
    assert 1 < server.memory["alignment_steps"] <= ProtoNorm().steps
    _, server = toy.play(ProtoNorm(alignment="unit"), 2)
    assert server.memory["alignment_steps"] == 0


def test_variants_have_the_scale_of_paper_and_code():
    assert [ProtoNorm(**ProtoNorm.variants[name]).scale for name in ("paper", "code")] == [100, 80]
