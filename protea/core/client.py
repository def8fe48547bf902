"""A client as a method sees it: its model, its data, and what it remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from protea.core.augment import Augment
from protea.core.errors import ClientError
from protea.core.memory import Memory
from protea.core.prototypes import Prototypes
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.server import no_models
from protea.core.split_model import SplitModel
from protea.core.steps.deferred_sgd import descend
from protea.core.training import Training, batches, set_training

Loss = Callable[[Tensor, Tensor], Tensor]
LOOK = 128  # samples per batch where nothing is trained; larger ones lose time to the allocator


@dataclass
class Client:
    """What ``start_client``, ``local_update`` and ``predict`` may touch."""

    id: int
    model: SplitModel
    train: Samples
    classes: int
    dim: int
    rng: Streams
    training: Training = field(default_factory=Training)
    validation: Samples | None = None
    test: Samples | None = None
    public: Samples | None = None
    shared_test: Samples | None = None  # on which all clients are judged
    make: Callable[[str], SplitModel] = no_models  # a further model by name; "smallest" of the family
    augment: Augment | None = None
    device: torch.device = torch.device("cpu")
    round: int = 0
    rounds: int = 1
    memory: Memory = field(default_factory=Memory)
    losses: list[float] = field(default_factory=list)  # of the fits of this round, for the record
    _seen: tuple[object, dict[str, Tensor]] | None = field(default=None, repr=False)  # by a state of the model
    _asides: dict[str, list[Tensor]] = field(default_factory=dict, repr=False)

    def begin(self, round: int, rng: Streams) -> None:
        """Be ready for a job of ``round``, whose draws come from ``rng``."""
        self.round, self.rng, self.losses, self._asides = round, rng, [], {}
        self.rest()

    def rest(self) -> None:
        """Put the model, and modules in memory, into evaluation mode; only ``fit`` trains."""
        for module in self.modules:
            module.eval()

    @property
    def modules(self) -> list[nn.Module]:
        """The model, and modules in memory."""
        return [self.model, *(value for value in self.memory.values() if isinstance(value, nn.Module))]

    def fit(self, loss: Loss, *also: nn.Module, data: Samples | None = None, epochs: int | None = None) -> float:
        """Local SGD on ``loss(x, y)`` over the model and any other modules; returns the mean loss.

        Every call has its own random streams, so a method may fit several times in a round.
        """
        self._seen = None
        data = self.train if data is None else data
        plan, modules = self.training, [self.model, *also]
        lr = plan.rate(self.round, self.rounds)
        if not any(p.requires_grad for m in modules for p in m.parameters()):
            raise ClientError(
                f"client {self.id}, round {self.round}: nothing of {self.model.name} trains; it has no weights, or all "
                f"are frozen.  Set models.adapter=linear or projector."
            )
        optimizer = plan.make_optimizer((p for m in modules for p in m.parameters()), lr)
        rng = self.rng.at("fit", len(self.losses))
        set_training(modules, single=plan.batch == 1 or len(data) == 1)

        def values() -> Iterator[Tensor]:
            for epoch in range(plan.epochs if epochs is None else epochs):
                order = torch.randperm(len(data), generator=rng.generator(f"batches/{epoch}"))
                augmenting = rng.generator(f"augment/{epoch}")
                for rows in batches(order, plan.batch, plan.last):
                    x, y = data.batch(rows)
                    if self.augment is not None:
                        x = self.augment(x, augmenting)
                    yield loss(x, y)

        def trouble(value: float, step: int) -> ClientError:
            return ClientError(
                f"client {self.id}, round {self.round}: the loss became {value} at step {step} "
                f"(lr {lr:g}, {self.model.name}).  Try a smaller training.lr, training.clip=10, or "
                f"training.last=drop: BatchNorm may explode on a last batch of a few samples."
            )

        losses = descend(values(), optimizer, modules, clip=plan.clip, trouble=trouble)
        self.losses.append(sum(losses) / len(losses) if losses else 0.0)
        return self.losses[-1]

    def beside(self, architecture: str) -> SplitModel:
        """A further model, to see the same samples as the client's own: it must read texts alike."""
        model = self.make(architecture)
        own, other = (None if each.view is None else each.view.key for each in (self.model, model))
        if own != other:
            raise ClientError(
                f"client {self.id}: {model.name} reads texts in another way than {self.model.name}; beside each other "
                f"they need the same tokens and frozen layers.\n"
                f"  Use one encoder and depth for all clients, or another method."
            )
        return model

    def tensors(self) -> Iterator[Tensor]:
        """All that the client holds and will want again."""
        for module in self.modules:
            yield from (*module.parameters(), *module.buffers())
        yield from self.memory.tensors()
        if self._seen is not None:
            yield from self._seen[1].values()

    def release(self) -> int:
        """Forget what can be made again, floats of samples and gradients; how many bytes that was."""
        weights = [p for module in self.modules for p in module.parameters()]
        gone = [*(samples.kept for samples in self.parts.values()), *(p.grad for p in weights)]
        for samples in self.parts.values():
            samples.release()
        for p in weights:
            p.grad = None
        return sum(tensor.nbytes for tensor in gone if tensor is not None)

    def prototypes(self) -> Prototypes:
        """The mean feature of each class of the training set, under the current model at rest."""
        return Prototypes.of(*self.features(), self.classes)

    def batches(self, data: Samples | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """All of ``data`` in its own order, in batches for looking, not for training."""
        data = self.train if data is None else data
        for rows in torch.arange(len(data)).split(LOOK):
            yield data.batch(rows)

    @torch.no_grad()
    def features(self, data: Samples | None = None) -> tuple[Tensor, Tensor]:
        """Features and labels of ``data`` (the training set) under the current model at rest."""
        if data is not None:
            return self.outputs(self.model.features, data)
        return self.seen()["train"].clone(), self.train.y.clone()

    @torch.no_grad()
    def seen(self) -> dict[str, Tensor]:
        """Features of the training samples, computed once for a state of the model; of a small client, of all samples.

        For a few samples most of the time goes into reading the weights, so they are looked at together.
        """
        state = [
            (t._version, t.sum().item())  # .data changes no version
            for t in (*self.model.parameters(), *self.model.buffers())
        ]
        if self._seen is None or self._seen[0] != state:
            self._seen = state, self._look()
        return self._seen[1]

    def _look(self) -> dict[str, Tensor]:
        if not self.small:
            return {"train": self.outputs(self.model.features)[0]}
        self.rest()
        parts = {name: part.batch(torch.arange(len(part)))[0] for name, part in self.parts.items()}
        z = self.model.features(torch.cat(list(parts.values())))
        return dict(zip(parts, z.split([len(x) for x in parts.values()]), strict=True))

    @property
    def parts(self) -> dict[str, Samples]:
        """The client's own samples; a part that has none is left out."""
        every = {"train": self.train, "test": self.test, "validation": self.validation}
        return {name: part for name, part in every.items() if part is not None and len(part)}

    @property
    def small(self) -> bool:
        """Whether all samples of the client fit one batch for looking."""
        return len({part.shape for part in self.parts.values()}) == 1 and sum(map(len, self.parts.values())) <= LOOK

    @torch.no_grad()
    def outputs(self, of: Callable[[Tensor], Tensor], data: Samples | None = None) -> tuple[Tensor, Tensor]:
        """``of(x)``, in evaluation mode, and labels of all ``data``."""
        self.rest()
        pairs = [(of(x), y) for x, y in self.batches(data)]
        return torch.cat([z for z, _ in pairs]), torch.cat([y for _, y in pairs])

    @contextmanager
    def aside(self, name: str) -> Iterator[None]:
        """Within, draws such as dropout's come from a stream of their own, which goes on at the next use.

        So a second model at work beside the client's own does not change what that one draws.
        """
        own = f"aside/{name}"
        before, state = self._draws(), self._asides.get(name)
        if state is None:
            torch.set_rng_state(self.rng.generator(own).get_state())
            if self.device.type == "cuda":
                torch.cuda.manual_seed(self.rng.seed(own))
        else:
            self._set_draws(state)
        try:
            yield
        finally:
            self._asides[name] = self._draws()
            self._set_draws(before)

    def _draws(self) -> list[Tensor]:
        """Where the default generators are: the CPU's, and that of the client's GPU."""
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else [])]

    def _set_draws(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if len(states) > 1:
            torch.cuda.set_rng_state(states[1], self.device)

    @property
    def own(self) -> Tensor:
        """Which classes the client has training samples of, a bool per class."""
        return self.train.counts(self.classes) > 0
