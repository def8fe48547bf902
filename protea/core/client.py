"""A client as a method sees it: its model, its samples, and its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from protea.core.augment import Augment
from protea.core.errors import ClientError
from protea.core.memory import Memory
from protea.core.private_fit import private_fit
from protea.core.prototypes import Prototypes, shortened
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.server import no_models
from protea.core.split_model import SplitModel
from protea.core.steps.deferred_sgd import descend
from protea.core.training import Training, batches, set_training

Loss = Callable[[Tensor, Tensor], Tensor]
EVALUATION_BATCH = 128  # samples per batch where nothing is trained; with larger ones, allocation costs time


@dataclass
class Client:
    """One client, as ``start_client``, ``local_update`` and ``predict`` of a method receive it."""

    id: int
    model: SplitModel
    train: Samples
    classes: int
    dim: int  # width of the features that all clients share
    rng: Streams  # of this client and round
    training: Training = field(default_factory=Training)
    validation: Samples | None = None
    test: Samples | None = None
    public: Samples | None = None
    shared_test: Samples | None = None  # the same for all clients
    make: Callable[[str], SplitModel] = no_models  # makes a model by name; "smallest" is the family's smallest
    augment: Augment | None = None
    device: torch.device = torch.device("cpu")
    round: int = 0
    rounds: int = 1
    memory: Memory = field(default_factory=Memory)
    longest: float | None = None  # that a sample's features may be in prototypes that are sent with noise
    system_randomness: bool = False  # noise comes from the operating system, as nobody else may know it; at sites
    losses: list[float] = field(default_factory=list)  # mean loss of each fit of this round, for the record
    _cached: tuple[object, dict[str, Tensor]] | None = field(
        default=None, repr=False
    )  # features, and the state of the model they are of
    _draw_states: dict[str, list[Tensor]] = field(default_factory=dict, repr=False)  # of separate_draws

    def begin(self, round: int, rng: Streams) -> None:
        """Prepare for a job of ``round``, whose random draws come from ``rng``."""
        self.round, self.rng, self.losses, self._draw_states = round, rng, [], {}
        self.set_evaluation()

    def set_evaluation(self) -> None:
        """Put the model and all modules in memory into evaluation mode; ``fit`` alone sets training mode."""
        for module in self.modules:
            module.eval()

    @property
    def modules(self) -> list[nn.Module]:
        """The model and all modules in memory."""
        return [self.model, *(value for value in self.memory.values() if isinstance(value, nn.Module))]

    def fit(
        self,
        loss: Loss,
        *also: nn.Module,
        data: Samples | None = None,
        epochs: int | None = None,
        plan: Training | None = None,
    ) -> float:
        """Train the model, and any other modules, on ``loss(x, y)`` as ``[training]`` says; return the mean loss.

        ``data`` is the training set where not given, ``plan`` what ``[training]`` says, ``epochs`` that of the plan.
        Every call has its own random streams, so a method may fit several times in a round.
        """
        self._cached = None
        data = self.train if data is None else data
        plan, modules = plan or self.training, [self.model, *also]
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
                drawn = torch.randperm(len(data), generator=rng.generator(f"batches/{epoch}"))
                order = drawn if plan.order == "shuffled" else torch.arange(len(data))
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

        if plan.dp is None:
            losses = descend(values(), optimizer, modules, clip=plan.clip, trouble=trouble)
        else:
            losses = private_fit(self, loss, modules, data, plan, epochs, optimizer, rng, trouble)
        self.losses.append(sum(losses) / len(losses) if losses else 0.0)
        return self.losses[-1]

    def second_model(self, architecture: str) -> SplitModel:
        """Make a second model by name, to train beside the client's own; "smallest" is the family's smallest.

        Raise :class:`ClientError` if it reads texts in another way than the client's own: both see the same samples.
        """
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
        """Yield every tensor of the client that must be kept: weights, buffers, memory, cached features."""
        for module in self.modules:
            yield from (*module.parameters(), *module.buffers())
        yield from self.memory.tensors()
        if self._cached is not None:
            yield from self._cached[1].values()

    def release(self) -> int:
        """Free what can be made again, samples as floats and gradients; return how many bytes that was."""
        weights = [p for module in self.modules for p in module.parameters()]
        gone = [*(samples.floats for samples in self.parts.values()), *(p.grad for p in weights)]
        for samples in self.parts.values():
            samples.release()
        for p in weights:
            p.grad = None
        return sum(tensor.nbytes for tensor in gone if tensor is not None)

    def prototypes(self) -> Prototypes:
        """Return the mean feature of each class of the training set, by the current model in evaluation mode.

        Where prototypes are sent with noise, features longer than ``longest`` are shortened to it first.  Samples that
        are in no batch of any epoch are left out here too.
        """
        z, y = self.features()
        seen = self.training.seen(len(y))
        return Prototypes.of(self.bounded(z[:seen]), y[:seen], self.classes)

    def bounded(self, z: Tensor) -> Tensor:
        """Return features ``(n, dim)``, none longer than ``longest``: a bound of what one sample can change."""
        return z if self.longest is None else shortened(z, self.longest)

    def batches(self, data: Samples | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all of ``data`` (the training set if not given), in its own order, as batches for evaluation."""
        data = self.train if data is None else data
        for rows in torch.arange(len(data)).split(EVALUATION_BATCH):
            yield data.batch(rows)

    @torch.no_grad()
    def features(self, data: Samples | None = None) -> tuple[Tensor, Tensor]:
        """Return features (n, dim) and labels (n,) of ``data``, the training set if not given."""
        if data is not None:
            return self.outputs(self.model.features, data)
        return self.cached_features()["train"].clone(), self.train.y.clone()

    @torch.no_grad()
    def cached_features(self) -> dict[str, Tensor]:
        """Return the training samples' features, under ``"train"``, computed once for each state of the model.

        A client whose samples all fit one batch also has ``"test"`` and ``"validation"`` here: with few samples most of
        the time goes into reading the weights, so one forward pass does for all of them.
        """
        state = [
            (t._version, t.sum().item())  # a change through .data leaves the version as it is
            for t in (*self.model.parameters(), *self.model.buffers())
        ]
        if self._cached is None or self._cached[0] != state:
            self._cached = state, self._compute_features()
        return self._cached[1]

    def _compute_features(self) -> dict[str, Tensor]:
        if not self.fits_one_batch:
            return {"train": self.outputs(self.model.features)[0]}
        self.set_evaluation()
        parts = {name: part.batch(torch.arange(len(part)))[0] for name, part in self.parts.items()}
        z = self.model.features(torch.cat(list(parts.values())))
        return dict(zip(parts, z.split([len(x) for x in parts.values()]), strict=True))

    @property
    def parts(self) -> dict[str, Samples]:
        """The client's own samples by part: ``train``, ``test``, ``validation``; empty parts are left out."""
        every = {"train": self.train, "test": self.test, "validation": self.validation}
        return {name: part for name, part in every.items() if part is not None and len(part)}

    @property
    def fits_one_batch(self) -> bool:
        """Whether all samples of the client fit one batch for evaluation."""
        return (
            len({part.shape for part in self.parts.values()}) == 1
            and sum(map(len, self.parts.values())) <= EVALUATION_BATCH
        )

    @torch.no_grad()
    def outputs(self, of: Callable[[Tensor], Tensor], data: Samples | None = None) -> tuple[Tensor, Tensor]:
        """Return ``of(x)`` for all of ``data`` in evaluation mode, without gradients, and the labels."""
        self.set_evaluation()
        pairs = [(of(x), y) for x, y in self.batches(data)]
        return torch.cat([z for z, _ in pairs]), torch.cat([y for _, y in pairs])

    @contextmanager
    def separate_draws(self, name: str) -> Iterator[None]:
        """Draw within the block, for dropout say, from a random stream of its own, which goes on at the next use.

        So a second model that trains beside the client's own does not change what that one draws.
        """
        own = f"aside/{name}"  # a part of the seed: renamed, runs would have other numbers
        before, state = self._draws(), self._draw_states.get(name)
        if state is None:
            torch.set_rng_state(self.rng.generator(own).get_state())
            if self.device.type == "cuda":
                torch.cuda.manual_seed(self.rng.seed(own))
        else:
            self._set_draws(state)
        try:
            yield
        finally:
            self._draw_states[name] = self._draws()
            self._set_draws(before)

    def _draws(self) -> list[Tensor]:
        """Return the states of torch's default generators: the CPU's, and that of the client's GPU."""
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else [])]

    def _set_draws(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if len(states) > 1:
            torch.cuda.set_rng_state(states[1], self.device)

    @property
    def own_classes(self) -> Tensor:
        """Which classes the client has training samples of: a bool per class, ``(classes,)``."""
        return self.train.counts(self.classes) > 0
