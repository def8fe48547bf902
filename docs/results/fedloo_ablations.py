"""Ablations of FedLOO that need whole runs: how its network trains and answers, and another map.

Settings are those of examples/gain with more samples to choose by.  All numbers are of the validation samples of seeds
1 to 3; the seeds of gain.md are not touched.

python docs/results/fedloo_ablations.py run      # every variant that fedloo_ablations.csv lacks; goes on where it was
python docs/results/fedloo_ablations.py table    # from the CSV to the table of docs/methods/fedloo.md, on the screen
"""

from __future__ import annotations

import copy
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import protea
from protea import Client, Prototypes
from protea.config.experiment import load_experiment
from protea.core.discriminant import likelihoods
from protea.core.files import write_text
from protea.core.split_model import SplitModel
from protea.methods.fedloo import FedLOO
from protea.methods.fedpagr import FedPAGR
from protea.models.nearest import Nearest

GAIN = Path(__file__).parents[2] / "examples" / "gain"
CSV = Path(__file__).with_suffix(".csv")
SEEDS = (1, 2, 3)
SPLITS = {  # as many training samples as in gain.md
    "digits": ["data.split.test=0.05", "data.split.validation=0.55"],
    "fashion": ["data.split.test=0.05", "data.split.validation=0.35"],
}
DECAYS = {"short": 0.9, "long": 0.97}  # of moving averages, per step
WIDTH = 2048  # random Fourier features before they are projected


@dataclass(frozen=True)
class Averaged(FedLOO):
    """Trains as FedLOO does, and keeps moving averages of the weights, by which the rules below answer."""

    def start_client(self, client: Client) -> None:
        for name in DECAYS:
            client.memory[name] = copy.deepcopy(client.model)

    def train(self, client: Client, down: Prototypes | None) -> None:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            follow(client)
            return F.cross_entropy(client.model(x), y)

        client.fit(loss)
        follow(client)


@torch.no_grad()
def follow(client: Client) -> None:
    """Move the averages towards the weights; buffers, such as BatchNorm's statistics, are those of the model."""
    for name, decay in DECAYS.items():
        average = client.memory[name]
        for kept, weight in zip(average.parameters(), client.model.parameters(), strict=True):
            kept.lerp_(weight, 1 - decay)
        for kept, buffer in zip(average.buffers(), client.model.buffers(), strict=True):
            kept.copy_(buffer)


@dataclass(frozen=True)
class Short:
    """Answer with the network of averaged weights, the short average."""

    def __call__(self, client: Client, x: Tensor, down: Prototypes | None) -> Tensor:
        return FedLOO().predict(replace(client, model=client.memory["short"]), x, down)


@dataclass(frozen=True)
class Long:
    """Answer with the network of averaged weights, the long average."""

    def __call__(self, client: Client, x: Tensor, down: Prototypes | None) -> Tensor:
        return FedLOO().predict(replace(client, model=client.memory["long"]), x, down)


@dataclass(frozen=True)
class Network:
    """Answer by the network and the others, without the client's own discriminant."""

    method: Any  # one of FedLOO

    def __call__(self, client: Client, x: Tensor, down: Prototypes | None) -> Tensor:
        scores: Tensor = replace(self.method, own=0.0).predict(client, x, down)
        return scores


@dataclass(frozen=True)
class Residual(FedLOO):
    """The network trains on what the others leave unexplained: its scores are added to theirs, as in the answer."""

    def train(self, client: Client, down: Prototypes | None) -> None:
        others = scores_of_others(self, client, down)
        client.fit(lambda x, y: F.cross_entropy(client.model(x) + others(x), y))


@dataclass(frozen=True)
class Structural(FedLOO):
    """The network's features shall lie to each other as the others' answers do: 1 - CKA of both in a batch."""

    weight: float = 1.0

    def train(self, client: Client, down: Prototypes | None) -> None:
        others = scores_of_others(self, client, down)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = client.model.features(x)
            return F.cross_entropy(client.model.head(z), y) - self.weight * cka(z, others(x).softmax(1))

        client.fit(loss)


@dataclass(frozen=True)
class PrivateAxes(FedLOO):
    """FedPAGR's loss with random axes that are the client's own; the network answers by cosines to these."""

    def start_client(self, client: Client) -> None:
        axes = torch.randn(client.classes, client.dim, generator=client.rng.generator("axes"))
        client.memory["axes"] = F.normalize(axes, dim=1).to(client.device)

    def train(self, client: Client, down: Prototypes | None) -> None:
        axes: Tensor = client.memory["axes"]
        FedPAGR().local_update(client, Prototypes(axes, axes.new_ones(client.classes)))

    def predict(self, client: Client, x: Tensor, down: Prototypes | None) -> Tensor:
        head = Nearest(client.memory["axes"], "cosine", scale=1 / FedPAGR().temperature)
        model = SplitModel(client.model.body, client.model.adapter, head)
        return super().predict(replace(client, model=model), x, down)


@dataclass(frozen=True)
class Fourier(FedLOO):
    """Random Fourier features of the pixels as the map, in the place of random filters."""

    frequency: float = 1.0  # standard deviation of a wave's phase, for pixels of mean square 1

    def phi(self, client: Client) -> Callable[[Tensor], Tensor]:
        def features(x: Tensor) -> Tensor:
            flat = client.model.common(x).flatten(1)
            waves, phases, projection = fourier(flat.shape[1], client.dim, self.map_seed)
            return F.pad((flat @ (self.frequency * waves) + phases).cos() @ projection, (0, 1), value=1.0)

        return features


