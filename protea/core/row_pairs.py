"""All pairs of rows of a matrix, a block of rows at a time: memory grows with the rows, not with their square."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 1 << 20  # numbers in a block of rows by all rows, or of pairs by dimensions
SLACK = 0.01  # how much cosines may change before pairs are searched again


class Neighbours:
    """A list of the pairs of rows whose cosine may exceed ``margin``, searched anew only for rows that moved.

    A cosine changes by no more than both its rows have moved.  So a pair whose cosine was below
    ``margin - SLACK`` in the last search is still below the margin if neither row moved by ``SLACK / 2``.
    """

    def __init__(self, like: Tensor, margin: float) -> None:
        self.margin = margin
        self.looked_at = torch.full_like(like, torch.nan)  # where each row was when its pairs were searched
        self.pairs: Tensor | None = torch.zeros(2, 0, dtype=torch.int64, device=like.device)

    def push(self, u: Tensor) -> Tensor:
        """Return for each unit row the sum of the rows whose cosine with it exceeds the margin, ``(classes, dim)``."""
        self.update(u)
        if self.pairs is None:
            return push_above(u, self.margin)
        result = torch.zeros_like(u)
        for i, j in pair_chunks(self.pairs, u.shape[1]):
            above = (u[i] * u[j]).sum(1) > self.margin
            i, j = i[above], j[above]
            result.index_add_(0, i, u[j]).index_add_(0, j, u[i])
        return result

    def update(self, u: Tensor) -> None:
        """Search the pairs of those rows again that moved by ``SLACK / 2`` or more."""
        moved = ~(torch.linalg.vector_norm(u - self.looked_at, dim=1) < SLACK / 2)  # at first, all: nan is not less
        if self.pairs is None or not moved.any():
            return
        self.looked_at[moved] = u[moved]
        found = [self.pairs[:, ~moved[self.pairs].any(0)]]
        order = torch.arange(len(u), device=u.device)
        for rows in order[moved].split(block_height(len(u))):
            close = self.looked_at[rows] @ self.looked_at.T > self.margin - SLACK
            close &= (order > rows.unsqueeze(1)) | ~moved  # of two that moved, once
            i, j = close.nonzero(as_tuple=True)
            found.append(torch.stack([rows[i], j]))
            if sum(part.shape[1] for part in found) > len(u) ** 2 // 32:
                self.pairs = None  # too many to be worth a list, for good
                return
        self.pairs = torch.cat(found, dim=1)


def push_above(u: Tensor, margin: float) -> Tensor:
    """Return for each unit row the sum of the rows whose cosine with it exceeds the margin, from all pairs."""
    result = torch.zeros_like(u)
    for rows in row_blocks(len(u)):
        above = u[rows] @ u.T > margin
        above.diagonal(rows.start).fill_(False)
        if above.any():
            torch.mm(above.to(u.dtype), u, out=result[rows])
    return result


def squared_distances(x: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield blocks of rows, their squared distances to all rows (infinite to themselves), and the close pairs.

    Distances come from products, |a|^2 + |b|^2 - 2 a.b, which loses digits where a and b are
    close: for such pairs, ``(2, pairs)``, they are computed again from the differences.
    """
    x = x - x.mean(0)  # distances stay, and what cancels becomes smaller
    lengths = squared_lengths(x)
    for rows in row_blocks(len(x)):
        both = lengths[rows].unsqueeze(1) + lengths
        squares = torch.addmm(both, x[rows], x.T, alpha=-2)
        squares.diagonal(rows.start).fill_(torch.inf)
        close = (squares <= torch.finfo(x.dtype).eps ** 0.5 * both).nonzero().T
        if not close.shape[1]:
            yield rows, squares, close
            continue
        close[0] += rows.start
        for a, b in pair_chunks(close, x.shape[1]):
            squares[a - rows.start, b] = squared_lengths(x[a] - x[b])
        yield rows, squares, close


def squared_lengths(x: Tensor) -> Tensor:
    """Return the squared length of each row."""
    return x.square().sum(1)


def block_height(classes: int) -> int:
    """Return how many rows make a block."""
    return max(1, BLOCK // max(1, classes))


def row_blocks(classes: int) -> Iterator[slice]:
    """Yield all rows, a block at a time."""
    height = block_height(classes)
    for start in range(0, classes, height):
        yield slice(start, min(start + height, classes))


def pair_chunks(pairs: Tensor, dim: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs ``(2, pairs)`` in portions whose rows fit a block."""
    for chunk in pairs.split(max(1, BLOCK // max(1, dim)), dim=1):
        if chunk.shape[1]:
            yield chunk[0], chunk[1]
