"""Clusters of points by their first neighbours, without a number of clusters to choose.

Sarfraz, Sharma, Stiefelhagen: *Efficient Parameter-Free Clustering Using First Neighbor Relations*, CVPR 2019.
Two points are in one cluster if one is the nearest of the other, or if both have the same nearest; and so are points
that others connect.  The means of the clusters are clustered in the same way, and so on, until one cluster is left.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from protea.core import row_pairs

Level = Literal["last", "first"]


def first_neighbours(points: Tensor) -> Tensor:
    """Return the row of the point at the smallest angle to each other point, ``(n,)``; the first one of equals.

    A point without any other is its own neighbour.

    >>> first_neighbours(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])).tolist()
    [1, 0, 1]
    """
    unit = F.normalize(points, dim=1)
    if len(unit) < 2:
        return torch.arange(len(unit), device=points.device)
    found = []
    for rows in torch.arange(len(unit), device=points.device).split(max(1, row_pairs.BLOCK // len(unit))):
        cosines = unit[rows] @ unit.T
        cosines[torch.arange(len(rows), device=points.device), rows] = -torch.inf
        found.append(cosines.argmax(1))
    return torch.cat(found)


def connected(neighbours: Tensor) -> Tensor:
    """Return the cluster of each point, ``(n,)``: those that are connected by neighbours, numbered by first members.

    >>> connected(torch.tensor([1, 0, 3, 2, 3])).tolist()
    [0, 0, 1, 1, 1]
    """
    lowest = torch.arange(len(neighbours), device=neighbours.device)
    while True:
        new = torch.minimum(lowest, lowest[neighbours])
        new = new.scatter_reduce(0, neighbours, new, "amin")
        new = new[new]  # what a point stands for may itself stand for a lower one
        if torch.equal(new, lowest):
            found: Tensor = torch.unique(lowest, return_inverse=True)[1]
            return found
        lowest = new


def partitions(points: Tensor) -> list[Tensor]:
    """Return partitions of points ``(n, dim)``, the finest first, as the cluster of each point ``(n,)``.

    Means are of all points in a cluster.  One single cluster is left out, unless the first partition is one.

    >>> line = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.1, 1.0], [0.0, 1.0]])
    >>> [each.tolist() for each in partitions(line)]
    [[0, 0, 1, 1]]
    """
    found = [connected(first_neighbours(points))]
    while len(found[-1]) and found[-1].max() > 0:
        coarser = connected(first_neighbours(cluster_means(points, found[-1])[0]))
        if not coarser.any():
            break
        found.append(coarser[found[-1]])
    return found


def cluster_means(points: Tensor, clusters: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of the points of each cluster, ``(clusters, dim)``, and how many points it has."""
    sizes = torch.bincount(clusters).to(points.dtype)
    sums = points.new_zeros(len(sizes), points.shape[1]).index_add_(0, clusters, points)
    return sums / sizes.unsqueeze(1), sizes


def clusters_of(points: Tensor, level: Level = "last", most: int | None = None) -> Tensor:
    """Return the cluster of each point, ``(n,)``, in the finest (``first``) or coarsest (``last``) partition.

    Where this has more than ``most`` clusters a coarser one is taken, and where there is none all points are one.
    """
    found = partitions(points)
    for each in found if level == "first" else found[-1:]:
        if most is None or int(each.max()) < most:
            return each
    return torch.zeros_like(found[0])
