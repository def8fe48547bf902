"""Filters against bad parties, with numbers that can be checked in one's head."""

from __future__ import annotations

import pytest
import torch
import toy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from protea import Prototypes, Scripted
from protea.config.experiment import experiment_from_table
from protea.config.sections import Limits
from protea.core.errors import ConfigError
from protea.core.memory import Memory
from protea.core.method import Method
from protea.core.payload import pack, vector_names
from protea.core.prototypes import Weighting
from protea.core.rng import Streams
from protea.core.weights import Weights
from protea.federation.jobs import Job, Reply
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.filters.base import Filter, Gathering, Received, together_all
from protea.filters.bound import Bound
from protea.filters.centres import GeometricMedian, Median, Trimmed
from protea.filters.cosine import Cosine
from protea.filters.multi_krum import MultiKrum
from protea.methods.fedgen import HeadAndLabels
from protea.methods.fednh import BodyAndPrototypes
from protea.methods.fedproto import FedProto

ALL: list[Filter] = [Bound(), Median(), Trimmed(), GeometricMedian(), MultiKrum(), Cosine()]


def looked_at(
    filter: Filter,
    rows: list[list[list[float]]],
    last: Prototypes | None = None,
    memory: Memory | None = None,
    round: int = 1,
) -> list[Tensor]:
    """What becomes of each client's vectors, given by client and class; an empty list is a class it does not have."""
    dim = max(len(vector) for vectors in rows for vector in vectors)
    sent = []
    for client, vectors in enumerate(rows):
        full = torch.tensor([vector or [0.0] * dim for vector in vectors])
        sent.append(Received(client, Prototypes(full, torch.tensor([float(bool(v)) for v in vectors])).flat()))
    found = looked(filter, sent, len(rows[0]), dim, last, memory, round)
    return [each.up["vectors"] for each in found]


def looked(
    filter: Filter,
    sent: list[Received],
    classes: int,
    dim: int,
    last: Prototypes | None = None,
    memory: Memory | None = None,
    round: int = 1,
    kind: type = Prototypes,
) -> list[Received]:
    store = Memory() if memory is None else memory
    at = Gathering(round, kind, classes, dim, lambda: last, store, Streams(1))
    return list(together_all([filter], sent, at))


def test_bound_gives_a_client_that_is_too_long_the_median_length():
    honest = [[1.0, 0.0], [0.0, 2.0]]
    found = looked_at(Bound(), [honest, honest, honest, [[10.0, 0.0], [0.0, 20.0]]])
    assert found[3].tolist() == honest  # 10 in the (lower) median, above three times 2; the others have 1
    assert all(each.tolist() == honest for each in found[:3])


def test_bound_leaves_honest_models_alone_of_which_half_are_ten_times_as_long():
    short, long = [[1.0, 0.0], [0.0, 1.0]], [[10.0, 0.0], [0.0, 11.0]]
    for rows in ([short, short, long, long], [short, short, short, long, long]):
        assert [each.tolist() for each in looked_at(Bound(), rows)] == rows
    found = looked_at(Bound(), [short, short, long, long, [[100.0, 0.0], [0.0, 110.0]]])
    assert found[4].tolist() == long  # 100 in the median, usual is 11: it gets the median, 10


def test_bound_takes_as_many_clients_for_bad_as_its_share_says():
    honest, bad = [[1.0, 0.0]], [[9.0, 0.0]]
    rows = [honest] * 6 + [bad] * 4
    assert looked_at(Bound(), rows)[9].tolist() == bad  # a quarter may be bad: two of ten, and four agree
    assert looked_at(Bound(share=0.45), rows)[9].tolist() == honest


def test_bound_shortens_a_single_vector_of_a_class_that_nobody_else_has():
    honest: list[list[float]] = [[1.0, 0.0], [0.0, 1.0], []]
    bad = [[1.0, 0.0], [0.0, 1.0], [0.0, 90.0]]
    found = looked_at(Bound(), [honest, honest, honest, bad])
    assert found[3].tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 3.0]]


def test_bound_pulls_what_is_far_toward_the_others():
    rows = [[[1.0, 0.0]], [[1.0, 0.0]], [[1.0, 0.0]], [[-2.0, 0.0]]]
    found = looked_at(Bound(radius=1.0), rows)
    torch.testing.assert_close(found[3], torch.tensor([[0.0, 0.0]]))  # 3 from the centre, and the usual length is 1
    assert looked_at(Bound(), rows)[3].tolist() == [[-2.0, 0.0]]