@cache
def fourier(inputs: int, dim: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw waves ``(inputs, WIDTH)``, phases, and random signs that project to ``dim - 1`` numbers."""
    g = torch.Generator().manual_seed(seed)
    waves, phases = torch.randn(inputs, WIDTH, generator=g) / inputs**0.5, 2 * torch.pi * torch.rand(WIDTH, generator=g)
    return waves, phases, torch.randn(WIDTH, dim - 1, generator=g).sign() * (2 / WIDTH) ** 0.5


def scores_of_others(method: FedLOO, client: Client, down: Prototypes | None) -> Callable[[Tensor], Tensor]:
    """Return what the others' discriminant says, at the scale that the client found in the round before."""
    phi, scale = method.phi(client), client.memory.get("scale", 0.0)
    if down is None:
        return lambda x: torch.zeros(len(x), client.classes, device=x.device)
    return lambda x: likelihoods(phi(x), down, scale)


def cka(one: Tensor, other: Tensor) -> Tensor:
    """Return the linear centred kernel alignment of two descriptions of a batch: 1 if structures agree; 0 of nothing.

    >>> x = torch.tensor([[0.0, 1.0], [2.0, 5.0], [4.0, 1.0]])
    >>> round(float(cka(x, 3 * x.flip(1) + 1)), 4)
    1.0
    """
    one, other = one - one.mean(0), other - other.mean(0)
    alike = (one.T @ other).square().sum()
    return alike / ((one.T @ one).norm() * (other.T @ other).norm() + 1e-8)


VARIANTS: dict[str, FedLOO] = {
    "plain": Averaged(),
    "residual": Residual(),
    "structural 1": Structural(weight=1.0),
    "axes": PrivateAxes(),
    "fourier": Fourier(),
    "structural 0.1": Structural(weight=0.1),
}
LAST = ("fourier", "structural 0.1")
ROWS = {  # of the table: a variant, and the rule by which it answers
    "Local": ("plain", "head"),
    "plain": ("plain", "method"),
    "plain, weights averaged with decay 0.9 per step": ("plain", "short"),
    "plain, weights averaged with decay 0.97 per step": ("plain", "long"),
    "network trains on what the others leave unexplained": ("residual", "method"),
    "structural alignment, weight 0.1": ("structural 0.1", "method"),
    "structural alignment, weight 1": ("structural 1", "method"),
    "FedPAGR's loss with private random axes, cosines answer": ("axes", "method"),
    "random Fourier features of pixels": ("fourier", "method"),
    "`own = 0`: plain": ("plain", "network"),
    "`own = 0`: trained on what the others leave unexplained": ("residual", "network"),
    "`own = 0`: structural alignment, weight 0.1": ("structural 0.1", "network"),
    "`own = 0`: structural alignment, weight 1": ("structural 1", "network"),
    "`own = 0`: FedPAGR's loss with private random axes": ("axes", "network"),
}
Key = tuple[str, str, int, str]  # data set, variant, seed, rule


def played(data: str, variant: str, seed: int) -> dict[str, float]:
    """Play a variant; return its accuracy on validation samples in the last round, in %, by rule."""
    method = VARIANTS[variant]
    found = load_experiment(GAIN / f"{data}.toml", [*SPLITS[data], f"seed={seed}", "evaluation.shared=never"])
    rules = (Network(method), Short(), Long()) if isinstance(method, Averaged) else (Network(method),)
    experiment = replace(found, method=method, evaluation=replace(found.evaluation, rules=rules))
    last = list(protea.Run(experiment))[-1]
    return {rule: 100 * score.weighted for rule, score in last.validation.items()}


def kept() -> dict[Key, float]:
    """Read the accuracies that were found so far."""
    if not CSV.exists():
        return {}
    rows = [line.split(",") for line in CSV.read_text(encoding="utf-8").splitlines()[1:]]
    return {(data, variant, int(seed), rule): float(value) for data, variant, seed, rule, value in rows}


def keep(found: dict[Key, float]) -> None:
    """Write all accuracies."""
    rows = [",".join(map(str, [*key, f"{value:.2f}"])) for key, value in sorted(found.items())]
    write_text(CSV, "\n".join(["data,variant,seed,rule,accuracy", *rows]) + "\n")


def table(found: dict[Key, float]) -> str:
    """Format a Markdown table: for each data set the mean, and after a colon each seed that was played."""
    lines = [["", *SPLITS], ["---"] * (1 + len(SPLITS))]
    for name, (variant, rule) in ROWS.items():
        cells = [[found[key] for seed in SEEDS if (key := (data, variant, seed, rule)) in found] for data in SPLITS]
        shown = [
            f"{statistics.fmean(each):.1f}: {' '.join(f'{one:.1f}' for one in each)}" if each else "-" for each in cells
        ]
        lines.append([name, *shown])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def in_order() -> list[tuple[str, str, int]]:
    """List all runs: data set, variant, seed; the variants of ``LAST`` after all others."""
    every = [(data, variant, seed) for seed in SEEDS for data in SPLITS for variant in VARIANTS]
    return sorted(every, key=lambda run: run[1] in LAST)


def main(arguments: Sequence[str]) -> None:
    """Play what is lacking, or write the table."""
    match arguments:
        case ["run"]:
            for data, variant, seed in in_order():
                found = kept()
                if (data, variant, seed, "method") not in found:
                    new = played(data, variant, seed)
                    keep({**found, **{(data, variant, seed, rule): value for rule, value in new.items()}})
        case ["table"]:
            sys.stdout.write(table(kept()) + "\n")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
