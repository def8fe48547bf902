"""Clusters by first neighbours, by hand and by their definition, and the payload that carries them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from protea import Prototypes
from protea.core import row_pairs
from protea.core.clusters import PER_CLASS, Clusters
from protea.core.errors import PayloadError
from protea.core.first_neighbours import cluster_means, clusters_of, connected, first_neighbours, partitions
from protea.core.message import nbytes
from protea.core.payload import pack, unpack, vector_names


def at_angles(*degrees: float) -> Tensor:
    turned = torch.tensor(degrees).deg2rad()
    return torch.stack([turned.cos(), turned.sin()], 1)


def by_definition(points: Tensor) -> list[set[int]]:
    """Link i and j if one is the other's nearest or both have the same nearest; return what is connected."""
    unit = points / points.norm(dim=1, keepdim=True)
    nearest = []
    for i in range(len(points)):
        cosines = [float(unit[i] @ unit[j]) if j != i else -9.0 for j in range(len(points))]
        nearest.append(cosines.index(max(cosines)))
    linked = [
        {j for j in range(len(points)) if nearest[i] == j or nearest[j] == i or nearest[i] == nearest[j]} | {i}
        for i in range(len(points))
    ]
    groups: list[set[int]] = []
    for i in range(len(points)):
        group, todo = set(), [i]
        while todo:
            here = todo.pop()
            if here not in group:
                group.add(here)
                todo += linked[here]
        if group not in groups:
            groups.append(group)
    return groups


def groups(labels: Tensor) -> list[set[int]]:
    return [set((labels == each).nonzero().squeeze(1).tolist()) for each in labels.unique()]


# First neighbours


def test_neighbours_are_at_the_smallest_angle_whatever_the_length():
    points = at_angles(0, 10, 80, 95) * torch.tensor([[1.0], [50.0], [2.0], [0.1]])
    assert first_neighbours(points).tolist() == [1, 0, 3, 2]
    assert clusters_of(points).tolist() == [0, 0, 1, 1]


def test_a_chain_of_neighbours_is_one_cluster():
    assert first_neighbours(at_angles(0, 8, 14, 18, 60, 61)).tolist() == [1, 2, 3, 2, 5, 4]
    assert partitions(at_angles(0, 8, 14, 18, 60, 61))[0].tolist() == [0, 0, 0, 0, 1, 1]


def test_means_are_clustered_again_until_one_is_left():
    pairs = at_angles(0, 1, 10, 11, 80, 81, 95, 96)
    found = partitions(pairs)
    assert [each.tolist() for each in found] == [[0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 0, 1, 1, 1, 1]]
    assert clusters_of(pairs, "first").tolist() == found[0].tolist()
    assert clusters_of(pairs, "last").tolist() == found[1].tolist()


def test_a_coarser_partition_is_taken_where_there_are_too_many_clusters():
    pairs = at_angles(0, 1, 10, 11, 80, 81, 95, 96)
    assert int(clusters_of(pairs, "first", most=4).max()) + 1 == 4
    assert int(clusters_of(pairs, "first", most=3).max()) + 1 == 2
    assert clusters_of(pairs, "last", most=1).tolist() == [0] * 8


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_points_are_one_cluster(count: int):
    assert clusters_of(at_angles(0, 120)[:count]).tolist() == [0] * count


def test_points_without_direction_and_equal_points_find_a_neighbour():
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    assert first_neighbours(points).tolist() == [1, 2, 1, 1]
    assert clusters_of(points).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_the_first_partition_is_what_the_definition_says(seed: int):
    points = torch.randn(40, 3, generator=torch.Generator().manual_seed(seed))
    assert groups(partitions(points)[0]) == by_definition(points)


def test_blocks_of_rows_give_the_same(monkeypatch: pytest.MonkeyPatch):
    points = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    whole = first_neighbours(points)
    monkeypatch.setattr(row_pairs, "BLOCK", 70)  # two rows at a time
    assert torch.equal(first_neighbours(points), whole)


def test_long_ways_are_followed_to_their_end():
    chain = torch.tensor([*range(1, 500), 498])
    assert connected(chain).tolist() == [0] * 500
    assert connected(chain.flip(0).neg() + 499).tolist() == [0] * 500


def test_means_of_clusters_count_every_point_once():
    means, sizes = cluster_means(torch.tensor([[1.0], [3.0], [8.0]]), torch.tensor([0, 0, 1]))
    assert (means.tolist(), sizes.tolist()) == ([[2.0], [8.0]], [2.0, 1.0])


# The payload


ROWS = Clusters(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 0, 2]), torch.tensor([4.0, 1, 2]))


