"""The server as a method sees it: its memory, its public samples, and a training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from protea.core.errors import ProteaError
from protea.core.memory import Memory
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.split_model import SplitModel
from protea.core.steps.deferred_sgd import descend
from protea.core.training import Training, batches, set_training


def no_models(architecture: str) -> SplitModel:
    """Refuse to make a model: the default of clients and servers that tests build by hand."""
    raise LookupError(f"no model {architecture!r} can be made here")


@dataclass
class Server:
    """The server, as ``start_server``, ``broadcast``, ``aggregate`` and ``server_model`` of a method receive it."""

    classes: int
    dim: int
    rng: Streams
    public: Samples | None = None
    make: Callable[[str], SplitModel] = (
        no_models  # makes a model by name; "smallest": the family's, "server": models.server
    )
    device: torch.device = torch.device("cpu")
    round: int = 0
    rounds: int = 1
    memory: Memory = field(default_factory=Memory)
    names: tuple[str, ...] = ()  # of the classes, as the data have them; empty where nobody knows

    def fit(self, loss: Callable[[Tensor], Tensor], *modules: nn.Module, rows: Tensor, plan: Training) -> float:
        """Train modules on ``loss(batch of rows)`` at the learning rate ``plan.lr``; return the last epoch's mean loss.

        The loss decides what a row is: the number of a public sample, of an upload, of something drawn.
        """
        optimizer = plan.make_optimizer((p for module in modules for p in module.parameters()), plan.lr)
        set_training(modules, single=plan.batch == 1 or len(rows) == 1)

        def trouble(value: float, step: int) -> ProteaError:
            return ProteaError(
                f"server, round {self.round}: the loss became {value} at step {step} (lr {plan.lr:g}).  "
                f"Try a smaller method.server_lr."
            )

        def values() -> Iterator[Tensor]:
            for _ in range(plan.epochs):
                order = torch.randperm(len(rows)).to(rows.device)
                yield from (loss(batch) for batch in batches(rows[order], plan.batch, plan.last))

        losses = descend(values(), optimizer, modules, clip=plan.clip, trouble=trouble)
        for module in modules:
            module.eval()
        last = losses[-(len(losses) // plan.epochs) :]  # all epochs have as many
        return sum(last) / len(last) if last else 0.0
