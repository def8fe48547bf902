"""FedLOO: a receiver's own samples are not in what it gets; alone it is Local; pooled, it is Fisher's discriminant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import toy
from torch import Tensor

from protea import Client, Prototypes, Server, Upload
from protea.core.common_map import common_map
from protea.core.discriminant import Moments, discriminant
from protea.core.message import nbytes
from protea.core.payload import pack
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.data.dataset import Dataset
from protea.engines.inline import Inline
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.methods.fedloo import EVERYBODY, TABLE, FedLOO, disjoint_parts
from protea.methods.fedpagr import FedPAGR
from protea.methods.local import Local

CPU = torch.device("cpu")


def upload(client: int, seed: int, counts: list[float] | None = None) -> Upload[Prototypes]:
    vectors = torch.randn(toy.CLASSES, toy.DIM, generator=torch.Generator().manual_seed(seed))
    vectors[:, -1] = 1.0
    n = torch.tensor(counts or [5.0] * toy.CLASSES)
    return Upload(client, Prototypes(vectors * (n > 0).unsqueeze(1), n), int(n.sum()))


def rounds(method: FedLOO, *each: list[Upload[Prototypes]]) -> Server:
    server = toy.started(method)
    for round, uploads in enumerate(each, 1):
        server.round = round
        method.aggregate(server, uploads)
    return server


def sent(server: Server, client: int) -> Tensor:
    found = FedLOO().broadcast(server, client)
    assert found is not None
    return found.vectors


def size(server: Server) -> int:
    return sum(tensor.nbytes for tensor in server.memory.tensors())


# What a client gets


@pytest.mark.parametrize("me", [0, 2, 4])
def test_own_uploads_do_not_change_what_a_client_gets_by_a_single_bit(me: int):
    def played(seed: int) -> Server:
        return rounds(
            FedLOO(),
            *([upload(c, seed if c == me else 10 * r + c) for c in range(5)] for r in range(3)),
        )

    one, other = played(seed=500), played(seed=900)
    assert torch.equal(sent(one, me), sent(other, me))
    assert all(not torch.equal(sent(one, c), sent(other, c)) for c in range(5) if c != me)


def test_other_samples_of_a_client_leave_its_broadcast_as_it_was_in_a_whole_run():
    def build(id: int, streams: Streams, shift: float = 0.0) -> Client:
        client = toy.build(id, streams)
        x = toy.BLOBS.x + shift * (id == 2)
        client.train = Samples(Dataset(x, toy.BLOBS.y, toy.BLOBS.names), client.train.index)
        return client

    found = [toy.play(FedLOO(), build=build)[1], toy.play(FedLOO(), build=lambda id, s: build(id, s, 3.0))[1]]
    assert torch.equal(sent(found[0], 2), sent(found[1], 2))
    assert not torch.equal(sent(found[0], 1), sent(found[1], 1))


def test_a_newcomer_gets_what_all_others_know_and_a_lone_client_nothing():
    server = rounds(FedLOO(), [upload(0, 1), upload(1, 2)])
    table = {name: server.memory[name] for name in TABLE}
    everybody = discriminant(Moments.of(table["means"], table["labels"], table["counts"], toy.CLASSES))
    torch.testing.assert_close(sent(server, 7), everybody.vectors.float())
    assert FedLOO().broadcast(rounds(FedLOO(), [upload(0, 1)]), 0) is None
    assert FedLOO().broadcast(toy.server(), 0) is None
    nothing = upload(0, 1, [0.0] * toy.CLASSES)
    assert FedLOO().broadcast(rounds(FedLOO(), [nothing]), 0) is None


def test_there_are_no_prototypes_in_the_space_of_models():
    assert FedLOO().prototypes(upload(0, 1).payload) is None


# The estimator


def test_means_of_single_samples_give_pooled_lda():
    """Five clients with like data; in as many rounds as there are parts each sample was sent once."""
    dim, classes = 5, 3
    g = torch.Generator().manual_seed(0)
    y = torch.arange(150) % classes
    z = torch.randn(classes, dim, generator=g, dtype=torch.float64)[y]
    z = z + torch.randn(150, dim, generator=g, dtype=torch.float64)
    method = FedLOO(parts=10, least=1)
    server = Server(classes, dim + 1, Streams(0))
    method.start_server(server)
    z32 = z.float()
    for server.round in range(1, 11):
        rows = [torch.arange(150)[(torch.arange(150) // classes) % 50 == 5 * (server.round - 1) + c] for c in range(5)]
        ups = [Prototypes.of(torch.nn.functional.pad(z32[r], (0, 1), value=1.0), y[r], classes) for r in rows]
        method.aggregate(server, [Upload(c, up, 3) for c, up in enumerate(ups)])
    z = z32.double()
    means = torch.stack([z[y == c].mean(0) for c in range(classes)])
    away = z - means[y]
    from protea.core.discriminant import oas

    inverse = torch.linalg.inv(oas(away.T @ away / (150 - classes), 150 - classes))
    log = -0.5 * torch.einsum("ncd,de,nce->nc", z.unsqueeze(1) - means, inverse, z.unsqueeze(1) - means)
    place = server.memory["receivers"].tolist().index(EVERYBODY)
    found = torch.nn.functional.pad(z, (0, 1), value=1.0) @ server.memory["discriminants"][place].double().T
    torch.testing.assert_close(found - found[:, :1], log - log[:, :1], rtol=0, atol=2e-5)  # rows travel as float32


def test_a_part_that_is_sent_again_replaces_what_it_was_and_memory_stays():
    method = FedLOO(parts=4)
    each = [[upload(c, 10 * (r % 4) + c) for c in range(3)] for r in range(40)]
    once, twenty, forty = (rounds(method, *each[:n]) for n in (4, 20, 40))
    assert size(once) == size(twenty) == size(forty)
    assert len(once.memory["means"]) == 4 * 3 * toy.CLASSES
    torch.testing.assert_close(sent(once, 0), sent(forty, 0), rtol=1e-4, atol=1e-4)  # nothing was counted twice


def test_server_memory_does_not_grow_once_all_parts_were_sent():
    method = FedLOO(parts=4)
    server, plan = toy.server(), FederationPlan(clients=toy.CLIENTS, rounds=12)
    sizes = [size(server) for _ in Federation(method, Inline(toy.worker(method)), server, plan).run()]
    assert sizes[:4] == sorted(set(sizes[:4])) and set(sizes[4:]) == {sizes[3]}


@pytest.mark.parametrize(
    ("counts", "sizes"), [([4], []), ([5], [5]), ([11], [5, 6]), ([100], [12, 12, 12, 12, 13, 13, 13, 13])]
)
def test_parts_are_disjoint_cover_a_class_and_have_at_least_five_samples(counts: list[int], sizes: list[int]):
    labels = torch.zeros(counts[0], dtype=torch.int64)
    parts = disjoint_parts(labels, 8, 5, torch.Generator().manual_seed(0))
    assert sorted(parts[parts >= 0].bincount().tolist()) == sizes
    assert (parts == -1).sum() == (counts[0] if counts[0] < 5 else 0)


def test_in_as_many_rounds_as_there_are_parts_every_sample_was_sent_once():
    method = FedLOO(parts=3)
    _, server = toy.play(method, rounds=3)
    for client, share in enumerate(toy.SHARES):
        have = toy.BLOBS.y[share.train].bincount(minlength=toy.CLASSES)
        rows = server.memory["owners"] == client
        got = torch.zeros(toy.CLASSES).index_add_(0, server.memory["labels"][rows], server.memory["counts"][rows])
        assert got.tolist() == (have * (have >= method.least)).tolist()
    assert server.memory["counts"].min() >= 5


# The client


def test_it_trains_as_local_does_and_answers_so_without_own_and_others():
    alone, _ = toy.play(Local())
    found, _ = toy.play(FedLOO())
    assert toy.same_models(alone, found)
    method = FedLOO(own=0.0, least=10**9)
    silent, _ = toy.play(method)
    assert toy.same_models(alone, silent)
    x = toy.BLOBS.x[:50]
    for id, client in silent.clients.items():
        client.set_evaluation()
        assert client.memory["scale"] == 0.0
        with torch.no_grad():
            answer, network = method.predict(client, x, None), Local().predict(alone.clients[id], x, None)
        assert torch.equal(answer, network.log_softmax(1))


def test_at_scale_0_it_answers_as_local_whatever_the_others_say():
    """By every bit, also where the others lack a class."""
    method, x = FedLOO(own=0.0), toy.BLOBS.x[:50]
    client = toy.ready(id=3)
    method.local_update(client, None)
    network = client.model(x)
    for known in (torch.ones(toy.CLASSES), torch.arange(toy.CLASSES).clamp(max=1)):
        down = Prototypes(torch.randn(toy.CLASSES, toy.DIM) * known.unsqueeze(1), known.float())
        for scale, same in ((0.0, True), (1.0, False)):
            client.memory["scale"] = scale
            assert torch.equal(method.predict(client, x, down), network.log_softmax(1)) == same


def test_counts_that_are_off_by_a_factor_scale_a_discriminant_and_no_more():
    """A site may round its counts: the covariance is then too large by about a factor, which calibration takes up."""
    each = [[upload(c, 10 * r + c) for c in range(4)] for r in range(4)]
    twice = [[replace(u, payload=replace(u.payload, counts=2 * u.payload.counts)) for u in some] for some in each]
    one, other = (sent(rounds(FedLOO(), *some), 0) for some in (each, twice))
    torch.testing.assert_close(one, 2 * other)


def test_others_help_where_a_client_has_few_samples():
    """On blobs, Local has 86 %, and what the others know brings 95."""
    method = FedLOO()
    together, server = toy.play(method, rounds=4)
    alone, _ = toy.play(Local(), rounds=4)
    assert toy.accuracy(method, together, server) > toy.accuracy(Local(), alone, server) + 0.04


def test_before_training_the_network_answers():
    client = toy.ready()
    x = toy.BLOBS.x[:5]
    assert torch.equal(FedLOO().predict(client, x, upload(0, 1).payload), client.model(x))


def test_misleading_others_are_not_listened_to():
    """The receiver's samples say so: a discriminant that takes every class for another has scale 0."""
    client = toy.ready(id=3)
    method = FedLOO()
    phi = common_map((8,), toy.DIM, method.map_seed, CPU)
    z, y = phi(toy.BLOBS.x), toy.BLOBS.y
    good = discriminant(Moments.of_samples(z[:, :-1], y, toy.CLASSES))
    for vectors, trusted in ((good.vectors, True), (good.vectors.roll(1, 0), False)):
        method.local_update(client, Prototypes(vectors.float(), torch.ones(toy.CLASSES)))
        assert (client.memory["scale"] > 0) == trusted


