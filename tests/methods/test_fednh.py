"""FedNH: a head of prototypes that only the server moves; and the head itself, Nearest."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from torch import Tensor, nn

from protea import Client, Experiment, Prototypes, SplitModel, Upload, Weights
from protea.clients.worker import Worker
from protea.config.families import Models
from protea.core.errors import ConfigError, PayloadError
from protea.core.message import nbytes
from protea.core.payload import pack
from protea.core.rng import Streams
from protea.core.server import Server
from protea.methods.fednh import BodyAndPrototypes, FedNH, load_parts, trained, unit
from protea.models.nearest import Nearest


@pytest.fixture(autouse=True)
def draws() -> Iterator[None]:
    with Streams(0).default("tests"):
        yield


def run(method: Any, rounds: int = 2) -> tuple[Worker, Server]:
    return toy.play(method, rounds, toy.CLIENTS, partial(toy.build, same_architecture=True))


def started(method: FedNH) -> tuple[Server, Client]:
    server, client = toy.server(), toy.build(0, Streams(1), same_architecture=True)
    method.start_server(server)
    method.start_client(client)
    client.begin(1, Streams(1))
    return server, client


def small(vectors: Any, method: FedNH | None = None) -> Server:
    """A server with these prototypes and a model of one weight."""
    vectors = torch.tensor(vectors)
    server = Server(*vectors.shape, Streams(0))
    model = SplitModel(nn.Linear(1, 1, bias=False), nn.Identity(), nn.Identity())
    server.memory["model"] = (method or FedNH()).equipped(model, vectors)
    return server


def upload(vectors: Any, counts: Any, weight: float = 0.0, scale: float = 1.0, samples: int = 1) -> Upload[Any]:
    body = Weights({"body.weight": torch.tensor([[weight]]), "head.scale": torch.tensor(scale)})
    return Upload(0, BodyAndPrototypes(body, Prototypes(torch.tensor(vectors), torch.tensor(counts))), samples)


def test_a_prototype_keeps_nine_tenths_and_a_class_nobody_has_keeps_all():
    """0.9 (1, 0) + 0.1 (0, 1), brought to length one."""
    server = small([[1.0, 0.0], [0.6, 0.8]])
    FedNH().aggregate(server, [upload([[0.0, 1.0], [0.0, 0.0]], [5.0, 0.0])])
    moved, kept = server.memory["model"].head.vectors
    assert moved.tolist() == pytest.approx([0.993884, 0.110432], abs=1e-6)
    assert torch.equal(kept, torch.tensor([0.6, 0.8]))


def test_smoothing_says_how_much_of_a_prototype_remains():
    for smoothing, expected in ((0.0, [0.0, 1.0]), (0.5, [0.5**0.5, 0.5**0.5]), (1.0, [1.0, 0.0])):
        server = small([[1.0, 0.0]])
        FedNH(smoothing=smoothing).aggregate(server, [upload([[0.0, 1.0]], [5.0])])
        assert server.memory["model"].head.vectors[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_prototypes_of_clients_count_by_their_samples_of_the_class():
    """(3, 4) / 7 points where (0.6, 0.8) does; how many samples of other classes there are does not matter."""
    server = small([[1.0, 0.0]])
    FedNH(smoothing=0.0).aggregate(server, [upload([[1.0, 0.0]], [3.0], samples=99), upload([[0.0, 1.0]], [4.0])])
    assert server.memory["model"].head.vectors[0].tolist() == pytest.approx([0.6, 0.8])


def test_uploads_that_cancel_out_leave_a_prototype_as_it_was():
    server = small([[0.6, 0.8]])
    FedNH().aggregate(server, [upload([[1.0, 0.0]], [2.0]), upload([[-1.0, 0.0]], [2.0])])
    torch.testing.assert_close(server.memory["model"].head.vectors, torch.tensor([[0.6, 0.8]]))


def test_models_and_scales_are_averaged_equally_or_by_samples():
    """0 from 10 samples, 4 from 30."""
    for average, expected in (("uniform", 2.0), ("samples", 3.0)):
        server, method = small([[1.0, 0.0]]), FedNH(average=average)
        absent: Any = ([[0.0, 0.0]], [0.0])
        method.aggregate(server, [upload(*absent, 0.0, 0.0, samples=10), upload(*absent, 4.0, 4.0, samples=30)])
        assert server.memory["model"].body.weight.item() == expected
        assert server.memory["model"].head.scale.item() == expected


def test_prototypes_start_at_right_angles_where_there_is_room_for_that():
    server, _ = started(FedNH())
    vectors = server.memory["model"].head.vectors
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(toy.CLASSES))


def test_with_more_classes_than_dimensions_prototypes_have_length_one_and_not_all_right_angles():
    server = Server(5, 3, Streams(0), make=lambda _: toy.make())
    FedNH().start_server(server)
    angles = server.memory["model"].head.vectors @ server.memory["model"].head.vectors.T
    torch.testing.assert_close(angles.diagonal(), torch.ones(5))
    assert (angles - torch.eye(5)).abs().max() > 0.1


def test_clients_never_move_prototypes_and_train_all_else():
    method = FedNH()
    server, client = started(method)
    down = method.broadcast(server, 0)
    up = method.local_update(client, down)
    assert torch.equal(client.model.head.vectors, server.memory["model"].head.vectors)
    assert all(not torch.equal(t, down.body.tensors[name]) for name, t in up.body.tensors.items())


def test_clients_send_the_direction_of_the_mean_of_directions():
    method = FedNH()
    server, client = started(method)
    up = method.local_update(client, method.broadcast(server, 0))
    z, y = client.features()
    for label in range(toy.CLASSES):
        mine = z[y == label]
        assert up.prototypes.counts[label] == len(mine)
        mean = (mine / mine.norm(dim=1, keepdim=True)).sum(0)
        expected = mean / mean.norm() if len(mine) else torch.zeros(toy.DIM)
        torch.testing.assert_close(up.prototypes.vectors[label], expected)
    assert up.prototypes.present.tolist() == [True] * 3 + [False] * 3


def test_a_client_trains_by_cross_entropy_of_scaled_cosines():
    """The mean loss that it reports for one step on everything is that of the model it was sent."""
    method = FedNH(scale=5.0)
    server, client = started(method)
    client.training = toy.Training(epochs=1, batch=1000, lr=0.1)
    client.model.body[1].p = 0.0  # no dropout
    method.local_update(client, method.broadcast(server, 0))
    x, y = client.train.batch(torch.arange(len(client.train)))
    model = server.memory["model"].eval()
    cosines = F.cosine_similarity(model.features(x).unsqueeze(1), model.head.vectors.unsqueeze(0), dim=2)
    assert client.losses == [pytest.approx(F.cross_entropy(5 * cosines, y).item(), abs=1e-5)]


def test_the_scale_learns_from_one_or_stays_at_thirty():
    learned = run(FedNH())[1].memory["model"].head.scale
    assert learned.item() != 1 and learned.item() == pytest.approx(1, abs=0.5)
    fixed = run(FedNH(**FedNH.variants["fixed-scale"]))[1].memory["model"].head.scale
    assert fixed.item() == 30


def test_the_server_s_model_has_what_it_broadcasts():
    method = FedNH()
    _, server = run(method)
    model = method.server_model(server)
    down = method.broadcast(server, 0)
    assert torch.equal(model.head.vectors, down.prototypes.vectors)
    torch.testing.assert_close(down.prototypes.vectors.norm(dim=1), torch.ones(toy.CLASSES))
    assert method.prototypes(down) is down.prototypes and method.prototypes(None) is None
    assert all(torch.equal(t, model.state_dict()[name]) for name, t in down.body.tensors.items())


def test_clients_answer_as_the_server_s_model_does_or_by_their_own():
    """Scores, not only answers: certainty and ensembles are made of their softmax."""
    for method in (FedNH(), FedNH(scale=30.0)):
        server, client = started(method)
        down = method.broadcast(server, 0)
        load_parts(client.model, down)
        with torch.no_grad():
            client.model.body[0].weight += 1.0
        x, _ = client.train.batch(torch.arange(9))
        model = server.memory["model"].eval()
        with client.model.reuse_features():  # as evaluation does: features of its own must not be mixed in
            own = client.model(x)
            torch.testing.assert_close(method.predict(client, x, down), model(x))
            assert torch.equal(FedNH(answer="own").predict(client, x, down), own)
            assert torch.equal(method.predict(client, x, None), own)
        assert not torch.equal(own, model(x))


def test_nearest_by_angle_is_nearest_by_distance_as_prototypes_have_length_one():
    """So the record's rule global_prototypes, which measures distances, means the same."""
    z, known = torch.randn(50, 8), unit(Prototypes(torch.randn(6, 8), torch.ones(6)))
    assert torch.equal(known.scores(z).argmax(1), known.scores(z, "cosine").argmax(1))


