"""Loss terms that several papers share."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from protea.core.prototypes import Prototypes

Teaching = Literal["apart", "joint"]
Distance = Literal["mse", "squared", "euclidean"]


def pull(z: Tensor, y: Tensor, prototypes: Prototypes, metric: Distance = "mse") -> Tensor:
    """Distance of features to the prototype of their class, mean over the batch.

    ``mse`` also divides by the dimension, ``squared`` does not, ``euclidean`` takes the root:
    one weight means three different things.  A sample whose class has no prototype adds
    nothing, yet counts in the mean, as in the reference codes.
    """
    away = (z - prototypes.vectors[y]) * prototypes.present[y].unsqueeze(1)
    if metric == "euclidean":
        lengths: Tensor = torch.linalg.vector_norm(away, dim=1)  # its gradient at length 0 is 0
        return lengths.mean()
    squared: Tensor = away.square().sum(1).mean()
    return squared / z.shape[1] if metric == "mse" else squared


def contrast(z: Tensor, y: Tensor, prototypes: Prototypes, temperature: float = 1.0) -> Tensor:
    """Cross entropy over the cosines between features and prototypes, mean over the batch.

    Classes without a prototype are left out; a sample of such a class adds nothing, yet counts in the mean.
    """
    known = prototypes.present[y]
    near = prototypes.scores(z[known], "cosine") / temperature
    return F.cross_entropy(near, y[known], reduction="sum") / len(y)


def divergence(first: Tensor, second: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(first || second) of the distributions that two sets of scores stand for, mean over samples.

    Either may get gradients.  Times the temperature squared, so that these keep their size.
    """
    p, q = (first / temperature).log_softmax(1), (second / temperature).log_softmax(1)
    return temperature**2 * (p.exp() * (p - q)).sum(1).mean()


def teach(teacher: Tensor, student: Tensor, teaching: Teaching = "apart") -> Tensor:
    """How far a student's distribution is from a teacher's that learns too.

    ``apart``: the teacher gets no gradient.  ``joint`` is HtFLlib's: it gets one, and the
    divergence is a mean over classes as well, so smaller by their number.
    """
    if teaching == "apart":
        return divergence(teacher.detach(), student)
    return divergence(teacher, student) / student.shape[1]