def test_training_samples_that_changed_are_learned_anew():
    client = toy.ready()
    FedLOO().local_update(client, None)
    client.train = client.train.only(torch.arange(20))
    FedLOO().local_update(client, None)
    assert len(client.memory["held"]) == len(client.memory["parts"]) == 20


def test_bytes_are_those_of_fedpagr():
    """Up, dim numbers for each class of the client, and all counts; down, for each class that others have."""
    found: list[tuple[int, int]] = []
    for method in (FedLOO(least=1, parts=1), FedPAGR()):
        worker, server = toy.play(method, rounds=1)
        client = worker.client(3)
        client.begin(2, Streams(7))
        down: Any = method.broadcast(server, 9)  # a newcomer: others have all classes
        found.append((nbytes(pack(down)), nbytes(pack(method.local_update(client, down)))))
    assert found[0] == found[1] == (4 * toy.CLASSES * (toy.DIM + 1), 4 * (3 * toy.DIM + toy.CLASSES))


def test_settings_out_of_range_are_refused():
    from protea.config.experiment import experiment_from_table
    from protea.core.errors import ConfigError

    for setting in ({"parts": 0}, {"least": 0}, {"own": 1.5}, {"map_seed": -1}):
        with pytest.raises(ConfigError):
            experiment_from_table({"method": {"name": "fedloo", **setting}})
    assert replace(FedLOO(), texts="minilm").needs.common_view == "minilm"