def test_bound_knows_nothing_of_three_clients_or_of_vectors_without_length():
    assert looked_at(Bound(), [[[1.0, 0.0]], [[1.0, 0.0]], [[90.0, 0.0]]])[2].tolist() == [[90.0, 0.0]]
    assert looked_at(Bound(), [[[0.0, 0.0]]] * 3 + [[[9.0, 0.0]]])[3].tolist() == [[9.0, 0.0]]


@pytest.mark.parametrize("filter", [Median(), Trimmed(0.3), GeometricMedian()])
def test_all_clients_of_a_class_get_its_centre(filter: Filter):
    three = looked_at(filter, [[[1.0, 0.0]], [[2.0, 0.0]], [[90.0, 0.0]]])
    four = looked_at(filter, [[[1.0, 0.0]], [[2.0, 0.0]], [[3.0, 0.0]], [[90.0, 0.0]]])
    assert all(torch.equal(each, three[0]) for each in three) and all(torch.equal(each, four[0]) for each in four)
    torch.testing.assert_close(three[0], torch.tensor([[2.0, 0.0]]), atol=1e-4, rtol=0)
    if isinstance(filter, GeometricMedian):  # every point between 2 and 3 has the same sum of distances
        assert 2.0 - 1e-4 <= float(four[0][0, 0]) <= 3.0
    else:
        torch.testing.assert_close(four[0], torch.tensor([[2.5, 0.0]]))


def test_a_trimmed_mean_cuts_at_least_one_at_either_end_and_leaves_one():
    rows = [[[value]] for value in (0.0, 1.0, 2.0, 3.0, 100.0)]
    assert looked_at(Trimmed(0.2), rows)[0].item() == 2.0  # the mean of 1, 2 and 3
    assert looked_at(Trimmed(0.0), rows)[0].item() == 2.0
    assert looked_at(Trimmed(0.9), rows)[0].item() == 2.0  # the median is left


def test_krum_replaces_the_vector_without_neighbours_by_the_mean_of_the_others():
    rows = [[[value, 0.0]] for value in (1.0, 2.0, 3.0, 2.0, 40.0)]
    found = looked_at(MultiKrum(), rows)
    assert [each[0, 0].item() for each in found] == [1.0, 2.0, 3.0, 2.0, 2.0]


def test_classes_that_too_few_have_stay_as_they_are():
    rows: list[list[list[float]]] = [[[1.0], [4.0]], [[1.0], [9.0]], [[1.0], []], [[7.0], []]]
    for filter in (Median(), Trimmed(), GeometricMedian(), MultiKrum()):
        found = looked_at(filter, rows)
        assert found[0][1].item() == 4.0 and found[1][1].item() == 9.0 and len(found[2]) == 1


def test_cosine_compares_with_the_last_prototype_and_with_the_site_itself():
    last = Prototypes(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.ones(2))
    good, memory = [[2.0, 0.1], [0.1, 2.0]], Memory()
    found = looked_at(Cosine(), [good, [[-1.0, 0.0], [0.0, 9.0]]], last, memory)
    assert found[0].tolist() == torch.tensor(good).tolist()
    assert found[1].tolist() == [[1.0, 0.0], [0.0, 3.0]]  # turned away: replaced; too long: three times the length
    swapped = looked_at(Cosine(), [[[0.1, 1.0], [1.0, 0.1]]], last)
    assert swapped[0].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    # Client 0 was near [2, 0.1]; now it points elsewhere, and the last prototype of class 0 is not against it.
    sideways = Prototypes(torch.tensor([[-0.3, 1.0], [0.0, 1.0]]), torch.tensor([1.0, 0.0]))
    turned = looked_at(Cosine(), [[[-1.0, 1.0], [0.1, 2.0]]], sideways, memory, round=2)
    torch.testing.assert_close(turned[0], torch.tensor([[-0.3, 1.0], [0.1, 2.0]]))
    assert sorted(memory) == ["filter0.0", "filter0.1"] and isinstance(memory["filter0.0"], Prototypes)


def test_without_a_last_prototype_cosine_lets_everything_pass():
    assert looked_at(Cosine(), [[[1.0, 0.0]], [[-9.0, 0.0]]])[1].tolist() == [[-9.0, 0.0]]
    other_width = Prototypes(torch.ones(1, 5), torch.ones(1))
    assert looked_at(Cosine(), [[[1.0, 0.0]], [[-9.0, 0.0]]], other_width)[1].tolist() == [[-9.0, 0.0]]


