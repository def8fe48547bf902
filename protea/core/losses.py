"""Loss terms that several papers share."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from protea.core.prototypes import Prototypes

Teaching = Literal["apart", "joint"]
Distance = Literal["mse", "squared", "euclidean"]


def pull(z: Tensor, y: Tensor, prototypes: Prototypes, metric: Distance = "mse", scale: float = 1.0) -> Tensor:
    """Return the mean distance of features ``z`` (n, dim) to ``scale`` times the prototype of their class.

    ``mse`` also divides by the dimension, ``squared`` does not, ``euclidean`` takes the root:
    one weight means three different things.  A sample whose class has no prototype adds
    nothing, yet counts in the mean, as in the reference codes.

    >>> origin = Prototypes(torch.zeros(1, 2), torch.ones(1))
    >>> z, y = torch.tensor([[3.0, 4.0]]), torch.tensor([0])
    >>> [pull(z, y, origin, metric).item() for metric in ("mse", "squared", "euclidean")]
    [12.5, 25.0, 5.0]
    """
    away = (z - scale * prototypes.vectors[y]) * prototypes.present[y].unsqueeze(1)
    if metric == "euclidean":
        lengths: Tensor = torch.linalg.vector_norm(away, dim=1)  # its gradient at length 0 is 0
        return lengths.mean()
    squared: Tensor = away.square().sum(1).mean()
    return squared / z.shape[1] if metric == "mse" else squared


def contrast(z: Tensor, y: Tensor, prototypes: Prototypes, temperature: float = 1.0) -> Tensor:
    """Return the cross entropy over cosines between features and prototypes, mean over the batch.

    Classes without a prototype are left out; a sample of such a class adds nothing, yet counts in the mean.
    """
    known = prototypes.present[y]
    near = prototypes.scores(z[known], "cosine") / temperature
    return F.cross_entropy(near, y[known], reduction="sum") / len(y)


def divergence(first: Tensor, second: Tensor, temperature: float = 1.0) -> Tensor:
    """Return KL(first || second) of the softmax of two sets of scores (n, classes), mean over samples.

    Both get gradients.  It is multiplied by the squared temperature, so that gradients keep their size.

    >>> divergence(torch.zeros(1, 3), torch.zeros(1, 3)).item()
    0.0
    """
    p, q = (first / temperature).log_softmax(1), (second / temperature).log_softmax(1)
    return temperature**2 * (p.exp() * (p - q)).sum(1).mean()


def teach(teacher: Tensor, student: Tensor, teaching: Teaching = "apart") -> Tensor:
    """Return the divergence of a student's scores from those of a teacher that is in training too.

    ``apart``: the teacher gets no gradient.  ``joint`` is HtFLlib's: it gets one, and the
    divergence is a mean over classes as well, so smaller by their number.
    """
    if teaching == "apart":
        return divergence(teacher.detach(), student)
    return divergence(teacher, student) / student.shape[1]
