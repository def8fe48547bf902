"""Filters of uploads that have several vectors of a class."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import toy
from torch import Tensor

from protea.config.attack import Attack
from protea.config.experiment import experiment_from_table
from protea.config.sections import Limits
from protea.core.accounting import Budget
from protea.core.clusters import Clusters
from protea.core.errors import ConfigError, ProteaError
from protea.core.memory import Memory
from protea.core.payload import Payload, pack
from protea.core.prototypes import Prototypes
from protea.core.rng import Streams
from protea.engines.inline import Inline
from protea.federation.attack import Attacked
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.filters.base import Filter, Gathering, Passage, Received, arrive_all, leave_all, together_all
from protea.filters.bound import Bound
from protea.filters.centres import GeometricMedian, Median, Trimmed
from protea.filters.clip import Clip
from protea.filters.cosine import Cosine
from protea.filters.multi_krum import MultiKrum
from protea.filters.noise import Noise
from protea.filters.quantize import Quantize
from protea.methods.fedplvm import ClustersAndModel, FedPLVM


def rows(*vectors: Sequence[float], classes: Sequence[int] = (), counts: Sequence[float] = ()) -> Clusters:
    """Clusters of class 0, the first with most samples, unless something else is said."""
    return Clusters(
        torch.tensor(vectors).float(),
        torch.tensor(classes or [0] * len(vectors)),
        torch.tensor(counts or [len(vectors) - row for row in range(len(vectors))]).float(),
    )


def looked(filter: Filter, parts: Sequence[Clusters], classes: int = 1, last: Prototypes | None = None) -> list[Tensor]:
    """What becomes of each client's vectors."""
    sent = [Received(client, pack(part)) for client, part in enumerate(parts)]
    at = Gathering(1, Clusters, classes, 2, lambda: last, Memory(), Streams(1))
    return [each.up["vectors"] for each in together_all([filter], sent, at)]


def at(kind: type[Payload] = Clusters) -> Passage:
    return Passage(0, 1, kind, 3, 2, Streams(1))


LONG = rows((3, 4), (0.3, 0.4), (0, 2), classes=(0, 0, 2), counts=(400, 300, 200))


def test_each_long_row_is_shortened():
    up = Clip(1.0).leave(pack(LONG), at())
    torch.testing.assert_close(up["vectors"], torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 1.0]]))
    inner = Clip(1.0).leave(pack(ClustersAndModel(LONG, None)), at(ClustersAndModel))
    assert torch.equal(inner["clusters.vectors"], up["vectors"])


@pytest.mark.parametrize("to", ["float16", "int8"])
def test_rows_are_sent_in_fewer_bytes_and_come_back(to: str):
    filter = Quantize(to)  # type: ignore[arg-type]
    for part in (LONG, Clusters.none(2)):
        back = Clusters.from_flat(filter.arrive(filter.leave(pack(part), at()), at()))
        back.check(classes=3, dim=2)
        torch.testing.assert_close(back.vectors, part.vectors, atol=0.02, rtol=0)
        assert torch.equal(back.classes, part.classes) and torch.equal(back.counts, part.counts)


def test_noise_moves_every_row_and_leaves_out_those_of_few_samples():
    filter = Noise(clip=5.0, noise=0.01, counts=0.01, least=250.0)
    found = Clusters.from_flat(filter.leave(pack(LONG), at()))
    found.check(classes=3, dim=2)
    assert found.classes.tolist() == [0, 0] and found.counts.tolist() == [400.0, 300.0]
    assert not torch.equal(found.vectors, LONG.vectors[:2])
    torch.testing.assert_close(found.vectors, LONG.vectors[:2], atol=0.01, rtol=0)
    nothing = Clusters.from_flat(Noise(least=1e6).leave(pack(LONG), at()))
    assert len(nothing) == 0
    nothing.check(classes=3, dim=2)


def noisy(noise: Noise) -> Federation:
    plan = FederationPlan(clients=toy.CLIENTS, rounds=1, filters=(noise,))
    return Federation(FedPLVM(), Inline(toy.plan(FedPLVM(), filters=(noise,))), toy.server(), plan)


def test_no_guarantee_is_claimed_for_clusters():
    (record,) = noisy(Noise()).run()
    assert record.privacy is not None and not record.privacy.formal
    with pytest.raises(ProteaError, match="nothing it could be spent on: the method does not declare"):
        list(noisy(Noise(budget=Budget(epsilon=1.0))).run())