@pytest.mark.parametrize("filter", ALL, ids=lambda each: type(each).__name__.lower())
def test_only_class_vectors_are_looked_at_and_counts_stay(filter: Filter):
    def upload(client: int, length: float) -> Received:
        body = Weights({"w": torch.full((2, 2), 100.0 * client)})
        protos = Prototypes(torch.tensor([[length, 0.0], [0.0, 0.0]]), torch.tensor([float(client + 1), 0.0]))
        return Received(client, BodyAndPrototypes(body, protos).flat())

    sent = [upload(client, length) for client, length in enumerate([1.0, 1.0, 1.0, 1.0, 1e6])]
    found = looked(filter, sent, 2, 2, kind=BodyAndPrototypes)
    for before, after in zip(sent, found, strict=True):
        assert before.client == after.client and before.up.keys() == after.up.keys()
        for name in before.up:
            assert name == "prototypes.vectors" or torch.equal(before.up[name], after.up[name])
    if not isinstance(filter, Cosine):
        assert found[4].up["prototypes.vectors"].norm() <= 5.0
        assert found[0] is sent[0] or not isinstance(filter, Bound)  # the very object: equal to the bit


@settings(max_examples=40, deadline=None)
@given(
    bad=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=6, max_size=6),
    seed=st.integers(0, 2**31),
    filter=st.sampled_from([Bound(), Median(), Trimmed(), GeometricMedian(), MultiKrum()]),
)
def test_one_bad_upload_of_any_size_moves_the_mean_by_a_bounded_amount(bad: list[float], seed: int, filter: Filter):
    honest = 1 + torch.rand(5, 2, 3, generator=torch.Generator().manual_seed(seed))  # lengths from 1.7 to 3.5
    rows = [*honest.tolist(), torch.tensor(bad).reshape(2, 3).tolist()]
    found = torch.stack(looked_at(filter, rows))
    assert torch.isfinite(found).all()
    away = (found.mean(0) - honest.mean(0)).norm(dim=1)
    assert away.max() <= (3 * 3.5 + 3.5) / 6 + 1  # a vector of k = 3 usual lengths among six


def test_the_server_uses_what_filters_made_of_a_round_and_says_nothing_otherwise():
    def script(job: Job) -> Reply:
        size = 1000.0 if job.client == 3 else 1.0
        up = Prototypes(torch.full((toy.CLASSES, toy.DIM), size), torch.ones(toy.CLASSES))
        return Reply(job.client, job.round, pack(up), 1)

    def played(limits: Limits, *filters: Filter) -> tuple[float, list[int]]:
        server = toy.server()
        plan = FederationPlan(clients=4, rounds=1, limits=limits, filters=filters)
        (record,) = Federation(FedProto(), Scripted(script), server, plan).run()
        assert ("changed" in record.line()) is bool(record.changed)
        return float(server.memory["prototypes"].vectors.mean()), record.changed

    assert played(Limits()) == (1.0, [3])  # bound by default
    assert played(Limits(bound=False)) == (250.75, [])
    assert played(Limits(bound=False), Median()) == (1.0, [3])
    assert played(Limits(), Bound(k=1e6, radius=1e6)) == (250.75, [])  # one that is named replaces the default


def test_long_counts_are_no_long_vectors():
    def script(job: Job) -> Reply:
        up = Prototypes(torch.ones(toy.CLASSES, toy.DIM), torch.full((toy.CLASSES,), 1e6))
        return Reply(job.client, job.round, pack(up), 1)

    plan = FederationPlan(clients=2, rounds=1, limits=Limits(norm=5.0))
    (record,) = Federation(FedProto(), Scripted(script), toy.server(), plan).run()
    assert not record.refused