def test_all_but_prototypes_of_absent_classes_travels():
    """A body of 144 numbers and the scale; six prototypes of 16 down, three up; six counts."""
    method = FedNH()
    server, client = started(method)
    down = method.broadcast(server, 0)
    assert nbytes(pack(down)) == 4 * (144 + 1 + 6 * 16 + 6)
    assert nbytes(pack(method.local_update(client, down))) == 4 * (144 + 1 + 3 * 16 + 6)


def test_uploads_that_are_not_like_the_model_are_refused():
    method = FedNH()
    server, _ = started(method)
    good = method.broadcast(server, 0)
    tensors, known = good.body.tensors, good.prototypes
    good.check(toy.CLASSES, toy.DIM)
    method.check(server, good)
    for body, prototypes, why in [
        ({name: t for name, t in tensors.items() if name != "head.scale"}, known, "'head.scale': nothing arrived"),
        ({**tensors, "head.vectors": torch.zeros(6, 16)}, known, "arrived, not nothing"),
        ({**tensors, "body.0.bias": torch.zeros(3)}, known, "arrived, not"),
        ({name: t.double() for name, t in tensors.items()}, known, "arrived, not"),
        ({**tensors, "head.scale": torch.tensor(torch.nan)}, known, "not finite"),
        (tensors, Prototypes.absent(toy.CLASSES, 3), "classes in"),
        (tensors, Prototypes.absent(2, toy.DIM), "classes in"),
        (tensors, Prototypes(known.vectors.double(), known.counts), "float32"),
        (tensors, Prototypes(known.vectors, -known.counts), "negative"),
    ]:
        up = BodyAndPrototypes(Weights(body), prototypes)
        with pytest.raises(PayloadError, match=why):
            up.check(toy.CLASSES, toy.DIM)
            method.check(server, up)


