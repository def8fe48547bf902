"""Loss terms that several papers share."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from protea.prototypes import Prototypes

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


def distill(student: Tensor, teacher: Tensor) -> Tensor:
    """KL divergence from the teacher's distribution to the student's; the teacher gets no gradient."""
    return F.kl_div(student.log_softmax(1), teacher.detach().softmax(1), reduction="batchmean")
