"""How hard a method pulls features to what the server sent, beside the cross entropy that trains them too."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from protea.core.client import Client
from protea.core.method import Method


@torch.enable_grad()
def pull_strength(method: Method[Any, Any], client: Client, down: Any, z: Tensor, y: Tensor) -> Tensor | None:
    """Return the gradient of the pull at features ``z`` (n, dim), as a multiple of that of cross entropy.

    Both gradients are measured by their lengths, summed over the samples.  ``None`` where the method pulls no features,
    nothing came from the server yet, or cross entropy has no gradient.
    """
    z = z.detach().requires_grad_()
    pull = None if down is None else method.pulling(z, y, down)
    if pull is None or not pull.requires_grad:
        return None
    ours, usual = (
        torch.autograd.grad(value, z)[0].norm(dim=1).sum() for value in (pull, F.cross_entropy(client.model.head(z), y))
    )
    strength = (ours / usual).cpu()
    return strength if strength.isfinite() else None
