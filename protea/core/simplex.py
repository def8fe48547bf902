"""Regular simplices: unit rows that are all equally far apart, as far as they can be."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def simplex(classes: int, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return unit rows ``(classes, dim)`` with equal and largest distances: every cosine is ``-1 / (classes - 1)``.

    This is the optimum of :func:`align` where ``classes <= dim + 1``; more classes raise :class:`ValueError`.

    >>> rows = simplex(3, 2)
    >>> (rows @ rows.T)[0].round(decimals=2).tolist()
    [1.0, -0.5, -0.5]
    """
    if not 1 <= classes <= dim + 1:
        raise ValueError(
            f"{classes} classes cannot all be equally far apart in {dim} dimensions: at most {dim + 1} can."
        )
    rows = torch.zeros(classes, dim, dtype=dtype)
    if classes == 1:
        rows[0, 0] = 1.0
        return rows
    # Helmert's basis of the vectors that sum to zero: row k sets class k + 1 against all before it.
    k = torch.arange(1, classes, dtype=torch.float64)
    basis = torch.ones(classes - 1, classes, dtype=torch.float64).tril() / (k * (k + 1)).sqrt().unsqueeze(1)
    basis.diagonal(1).copy_(-(k / (k + 1)).sqrt())
    rows[:, : classes - 1] = F.normalize(basis.T, dim=1).to(rows.dtype)
    return rows


def nearest_simplex(rows: Tensor) -> Tensor:
    """Return the regular simplex that is nearest to unit rows ``(classes, dim)``, in the sum of squared distances.

    Simplices differ by rotations and reflections only, so this is the orthogonal Procrustes problem: with the SVD
    ``U S V^T`` of ``simplex^T rows``, the answer is ``simplex U V^T``.  Needs ``classes <= dim + 1``.

    >>> nearest_simplex(torch.tensor([[1.0, 0.1], [-0.9, 0.2]]))
    tensor([[ 0.9986, -0.0526],
            [-0.9986,  0.0526]])
    """
    classes, dim = rows.shape
    if classes == 1:
        return rows.clone()
    flat = simplex(classes, dim, torch.float64)[:, : classes - 1]
    left, _, right = torch.linalg.svd(flat.T @ rows.cpu().double(), full_matrices=False)
    return F.normalize(flat @ left @ right, dim=1).to(rows)
