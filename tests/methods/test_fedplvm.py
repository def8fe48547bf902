from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy

from protea import Prototypes, Upload
from protea.core.clusters import Clusters
from protea.core.errors import PayloadError
from protea.core.message import nbytes
from protea.core.payload import pack
from protea.core.rng import Streams
from protea.core.server import Server
from protea.core.weights import Weights
from protea.methods.fedplvm import ClustersAndModel, ClustersMeansAndModel, FedPLVM, correction, sparse_contrast

X, Y = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])


def rows(*vectors: torch.Tensor, classes: list[int]) -> Clusters:
    return Clusters(torch.stack(vectors), torch.tensor(classes), torch.ones(len(vectors)))


def upload(*vectors: torch.Tensor, classes: list[int], client: int = 0) -> Upload[ClustersAndModel]:
    return Upload(client, ClustersAndModel(rows(*vectors, classes=classes), None), 5)


def server(method: FedPLVM, classes: int = 3) -> Server:
    made = Server(classes, 2, Streams(0))
    method.start_server(made)
    return made


# The contrast


def test_contrast_of_one_sample_between_two_classes():
    """The cosines are 0.6 and 0.8; to the power of 1/2 and at a temperature of 1/2 they are 2 * sqrt of these."""
    z, near = torch.tensor([[3.0, 4.0]]), rows(X, Y, classes=[0, 1])
    found = sparse_contrast(z, torch.tensor([0]), near, alpha=0.5, temperature=0.5, floor=0.01)
    own, other = 2 * math.sqrt(0.6), 2 * math.sqrt(0.8)
    assert found.item() == pytest.approx(math.log1p(math.exp(other - own)), rel=1e-5)


def test_all_clusters_of_the_right_class_count_together():
    z, near = torch.tensor([[3.0, 4.0]]), rows(X, Y, Y, classes=[0, 0, 1])
    found = sparse_contrast(z, torch.tensor([0]), near, alpha=1.0, temperature=1.0, floor=0.01)
    right, wrong = math.exp(0.6) + math.exp(0.8), math.exp(0.8)
    assert found.item() == pytest.approx(-math.log(right / (right + wrong)), rel=1e-5)


def test_with_one_cluster_each_and_alpha_1_it_is_the_contrast_of_others():
    from protea import losses

    torch.manual_seed(0)
    vectors, z, y = torch.rand(3, 4), torch.rand(5, 4), torch.tensor([0, 1, 2, 1, 0])
    near = Clusters(vectors, torch.arange(3), torch.ones(3))
    found = sparse_contrast(z, y, near, alpha=1.0, temperature=0.07, floor=1e-6)
    torch.testing.assert_close(found, losses.contrast(z, y, Prototypes(vectors, torch.ones(3)), 0.07))


def test_a_small_alpha_pulls_harder_where_the_cosine_is_small():
    near = rows(X, Y, classes=[0, 1])

    def slope(alpha: float) -> float:
        z = torch.tensor([[0.02, 1.0]], requires_grad=True)
        sparse_contrast(z, torch.tensor([0]), near, alpha, 1.0, 0.01).backward()
        assert z.grad is not None
        return float(z.grad.norm())

    assert slope(0.25) > 2 * slope(1.0)


def test_cosines_below_the_floor_count_as_the_floor_and_nothing_becomes_nan():
    near = rows(X, Y, classes=[0, 1])
    z = torch.tensor([[-1.0, 0.0], [0.0, 0.0]], requires_grad=True)
    found = sparse_contrast(z, torch.tensor([0, 0]), near, 0.25, 0.07, 0.01)
    found.backward()
    assert found.item() == pytest.approx(math.log(2), rel=1e-5)  # all cosines are the floor
    assert z.grad is not None and not z.grad.any()