def test_a_long_vector_has_no_more_say_than_one_of_length_one():
    """Honest clients send length one; no length that arrives may stand in for samples."""
    server = small([[1.0, 0.0]])
    FedNH(smoothing=0.0).aggregate(server, [upload([[1000.0, 0.0]], [1.0]), upload([[0.0, 1.0]], [1.0])])
    assert server.memory["model"].head.vectors[0].tolist() == pytest.approx([0.5**0.5, 0.5**0.5])


def test_settings_out_of_range_and_clients_with_different_models_are_refused():
    for method, family, why in [
        (FedNH(smoothing=1.1), "tiny_cnn", "method.smoothing"),
        (FedNH(scale=0.0), "tiny_cnn", "method.scale"),
        (FedNH(), "tiny5", "all the same"),
    ]:
        with pytest.raises(ConfigError, match=why):
            Experiment(method=method, models=Models(family=family)).check()


def test_body_weights_are_all_but_prototypes_and_their_counts():
    server, _ = started(FedNH())
    assert set(trained(server.memory["model"]).tensors) == {"body.0.weight", "body.0.bias", "head.scale"}


# The head.


def test_scores_are_cosines_or_negative_distances_times_the_scale():
    z, vectors = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0], [-3.0, -4.0], [3.0, 4.0]])
    torch.testing.assert_close(Nearest(vectors, "cosine", scale=10.0)(z), torch.tensor([[8.0, -10.0, 10.0]]))
    expected = torch.tensor([[-2 * 13**0.5, -20.0, 0.0]])  # from (3, 4) to (0, 2): the root of 9 + 4
    torch.testing.assert_close(Nearest(vectors, "euclidean", scale=2.0)(z), expected)


