"""The vectors of one class, of all clients of a round, side by side: what filters against bad parties compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protea.core.clusters import Clusters
from protea.core.payload import places_of
from protea.filters.base import Gathering, Received

ENOUGH = 3  # vectors of a class, or clients of a round, below which nobody can tell who is the odd one out


@dataclass(frozen=True)
class SideBySide:
    """The class vectors that the clients of a round sent in one place of their uploads."""

    clients: tuple[int, ...]  # ascending
    vectors: Tensor  # (clients, classes, dim), float64; zero where absent
    present: Tensor  # (clients, classes), a bool

    def of_class(self, label: int) -> Tensor:
        """Return the rows of the clients that have a class."""
        return self.present[:, label].nonzero().squeeze(1)

    def each_class(self, change: Callable[[Tensor], Tensor], least: int = ENOUGH) -> Tensor:
        """Return all vectors, those of each class that ``least`` clients have changed: ``(n, dim)`` to the same."""
        found = self.vectors.clone()
        for label in range(self.present.shape[1]):
            rows = self.of_class(label)
            if len(rows) >= least:
                found[rows, label] = change(self.vectors[rows, label])
        return found


def clusters_in_turns(
    uploads: Sequence[Received], at: Gathering, look: Callable[[SideBySide, str], Tensor]
) -> Sequence[Received]:
    """Let a filter ``look`` at clusters in turns: in each, every client shows one of its clusters of each class.

    One that has fewer clusters than others shows them again, so that each has one vote in every turn, however many it
    sends.  What is found counts for clusters that are shown for the first time.
    """
    found, places = list(uploads), [places_of(Clusters, at.kind, each.up) for each in uploads]
    for place in dict.fromkeys(place for each in places for place in each):
        rows = [row for row, each in enumerate(places) if place in each]
        clients = tuple(uploads[row].client for row in rows)
        parts = [_clusters(uploads[row], place) for row in rows]
        turns, new = [in_turns(part, at.classes) for part in parts], [part.vectors.clone() for part in parts]
        for turn in range(max(len(each) for each in turns)):
            shown = [each[turn % len(each)] for each in turns]
            vectors = [_shown(part, each) for part, each in zip(parts, shown, strict=True)]
            sent = SideBySide(clients, torch.stack(vectors), torch.stack([each >= 0 for each in shown]))
            looked = look(sent, f"{place}.{turn}".lstrip("."))
            for part, each, own, answer in zip(parts, shown, new, looked, strict=True):
                first = (each >= 0) & (turn < torch.bincount(part.classes, minlength=at.classes))
                own[each[first]] = answer[first].to(own.dtype)
        for row, part, own in zip(rows, parts, new, strict=True):
            if not torch.equal(own, part.vectors):
                name = f"{place}.vectors".lstrip(".")
                given = found[row].up
                found[row] = Received(found[row].client, {**given, name: own.to(given[name].device)})
    return found


def in_turns(part: Clusters, classes: int) -> list[Tensor]:
    """Return which row of each class is shown in each turn, ``(classes,)``; -1 for classes without any.

    The largest cluster of a class is the first, and classes with few clusters begin again.

    >>> part = Clusters(torch.zeros(3, 1), torch.tensor([0, 0, 2]), torch.tensor([2.0, 5.0, 1.0]))
    >>> [turn.tolist() for turn in in_turns(part, 3)]
    [[1, -1, 2], [0, -1, 2]]
    """
    order = part.counts.argsort(descending=True, stable=True)
    own = [order[part.classes[order] == label].tolist() for label in range(classes)]
    turns = max(1, *(len(rows) for rows in own))
    return [torch.tensor([rows[turn % len(rows)] if rows else -1 for rows in own]) for turn in range(turns)]


def _shown(part: Clusters, rows: Tensor) -> Tensor:
    """Return the vectors of these rows, in float64; zero for -1."""
    found = torch.zeros(len(rows), part.vectors.shape[1], dtype=torch.float64)
    found[rows >= 0] = part.vectors[rows[rows >= 0]].double()
    return found


def _clusters(upload: Received, place: str) -> Clusters:
    """Return the clusters in one place of an upload, on the CPU: not all devices have float64."""
    names = ("vectors", "classes", "counts")
    return Clusters.from_flat({name: upload.up[f"{place}.{name}".lstrip(".")] for name in names}).to("cpu")