@pytest.mark.parametrize("average", ["uniform", "count"])
def test_who_claims_many_samples_weighs_much_only_where_counts_weigh_and_no_limit_is_set(average: Weighting):
    """Three clients send (1, 1, ...); the fourth sends (-1, -1, ...), which no guard of lengths can mind."""

    def script(job: Job) -> Reply:
        sign, count = (-1.0, 1e9) if job.client == 3 else (1.0, 50.0)
        up = Prototypes(torch.full((toy.CLASSES, toy.DIM), sign), torch.full((toy.CLASSES,), count))
        return Reply(job.client, job.round, pack(up), 50)

    def mean(limits: Limits) -> tuple[float, dict[int, str]]:
        server = toy.server()
        plan = FederationPlan(clients=4, rounds=1, limits=limits, failures="skip")
        (record,) = Federation(FedProto(average=average), Scripted(script), server, plan).run()
        return round(float(server.memory["prototypes"].vectors.mean()), 3), record.failures

    assert mean(Limits()) == ({"uniform": 0.5, "count": -1.0}[average], {})
    found, failures = mean(Limits(samples=1000))
    assert found == 1.0 and "1,000,000,000 samples were reported; limits.samples is 1,000" in failures[3]


def test_the_number_of_all_samples_has_the_same_limit():
    up = Prototypes(torch.ones(toy.CLASSES, toy.DIM), torch.ones(toy.CLASSES))
    plan = FederationPlan(clients=2, rounds=1, limits=Limits(samples=100), failures="skip")
    script = Scripted(lambda job: Reply(job.client, job.round, pack(up), 100 + job.client))
    (record,) = Federation(FedProto(), script, toy.server(), plan).run()
    assert record.refused == [1] and "101 samples were reported; limits.samples is 100" in record.failures[1]


@pytest.mark.parametrize("name", ["bound", "median", "trimmed", "geometric_median", "multi_krum", "cosine"])
def test_filters_of_class_vectors_are_refused_for_methods_without_these(name: str):
    complaint = f"the filter {name} compares vectors of classes, and clients of fedavg send none"
    with pytest.raises(ConfigError, match=complaint):
        experiment_from_table(
            {"method": "fedavg", "models": {"family": "tiny5", "members": ["tiny_mlp"]}, "filters": [name]}
        )


@pytest.mark.parametrize(
    ("filter", "complaint"),
    [
        ({"name": "bound", "k": 0.0}, r"filters\[0\].k = 0.0"),
        ({"name": "bound", "radius": float("inf")}, r"filters\[0\].radius = inf"),
        ({"name": "bound", "share": 0.5}, r"filters\[0\].share = 0.5: input should be less than 0.5"),
        ({"name": "trimmed", "share": 0.5}, r"filters\[0\].share = 0.5: input should be less than 0.5"),
        ({"name": "multi_krum", "share": 0.6}, r"filters\[0\].share = 0.6: input should be less than 0.5"),
        ({"name": "multi_krum", "share": -0.1}, r"filters\[0\].share = -0.1"),
        ({"name": "cosine", "least": 2.0}, r"filters\[0\].least = 2.0"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(filter: dict[str, object], complaint: str):
    with pytest.raises(ConfigError, match=complaint):
        experiment_from_table({"filters": [filter]})


def test_a_filter_draws_and_asks_without_changing_what_the_method_draws():
    class Nosy(Filter):
        def together(self, uploads, at):  # type: ignore[no-untyped-def]
            torch.rand(3, generator=at.rng.generator("nosy"))
            at.last()
            return uploads

    class Draws(FedProto):
        def broadcast(self, server, client):  # type: ignore[no-untyped-def]
            torch.rand(7)
            return super().broadcast(server, client)

        def aggregate(self, server, uploads):  # type: ignore[no-untyped-def]
            server.memory["drawn"] = torch.rand(2)
            super().aggregate(server, uploads)

    def drawn(*filters: Filter) -> Tensor:
        server, method = toy.server(), Draws()
        up = Prototypes(torch.ones(toy.CLASSES, toy.DIM), torch.ones(toy.CLASSES))
        plan = FederationPlan(clients=3, rounds=1, filters=filters)
        list(Federation(method, Scripted(lambda job: up), server, plan).run())
        found: Tensor = server.memory["drawn"]
        return found

    assert isinstance(Draws(), Method) and torch.equal(drawn(), drawn(Nosy()))


def test_counts_of_samples_are_no_vectors():
    payload = HeadAndLabels(Weights({"w": torch.ones(2, 2)}), torch.tensor([3.0, 900.0]))
    assert vector_names(HeadAndLabels, payload.flat()) == ["head.tensors.w"]
    assert vector_names(Prototypes, Prototypes(torch.ones(1, 2), torch.ones(1)).flat()) == ["vectors"]


def test_a_method_that_sends_nothing_runs_beside_any_filter():
    experiment_from_table({"method": "local", "filters": ["geometric_median", "bound"]})