def test_the_largest_clusters_are_compared_first_and_each_client_has_one_vote():
    """One client sends three rows far away, three send one: it is alone in each of its turns."""
    found = looked(Median(), [rows((1, 0)), rows((3, 0)), rows((5, 0)), rows((90, 0), (91, 0), (92, 0))])
    assert [each.tolist() for each in found] == [[[4, 0]], [[4, 0]], [[4, 0]], [[4, 0]] * 3]


def test_rows_meet_those_of_the_same_rank():
    two = [rows((1, 0), (0, 1)), rows((2, 0), (0, 2)), rows((0, 3), (3, 0), counts=(1, 2))]
    assert [each.tolist() for each in looked(Median(), two)] == [[[2, 0], [0, 2]]] * 2 + [[[0, 2], [2, 0]]]


def test_vectors_that_cancel_each_other_in_the_mean_are_pulled_in():
    honest = rows((1, 0), (0, 1))
    found = looked(Bound(), [honest, honest, honest, rows((90, 0), (-90, 0))])
    assert found[3].norm(dim=1).max() <= 3.0 + 1e-5
    assert all(torch.equal(each, honest.vectors) for each in found[:3])


def test_a_row_that_turns_away_from_the_class_becomes_its_last_prototype():
    last = Prototypes(torch.tensor([[1.0, 0.0]]), torch.ones(1))
    (found,) = looked(Cosine(), [rows((2, 0), (-1, 0))], last=last)
    assert found.tolist() == [[2.0, 0.0], [1.0, 0.0]]


@pytest.mark.parametrize("filter", [Bound(), Median(), Trimmed(), GeometricMedian(), MultiKrum(), Cosine()])
def test_clients_without_a_class_or_without_any_are_left_as_they_are(filter: Filter):
    some = rows((1, 0), classes=(1,))
    found = looked(filter, [some, Clusters.none(2), rows((5, 0), classes=(2,))], classes=3)
    assert [each.tolist() for each in found] == [[[1.0, 0.0]], [], [[5.0, 0.0]]]
    alike = [rows((1, 0), (0, 1), (1, 1), classes=(0, 0, 1)) for _ in range(5)]
    for each in looked(filter, alike, classes=3):
        torch.testing.assert_close(each, alike[0].vectors)


@pytest.mark.parametrize("name", ["noise", "median", "bound", "cosine", "multi_krum", "clip", "quantize"])
def test_an_experiment_takes_filters_of_class_vectors(name: str):
    table = {"method": "fedplvm", "filters": [{"name": name}]}
    assert len(experiment_from_table(table).filters) == 1
    with pytest.raises(ConfigError, match="send none"):
        experiment_from_table({"method": "fedavg", "models": {"family": "cnn4"}, "filters": [{"name": "median"}]})


# Bad clients


@pytest.mark.parametrize("kind", ["scale", "flip", "swap", "random", "constant", "labels", "backdoor", "collude"])
def test_every_attack_sends_clusters_that_pass_the_checks(kind: str):
    Attack(kind, clients=(0,)).check(4, FedPLVM.up, "fedplvm")  # type: ignore[arg-type]
    method = Attacked(FedPLVM(weight=1.0), kind, (0,), factor=2.0)  # type: ignore[arg-type]
    plan = FederationPlan(clients=toy.CLIENTS, rounds=2, limits=Limits(bound=False), attackers=(0,))
    for record in Federation(method, Inline(toy.plan(method)), toy.server(), plan).run():
        assert not record.failures


def test_swapped_clusters_are_those_of_the_next_class():
    client = toy.ready()
    method = FedPLVM()
    server = toy.started(method)
    plain = method.local_update(client, method.broadcast(server, 0)).clusters
    client = toy.ready()
    bad = Attacked(method, "swap", (0,)).local_update(client, method.broadcast(server, 0)).clusters
    assert torch.equal(bad.vectors, plain.vectors)
    following = {0: 1, 1: 2, 2: 0}
    assert bad.classes.tolist() == [following[label] for label in plain.classes.tolist()]


def test_filters_leave_and_arrive_in_a_row():
    filters = (Clip(1.0), Quantize("float16"))
    up = arrive_all(filters, leave_all(filters, pack(LONG), at()), at())
    Clusters.from_flat(up).check(classes=3, dim=2)
