"""The geometry of class prototypes: how far apart they are, and how a server spreads them.

Pure functions on ``(classes, dim)`` tensors; nothing here knows of clients or rounds.  Pairs
of classes are computed a block of rows at a time, so that memory grows with
``classes``, not with its square, and never with ``classes * classes * dim``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from protea.core import row_pairs
from protea.core.prototypes import Prototypes
from protea.core.simplex import nearest_simplex
from protea.core.simplex import simplex as simplex

Stop = Literal["tangential", "code"]
Pairs = Literal["dense", "sparse"]
Solver = Literal["iterate", "exact", "lbfgs"]

APART = 0.1  # how far equal rows are moved before they repel each other


def margins(vectors: Tensor, present: Tensor | None = None) -> Tensor:
    """Return the distance of each class to the nearest other class that is present, ``(classes,)``.

    It is infinite where there is no other class, and for absent classes.

    >>> margins(torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])).tolist()
    [1.0, 4.242640495300293, 1.0]
    """
    here = torch.ones(len(vectors), dtype=torch.bool, device=vectors.device) if present is None else present
    points = vectors[here]
    nearest = points.new_empty(len(points))
    for rows, squares, _ in row_pairs.squared_distances(points):
        nearest[rows] = squares.amin(1).sqrt()
    return vectors.new_full((len(vectors),), torch.inf).masked_scatter_(here, nearest)


def has_direction(vectors: Tensor) -> Tensor:
    """Tell which rows have a direction, a bool per class: all but those whose length is zero, or next to it.

    >>> has_direction(torch.tensor([[0.0, 2.0], [0.0, 0.0]])).tolist()
    [True, False]
    """
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=1)
    return lengths > 1e-12  # below, F.normalize does not give unit rows


def energy(vectors: Tensor) -> float:
    """Return the sum over pairs of ``-log`` of their distance: E of ProtoNorm's Eq. 10, for unit rows.

    It is infinite if two rows are equal.

    >>> round(energy(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])), 4)  # -log 2
    -0.6931
    """
    total = 0.0
    for _, squares, _ in row_pairs.squared_distances(vectors):
        total -= float(squares.masked_fill_(squares.isinf(), 1.0).log_().sum()) / 4  # squared, and met twice
    return total


def forces(vectors: Tensor) -> Tensor:
    """Return the force of all other rows on each row, ``(classes, dim)``: F of ProtoNorm's Eq. 11, minus the
    gradient of the energy.

    For unit rows each force has the radial part ``(classes - 1) / 2``, whatever the
    configuration; the part along the sphere says how far a row is from equilibrium.  Equal rows
    do not push each other.

    >>> forces(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])).tolist()
    [[0.5, 0.0], [-0.5, 0.0]]
    """
    force = torch.empty_like(vectors)
    for rows, squares, close in row_pairs.squared_distances(vectors):
        weights = squares.reciprocal_()
        if close.shape[1]:
            weights[close[0] - rows.start, close[1]] = 0.0
        stay = vectors[rows] * weights.sum(1, keepdim=True)
        torch.addmm(stay, weights, vectors, alpha=-1, out=force[rows])
        for i, j in row_pairs.pair_chunks(close, vectors.shape[1]):  # a difference of two close products would be noise
            away = vectors[i] - vectors[j]
            force.index_add_(
                0, i, away / row_pairs.squared_lengths(away).clamp(min=torch.finfo(away.dtype).tiny).unsqueeze(1)
            )
    return force


@dataclass(frozen=True)
class Alignment:
    """The result of :func:`align`."""

    vectors: Tensor  # unit rows
    steps: int  # that were taken
    energy: float  # of the result, see :func:`energy`
    residual: float  # mean force along the sphere, as a share of the radial force; 0 in equilibrium


@torch.no_grad()
def align(
    vectors: Tensor,
    *,
    solver: Solver = "iterate",
    momentum: float = 0.9,
    lr: float = 0.1,
    decay: float = 0.95,
    every: int = 10,
    steps: int = 500,
    stop: Stop = "tangential",
    tol: float = 1e-4,
) -> Alignment:
    """Spread the directions of rows over the unit sphere: solve Thomson's problem, as ProtoNorm's server does.

    ``iterate`` is the paper's Algorithm 1, see :func:`_iterated`, of which the other settings are.  ``exact`` gives
    the optimum itself, the regular simplex that is nearest to the rows, in one step; it needs
    ``classes <= dim + 1``.  ``lbfgs`` is for more classes than that: it ends in a lower energy, and takes ``steps``
    and ``tol`` only.

    Equal rows would stay together for ever, and are moved apart first, always in the same way.
    A zero row has no direction and is refused with :class:`ValueError`.

    >>> found = align(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, -0.1]]))
    >>> (found.vectors @ found.vectors.T)[0, 1:].round(decimals=2).tolist()  # 120 degrees apart
    [-0.5, -0.5]
    >>> found = align(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, -0.1]]), solver="exact")
    >>> found.steps, (found.vectors @ found.vectors.T)[0, 1:].round(decimals=4).tolist()
    (1, [-0.5, -0.5])
    """
    for row in (~has_direction(vectors)).nonzero()[:, 0].tolist():
        length = torch.linalg.vector_norm(vectors[row]).item()
        raise ValueError(f"row {row} has no direction: its length is {length}.  Leave absent classes out.")
    start = _apart(F.normalize(vectors, dim=1))
    if solver == "exact":
        best = nearest_simplex(start)
        return Alignment(best, 1, energy(best), _residual(best, forces(best)))
    x, axes = _own_axes(start)
    if solver == "lbfgs":
        x, taken = _descended(x, steps, tol)
    else:
        x, taken = _iterated(x, momentum, lr, decay, every, steps, stop, tol)
    found = start if taken == 0 else x if axes is None else x @ axes
    return Alignment(found, taken, energy(x), _residual(x, forces(x)))


def _iterated(
    x: Tensor, momentum: float, lr: float, decay: float, every: int, steps: int, stop: Stop, tol: float
) -> tuple[Tensor, int]:
    """Run ProtoNorm's Algorithm 1 from unit rows; return where it ends, and after how many steps.

    ``momentum`` is mu, ``lr`` is eta, multiplied by ``decay`` after ``every`` steps.
    ``tangential`` stops once the residual is below ``tol``.  ``code`` is the authors' rule, which
    from step 10 on waits until the mean force, to four decimals, has stayed the same ten times;
    as most of it is the constant radial part, that is often soon.  It also decays after the very
    first step.
    """
    twos = _twos(x)
    velocity, taken, before, repeats = torch.zeros_like(x), 0, -1.0, 0
    for step in range(steps):
        force = _unit_forces(x, twos)
        if stop == "tangential" and _residual(x, force) < tol:
            break
        velocity.mul_(momentum).add_(force, alpha=lr)  # Eq. 12
        x = x + velocity  # Eq. 13
        x /= torch.linalg.vector_norm(x, dim=1, keepdim=True)  # Eq. 14; forces point outwards, so this is not 0
        taken = step + 1
        if (step if stop == "code" else taken) % every == 0:
            lr *= decay
        if stop == "code" and step >= 10:
            size = round(float(torch.linalg.vector_norm(force, dim=1).mean()), 4)
            repeats = repeats + 1 if size == before else 0
            before = size
            if repeats == 10:
                break
    return x, taken


def _descended(x: Tensor, steps: int, tol: float) -> tuple[Tensor, int]:
    """Go down the energy from unit rows by L-BFGS, in double precision; return where it ends, and after what steps.

    Rows of any length stand for their directions; of the gradient that leaves the part along the sphere.  The result
    is kept only if its energy is lower than that of the start.
    """
    start = x.double()
    point = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [point], max_iter=steps, tolerance_grad=tol * len(x) / 2, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def slope() -> Tensor:
        at = point.detach()
        lengths = torch.linalg.vector_norm(at, dim=1, keepdim=True)
        unit = at / lengths
        force = forces(unit)
        point.grad = (unit * (unit * force).sum(1, keepdim=True) - force) / lengths
        return torch.tensor(energy(unit), dtype=torch.float64)

    optimizer.step(slope)
    found = F.normalize(point.detach(), dim=1)
    if not energy(found) < energy(start):
        return x, 0
    return found.to(x), int(optimizer.state[point]["n_iter"])


@torch.no_grad()
def refine(
    start: Tensor,
    uploads: Sequence[Prototypes],
    *,
    weight: float,
    margin: float,
    steps: int,
    lr: float = 0.01,
    momentum: float = 0.9,
    pairs: Pairs = "dense",
) -> Tensor:
    """Move prototypes so that they stay near what clients sent and have cosines below ``margin``: FedPAGR's Eq. 4 to 6.

    ``steps`` (T) of SGD on unconstrained rows from ``start``, their directions in the loss

        sum over uploads p of class c of (1 - p . u_c)  +  weight * sum over c != c' of max(0, u_c . u_c' - margin)

    whose gradient is written out; ``weight`` is lambda_S, ``margin`` is m.  Returns unit rows,
    ``(classes, dim)``.  ``sparse`` computes only pairs near or above the margin: the same numbers,
    sooner where there are few.  A zero row is an absent class; it stays zero and pushes no other.
    """
    sent = torch.zeros_like(start)
    for part in uploads:
        sent += part.vectors
    here = has_direction(start)
    point, toward = start[here], -sent[here]
    velocity = torch.zeros_like(point)
    near = row_pairs.Neighbours(point, margin) if pairs == "sparse" else None
    for _ in range(steps):
        lengths = torch.linalg.vector_norm(point, dim=1, keepdim=True)
        u = point / lengths
        pushed = row_pairs.push_above(u, margin) if near is None else near.push(u)
        slope = torch.add(toward, pushed, alpha=2 * weight)  # each pair is counted in both orders
        slope.addcmul_((slope * u).sum(1, keepdim=True), u, value=-1)  # lengths do not matter to the loss
        velocity.mul_(momentum).addcdiv_(slope, lengths)
        point.sub_(velocity, alpha=lr)
    found = torch.zeros_like(start)
    found[here] = F.normalize(point, dim=1)
    return found


def _residual(x: Tensor, force: Tensor) -> float:
    """Return the mean length of the forces along the sphere, as a share of their constant radial part."""
    if len(x) < 2:
        return 0.0
    radial = (len(x) - 1) / 2  # of the force on each row
    along = torch.sub(force, x, alpha=radial)
    return float(torch.linalg.vector_norm(along, dim=1).sum()) / (len(x) * radial)


def _unit_forces(x: Tensor, twos: Tensor | None) -> Tensor:
    """Compute :func:`forces` of unit rows, faster where no two are close; ``twos`` is from :func:`_twos`."""
    if twos is None:
        return forces(x)
    squares = torch.addmm(twos, x, x.T, alpha=-2)
    if squares.min().item() < 0.2:  # 2 - 2 cos would lose digits
        return forces(x)
    weights = squares.reciprocal_()
    return torch.addmm(x * weights.sum(1, keepdim=True), weights, x, alpha=-1)


def _twos(x: Tensor) -> Tensor | None:
    """Return the sum of squared lengths of each two unit rows, infinite on the diagonal; ``None`` if there are many."""
    if not 0 < len(x) ** 2 <= row_pairs.BLOCK:
        return None
    return x.new_full((len(x), len(x)), 2.0).fill_diagonal_(torch.inf)


def _own_axes(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the rows in a basis of the space they span, and its axes, so that ``x = rows @ axes``.

    Forces between rows stay in that space, which is small where there are few rows.
    """
    classes, dim = x.shape
    if 2 * classes > dim:  # then finding axes would cost more than is saved
        return x, None
    axes, corner = torch.linalg.qr(x.cpu().double().T)  # double: the distance of close rows must not change
    return corner.T.contiguous().to(x), axes.T.contiguous().to(x)


def _apart(x: Tensor) -> Tensor:
    """Return the unit rows with equal ones moved apart by about ``APART``."""
    together = margins(x) < 8 * torch.finfo(x.dtype).eps
    if not together.any():
        return x
    fixed = torch.Generator().manual_seed(0)  # no draw of the run: the same rows always part in the same way
    noise = torch.randn(int(together.sum()), x.shape[1], generator=fixed, dtype=x.dtype).to(x.device)
    x = x.clone()
    x[together] = F.normalize(x[together] + APART * F.normalize(noise, dim=1), dim=1)
    return x
