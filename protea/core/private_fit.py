"""A client's ``fit`` by DP-SGD."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from protea.core.errors import ClientError
from protea.core.ledger import spend
from protea.core.private_sgd import poisson_batches, private_descent, private_optimizer, refuse_shared_statistics
from protea.core.rng import Streams
from protea.core.samples import Samples

if TYPE_CHECKING:
    from protea.core.client import Client
    from protea.core.training import Training


def private_fit(
    client: Client,
    loss: Callable[[Tensor, Tensor], Tensor],
    modules: Sequence[nn.Module],
    data: Samples,
    plan: Training,
    epochs: int | None,
    optimizer: torch.optim.Optimizer,
    rng: Streams,
    trouble: Callable[[float, int], ClientError],
) -> list[float]:
    """Train as ``training.dp`` says, and write down what it costs before it begins; return the mean losses."""
    assert plan.dp is not None
    refuse_shared_statistics(modules, client.model.name)
    event = plan.dp.event(plan.batch, len(data), plan.epochs if epochs is None else epochs)
    spend(client.memory, event, plan.dp.budget, f"client {client.id}, round {client.round}")
    private = private_optimizer(
        plan.dp, optimizer, event[1] * len(data), generator(client, rng, "noise", client.device)
    )

    def values() -> Iterator[tuple[Tensor, Tensor]]:
        augmenting = rng.generator("augment/0")
        for rows in poisson_batches(len(data), event, generator(client, rng, "batches")):
            x, y = data.batch(rows)
            yield (x if client.augment is None or not len(rows) else client.augment(x, augmenting)), y

    try:
        return private_descent(values(), loss, private, trouble)
    finally:
        for p in private.params:  # what opacus has hung on them
            vars(p).pop("grad_sample", None)
            vars(p).pop("summed_grad", None)


def generator(client: Client, rng: Streams, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return the generator of a named stream; at a site one that nobody can repeat, seeded by the operating system."""
    seed = secrets.randbits(63) if client.system_randomness else rng.seed(f"dp/{purpose}")
    return torch.Generator(device).manual_seed(seed)