def test_a_sample_of_a_class_without_clusters_adds_nothing_but_counts_in_the_mean():
    z, near = torch.tensor([[3.0, 4.0], [3.0, 4.0]]), rows(X, Y, classes=[0, 1])
    alone = sparse_contrast(z[:1], torch.tensor([0]), near, 0.5, 0.5, 0.01)
    torch.testing.assert_close(sparse_contrast(z, torch.tensor([0, 2]), near, 0.5, 0.5, 0.01), alone / 2)
    assert sparse_contrast(z, torch.tensor([2, 2]), near, 0.5, 0.5, 0.01).item() == 0


def test_correction_is_the_squared_distance_of_the_cosine_to_1():
    means = Prototypes(torch.tensor([[5.0, 0.0], [0.0, 0.0]]), torch.tensor([1.0, 0.0]))
    z = torch.tensor([[3.0, 4.0], [-1.0, 0.0], [1.0, 1.0]])
    found = correction(z, torch.tensor([0, 0, 1]), means)
    assert found.item() == pytest.approx((0.4**2 + 2.0**2) / 3)


# Clients


def test_the_loss_of_the_first_round_is_cross_entropy(monkeypatch: pytest.MonkeyPatch):
    client, method, centre = toy.ready(), FedPLVM(), toy.started(FedPLVM())
    x, y = client.train.batch(torch.arange(6))
    seen: list[Any] = []
    monkeypatch.setattr(client, "fit", lambda loss: seen.append(loss(x, y)))
    method.local_update(client, method.broadcast(centre, 0))
    torch.testing.assert_close(seen[0], F.cross_entropy(client.model(x), y))


def test_the_loss_of_a_later_round_is_the_sum_of_three_terms(monkeypatch: pytest.MonkeyPatch):
    client, method = toy.ready(), FedPLVM(weight=3.0, correction=0.5)
    x, y = client.train.batch(torch.arange(6))
    torch.manual_seed(0)
    clusters = Clusters(torch.rand(9, toy.DIM), torch.arange(9) % toy.CLASSES, torch.ones(9))
    down = ClustersMeansAndModel(clusters, clusters.means(toy.CLASSES), None)
    seen: list[Any] = []
    monkeypatch.setattr(client, "fit", lambda loss: seen.append(loss(x, y)))
    method.local_update(client, down)
    z = client.model.features(x)
    terms = sparse_contrast(z, y, clusters, 0.25, 0.07, 0.01), correction(z, y, down.means)
    torch.testing.assert_close(seen[0], F.cross_entropy(client.model(x), y) + 3 * (terms[0] + 0.5 * terms[1]))


def test_clients_send_clusters_of_their_features_after_training():
    client, method, centre = toy.ready(), FedPLVM(), toy.started(FedPLVM())
    up = method.local_update(client, method.broadcast(centre, 0))
    expected = Clusters.of(*client.features())
    assert torch.equal(up.clusters.vectors, expected.vectors) and up.model is None
    assert up.clusters.counts.sum() == len(client.train)
    torch.testing.assert_close(up.clusters.means(toy.CLASSES, by_count=True).vectors, client.prototypes().vectors)


def test_one_mean_for_each_class_is_a_setting():
    client, method, centre = toy.ready(), FedPLVM(local="mean"), toy.started(FedPLVM())
    up = method.local_update(client, method.broadcast(centre, 0))
    assert up.clusters.classes.tolist() == [0, 1, 2]
    torch.testing.assert_close(up.clusters.vectors, client.prototypes().vectors[:3])


def test_features_are_bounded_before_they_are_clustered():
    client, method, centre = toy.ready(), FedPLVM(), toy.started(FedPLVM())
    client.longest = 0.5
    up = method.local_update(client, method.broadcast(centre, 0))
    assert up.clusters.vectors.norm(dim=1).max() <= 0.5 + 1e-6


# The server