def test_vectors_and_scale_learn_only_where_they_are_said_to():
    def learning(**which: bool) -> list[str]:
        head = Nearest(torch.eye(3), "cosine", **which)
        F.cross_entropy(head(torch.randn(4, 3, requires_grad=True)), torch.tensor([0, 1, 2, 0])).backward()
        return [name for name, p in head.named_parameters() if p.grad is not None]

    assert learning() == []
    assert learning(learns=True) == ["vectors"]
    assert learning(scale_learns=True) == ["scale"]
    assert learning(learns=True, scale_learns=True) == ["vectors", "scale"]


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_slopes_of_the_head_are_those_of_finite_differences(metric: Any):
    head = Nearest(torch.randn(4, 3, dtype=torch.float64), metric, learns=True, scale=1.5, scale_learns=True).double()

    def scores(z: Tensor, vectors: Tensor, scale: Tensor) -> Tensor:
        return torch.func.functional_call(head, {"vectors": vectors, "scale": scale}, z)

    z = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(scores, (z, head.vectors, head.scale))


def test_an_absent_class_is_never_answered():
    head = Nearest(torch.eye(3), "cosine")
    head.set(Prototypes(torch.eye(3), torch.tensor([1.0, 0.0, 2.0])))
    scores = head(torch.randn(50, 3))
    assert scores[:, 1].isneginf().all() and scores[:, [0, 2]].isfinite().all()


def test_a_learned_scale_bears_an_absent_class():
    """Cosines 1 and 0, scale 1: the slope of the scale is that of two classes, p1 - 1 = -1 / (1 + e)."""
    head = Nearest(torch.eye(3), "cosine", scale_learns=True)
    head.set(Prototypes(torch.eye(3), torch.tensor([1.0, 1.0, 0.0])))
    F.cross_entropy(head(torch.tensor([[1.0, 0.0, 0.0]])), torch.tensor([0])).backward()
    assert head.scale.grad.item() == pytest.approx(-0.268941, abs=1e-6)


def test_an_absent_class_is_never_answered_whatever_the_scale_has_become():
    for scale in (0.0, -1.0):
        head = Nearest(torch.eye(2), "cosine", scale=scale, scale_learns=True)
        head.set(Prototypes(torch.eye(2), torch.tensor([1.0, 0.0])))
        assert head(torch.tensor([[0.6, 0.8]])).argmax(1).item() == 0


def test_other_vectors_are_taken_over_in_place_and_as_copies():
    head = Nearest(torch.eye(2), "cosine", learns=True)
    before, given = head.vectors, Prototypes(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([4.0, 0.0]))
    head.set(given)
    given.vectors.zero_()
    assert head.vectors is before and head.vectors.requires_grad
    assert head.vectors.tolist() == [[0.0, 1.0], [1.0, 0.0]] and head.counts.tolist() == [4.0, 0.0]


def test_prototypes_of_the_head_survive_in_a_file():
    head, other = Nearest(torch.randn(3, 2), "euclidean", scale=7.0), Nearest(torch.zeros(3, 2), "euclidean")
    head.set(Prototypes(torch.randn(3, 2), torch.tensor([1.0, 0.0, 5.0])))
    other.load_state_dict(head.state_dict())
    z = torch.randn(4, 2)
    assert torch.equal(other(z), head(z))
