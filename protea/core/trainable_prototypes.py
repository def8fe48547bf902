"""Prototypes that a server trains on those of its clients, and the loss that keeps their classes apart.

The loss is FedTGP's, and so are numbers of equations.  Gradients ("slopes") are written out, and weights are changed
in place: that is several times as fast as autograd.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protea.core.errors import ProteaError
from protea.core.prototypes import Prototypes

CLOSE = 0.01  # squared distances below this share of the squared lengths are taken from differences


class TrainablePrototypes(nn.Module):
    """A trainable vector per class, and the network F that maps it to a prototype (Figure 3 of FedTGP)."""

    def __init__(self, classes: int, dim: int, mlp: bool = True) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(classes, dim))
        layers = [nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)] if mlp else []
        self.mlp = nn.Sequential(*layers)

    def forward(self) -> Tensor:
        """Return the prototypes, ``(classes, dim)``."""
        return self.layers()[1]

    def prototypes(self) -> Prototypes:
        """Return the prototypes of all classes, also of those that no client has reported yet."""
        vectors = self().detach().clone()
        return Prototypes(vectors, vectors.new_ones(len(vectors)))

    def layers(self) -> tuple[Tensor, Tensor]:
        """Return the hidden layer after its ReLU, and the prototypes; both are ``(classes, dim)``."""
        if not self.mlp:
            return self.vectors, self.vectors
        inner, inner_bias, outer, outer_bias = self.mlp.parameters()
        hidden = F.linear(self.vectors, inner, inner_bias).relu()
        return hidden, F.linear(hidden, outer, outer_bias)

    @torch.no_grad()
    def descend(self, slope: Tensor, hidden: Tensor, lr: float) -> None:
        """Take one step of SGD, in place, for a loss whose gradient at the prototypes is ``slope``.

        The result is that of autograd, without a graph, and without ever holding the gradient of a weight.
        """
        if self.mlp:
            inner, inner_bias, outer, outer_bias = self.mlp.parameters()
            behind = (slope @ outer).mul_(hidden.sign())  # each by the weights before they change
            outer.addmm_(slope.T, hidden, alpha=-lr)
            outer_bias.sub_(slope.sum(0), alpha=lr)
            slope = behind @ inner
            inner.addmm_(behind.T, self.vectors, alpha=-lr)
            inner_bias.sub_(behind.sum(0), alpha=lr)
        self.vectors.sub_(slope, alpha=lr)


@torch.no_grad()
def train_prototypes(
    module: TrainablePrototypes,
    points: Tensor,
    labels: Tensor,
    margin: Tensor | float,
    epochs: int,
    batch: int,
    lr: float,
) -> float:
    """Train prototypes on the uploads ``points`` (n, dim) by :func:`contrast`; return the last epoch's mean loss.

    ``margin`` is one number or one for each class.  Every batch runs all classes through the
    network again, and this is nearly all of the cost: a larger ``batch`` is faster almost in proportion.
    """
    margins = points.new_zeros(len(module.vectors)).add_(margin)
    total = points.new_zeros(())
    for _ in range(epochs if len(points) else 0):
        total = torch.zeros_like(total)
        order = torch.randperm(len(points)).to(points.device)
        for x, y in zip(points[order].split(batch), labels[order].split(batch), strict=True):
            hidden, prototypes = module.layers()
            value, slope = contrast_slope(x, y, prototypes, margins)
            module.descend(slope, hidden, lr)
            total += value * len(y)
    loss = total.item() / max(1, len(points))
    if not math.isfinite(loss):
        raise ProteaError(f"The server's prototypes diverged: their loss is {loss} (lr {lr:g}).  Try a smaller one.")
    return loss


def contrast(points: Tensor, labels: Tensor, prototypes: Tensor, margin: Tensor | float) -> Tensor:
    """Return Eq. 10, mean over points: each must be nearer to its own prototype than to others, by ``margin``.

    Distances come from differences, as near 0 those from products are noise; their gradient at 0 is 0.

    >>> far = torch.tensor([[0.0], [100.0]])
    >>> contrast(torch.tensor([[0.0]]), torch.tensor([0]), far, margin=1.0).item()
    0.0
    """
    away = torch.cdist(points, prototypes, compute_mode="donot_use_mm_for_euclid_dist")
    return F.cross_entropy(-(away + margin * F.one_hot(labels, len(prototypes))), labels)


@torch.no_grad()
def contrast_bound(points: Tensor, labels: Tensor, margin: float) -> float:
    """Return what :func:`contrast` cannot fall below, whatever the prototypes are.

    By the triangle inequality two classes win, together, no more over each other than twice the distance of their
    points.  So the mean logit gap is at most the mean distance of classes less the margin; as the loss is convex in
    gaps, it is lowest where classes share them best.  ``s`` is each class's share of error there.

    >>> bound = contrast_bound(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]), margin=1.0)
    >>> round(bound, 4)  # no gap is possible: as good as guessing among two
    0.6931
    """
    classes, weights = labels.unique(return_counts=True)
    if len(classes) < 2:
        return 0.0
    inside = (labels[:, None] == classes).to(points.dtype) / weights  # (points, classes), columns sum to 1
    apart = inside.T @ torch.cdist(points, points) @ inside
    gap = (apart.sum() - apart.diag().sum()).item() / (len(classes) * (len(classes) - 1))
    shares = (weights / weights.sum()).cpu().double()  # which not every device has
    low, high = 0.0, shares.min().item()  # of the multiplier: s = multiplier / share is below 1
    for _ in range(100):
        middle = (low + high) / 2
        s = middle / shares
        given = (margin + math.log(len(classes) - 1) - torch.logit(s)).mean().item()
        low, high = (middle, high) if given > gap else (low, middle)
    return float(-(shares * torch.log1p(-low / shares)).sum())


def contrast_slope(points: Tensor, labels: Tensor, prototypes: Tensor, margins: Tensor) -> tuple[Tensor, Tensor]:
    """Return :func:`contrast` with a margin for each class, and its gradient at the prototypes.

    The gradient is a sum of differences to points.  Distances and differences come from products,
    except for close pairs, where products would lose digits.
    """
    centre = points.mean(0)
    x, p = points - centre, prototypes - centre  # distances stay, and what cancels becomes smaller
    both = x.square().sum(1, keepdim=True) + p.square().sum(1)
    squares = torch.addmm(both, x, p.T, alpha=-2)
    i, j = (squares <= CLOSE * both).nonzero(as_tuple=True)
    apart = prototypes[j] - points[i]
    if len(i):
        squares[i, j] = apart.square().sum(1)
    away, own = squares.sqrt_(), labels.unsqueeze(1)
    logs = away.scatter_add(1, own, margins[own]).neg_().log_softmax(1)
    value = -logs.gather(1, own).mean()
    pulls = logs.exp_().neg_().scatter_add_(1, own, torch.ones_like(away))  # (one hot - softmax) / distance
    pulls.div_(away).div_(len(points))
    if not len(i):
        return value, torch.addmm(p * pulls.sum(0).unsqueeze(1), pulls.T, x, alpha=-1)
    close = torch.where(away[i, j] > 0, pulls[i, j], 0.0).unsqueeze(1)
    pulls[i, j] = 0.0
    slope = torch.addmm(p * pulls.sum(0).unsqueeze(1), pulls.T, x, alpha=-1)
    return value, slope.index_add_(0, j, close * apart)