def test_the_server_clusters_what_clients_sent():
    method = FedPLVM()
    made = server(method)
    method.aggregate(
        made,
        [
            upload(X, 3 * Y, 2 * X, classes=[0, 0, 1]),
            upload(3 * X, Y, classes=[0, 0], client=1),
        ],
    )
    found: Clusters = made.memory["clusters"]
    assert found.classes.tolist() == [0, 0, 1]
    torch.testing.assert_close(found.vectors, torch.stack([2 * X, 2 * Y, 2 * X]))
    down = method.broadcast(made, 0)
    torch.testing.assert_close(down.means.vectors[0], torch.tensor([1.0, 1.0]))  # rows count once
    assert down.means.present.tolist() == [True, True, False]


def test_the_server_may_average_instead():
    method = FedPLVM(overall="mean")
    made = server(method)
    method.aggregate(made, [upload(X, 2 * Y, classes=[0, 0]), upload(4 * X, classes=[2], client=1)])
    assert made.memory["clusters"].classes.tolist() == [0, 2]
    torch.testing.assert_close(made.memory["clusters"].vectors, torch.tensor([[0.5, 1.0], [4.0, 0.0]]))


def test_classes_that_nobody_reported_stay_and_empty_uploads_do_no_harm():
    method = FedPLVM()
    made = server(method)
    method.aggregate(made, [upload(X, classes=[0])])
    method.aggregate(made, [upload(Y, classes=[2])])
    assert sorted(made.memory["clusters"].classes.tolist()) == [0, 2]
    method.aggregate(made, [Upload(0, ClustersAndModel(Clusters.none(2), None), 5)])
    assert sorted(made.memory["clusters"].classes.tolist()) == [0, 2]


def test_models_are_averaged_where_that_is_asked_for():
    method = FedPLVM(share_weights=True)
    centre = toy.started(method)
    assert method.needs.same_architecture and not FedPLVM().needs.same_architecture
    parts = [
        Weights({k: torch.full_like(t, value) for k, t in centre.memory["model"].tensors.items()}) for value in (0, 4)
    ]
    ups = [
        Upload(client, ClustersAndModel(Clusters.none(toy.DIM), part), samples)
        for client, (part, samples) in enumerate(zip(parts, (3, 1), strict=True))
    ]
    method.aggregate(centre, ups)
    assert all(t.eq(1.0).all() for t in centre.memory["model"].tensors.values())


@pytest.mark.parametrize("share", [False, True])
def test_a_model_arrives_only_where_it_is_expected(share: bool):
    method = FedPLVM(share_weights=share)
    centre = toy.started(method)
    other = None if share else Weights({"w": torch.ones(1)})
    with pytest.raises(PayloadError, match="and a model were" if share else "alone were"):
        method.check(centre, ClustersAndModel(Clusters.none(toy.DIM), other))


# Answers


def test_it_answers_by_the_head_or_by_the_nearest_cluster():
    client, clusters = toy.ready(), Clusters(torch.eye(toy.DIM)[:4], torch.tensor([5, 5, 1, 0]), torch.ones(4))
    down = ClustersMeansAndModel(clusters, clusters.means(toy.CLASSES), None)
    x, _ = client.train.batch(torch.arange(4))
    assert torch.equal(FedPLVM().predict(client, x, down), client.model(x))
    found = FedPLVM(answer="nearest").predict(client, x, down)
    torch.testing.assert_close(found, clusters.scores(client.model.features(x), toy.CLASSES))
    assert found[:, [2, 3, 4]].isneginf().all()


def test_there_are_no_prototypes_before_the_first_uploads():
    method = FedPLVM()
    made = server(method)
    assert method.global_prototypes(made) is None
    method.aggregate(made, [upload(X, Y, classes=[1, 1])])
    found = method.global_prototypes(made)
    assert found is not None and found.vectors[1].tolist() == [0.5, 0.5]


def test_bytes_are_those_of_the_page():
    """512 numbers of 4 bytes, a class of 8 and a count of 4 for each row; three rows for each of ten classes."""
    rows = Clusters(torch.zeros(30, 512), torch.arange(30) % 10, torch.ones(30))
    assert nbytes(pack(ClustersAndModel(rows, None))) == 61_800
    assert nbytes(pack(ClustersMeansAndModel(rows, rows.means(10), None))) == 82_320