def test_each_class_is_clustered_by_itself():
    z = at_angles(0, 1, 90, 91, 45)
    found = Clusters.of(z, torch.tensor([3, 3, 3, 3, 1]))
    assert (found.classes.tolist(), found.counts.tolist()) == ([1, 3, 3], [1.0, 2.0, 2.0])
    torch.testing.assert_close(found.vectors[1:], torch.stack([z[:2].mean(0), z[2:4].mean(0)]))
    assert len(Clusters.of(z[:0], torch.zeros(0, dtype=torch.int64))) == 0


def test_means_count_rows_once_or_by_their_samples():
    plain, weighed = ROWS.means(4), ROWS.means(4, by_count=True)
    torch.testing.assert_close(plain.vectors, torch.tensor([[0.5, 1.0], [0, 0], [3, 0], [0, 0]]))
    torch.testing.assert_close(weighed.vectors[0], torch.tensor([0.8, 0.4]))
    assert plain.counts.tolist() == weighed.counts.tolist() == [5.0, 0.0, 2.0, 0.0]


def test_classes_that_are_absent_keep_their_earlier_rows():
    new = Clusters(torch.tensor([[9.0, 9.0]]), torch.tensor([0]), torch.tensor([1.0]))
    found = new.filled(ROWS)
    assert (found.classes.tolist(), found.vectors.tolist()) == ([0, 2], [[9.0, 9.0], [3.0, 0.0]])
    assert new.filled(None) is new


def test_a_class_is_as_near_as_its_nearest_row():
    scores = ROWS.scores(torch.tensor([[0.0, 5.0], [1.0, 0.0]]), 4)
    torch.testing.assert_close(scores[:, [0, 2]], torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    assert scores[:, [1, 3]].isneginf().all()


def test_prototypes_are_clusters_with_one_row_each():
    found = Clusters.of_prototypes(Prototypes(torch.tensor([[0.0], [5.0]]), torch.tensor([0.0, 3.0])))
    assert (found.vectors.tolist(), found.classes.tolist(), found.counts.tolist()) == ([[5.0]], [1], [3.0])


def test_rows_travel_as_they_are():
    flat = pack(ROWS)
    again = unpack(Clusters, flat)
    assert again is not None and all(
        torch.equal(a, b) for a, b in zip(pack(again).values(), flat.values(), strict=True)
    )
    assert nbytes(flat) == 3 * (2 * 4 + 8 + 4)
    assert vector_names(Clusters, flat) == ["vectors"]
    ROWS.check(classes=3, dim=2)
    Clusters.none(2).check(classes=3, dim=2)


def spoilt(**changes: Tensor) -> Clusters:
    return Clusters(**{"vectors": ROWS.vectors, "classes": ROWS.classes, "counts": ROWS.counts, **changes})


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (spoilt(vectors=ROWS.vectors[:, :1]), "in 1 dimensions"),
        (spoilt(vectors=ROWS.vectors.double()), "not of float32, int64, float32"),
        (spoilt(classes=ROWS.classes.int()), "not of float32, int64, float32"),
        (spoilt(vectors=ROWS.vectors * torch.nan), "not finite"),
        (spoilt(classes=torch.tensor([0, 0, 3])), "not among the 3"),
        (spoilt(classes=torch.tensor([0, -1, 2])), "not among the 3"),
        (spoilt(counts=torch.tensor([1.0, 0.0, 2.0])), "whole number from 1"),
        (spoilt(counts=torch.tensor([1.0, 1.5, 2.0])), "whole number from 1"),
        (spoilt(counts=torch.tensor([1.0, 2e9, 2.0])), "whole number from 1"),
    ],
)
def test_what_no_honest_client_sends_is_refused(bad: Clusters, said: str):
    with pytest.raises(PayloadError, match=said):
        bad.check(classes=3, dim=2)


def test_the_rows_of_a_class_are_bounded():
    most = Clusters(torch.ones(PER_CLASS, 2), torch.zeros(PER_CLASS, dtype=torch.int64), torch.ones(PER_CLASS))
    most.check(classes=3, dim=2)
    with pytest.raises(PayloadError, match=f"More than {PER_CLASS} clusters of one class"):
        Clusters.joined([most, ROWS]).check(classes=3, dim=2)


@pytest.mark.parametrize(
    "named",
    [
        {"vectors": torch.ones(2, 2), "counts": torch.ones(2)},
        {**pack(ROWS), "more": torch.ones(1)},
        {**pack(ROWS), "classes": torch.zeros(2, dtype=torch.int64)},
        {**pack(ROWS), "counts": torch.ones(3, 1)},
        {**pack(ROWS), "vectors": torch.ones(3)},
    ],
)
def test_tensors_that_do_not_fit_each_other_are_refused(named: dict[str, Tensor]):
    with pytest.raises(PayloadError, match="Clusters"):
        unpack(Clusters, named)
