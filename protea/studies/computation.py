"""Floating-point operations of models, counted from architectures: tables of papers that no run is needed for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from protea.config.families import Member
from protea.core.method import Method
from protea.methods.fedgen import FedGen
from protea.methods.fedkd import FedKD
from protea.methods.fml import FML
from protea.models.architectures import count_parameters
from protea.models.generator import Generator
from protea.models.maker import ModelMaker
from protea.studies.papers import Measure, Number, Preset

COMPUTED: dict[Measure, str] = {
    "forward": "Billions of operations of one image's way through the model",
    "computation": "Billions of operations of all clients for one image each, forward, backward (twice that) and once "
    "more for prototypes",
}
PASSES = 4  # by which the paper's total is its sum of forward passes: one, twice that backward, one for prototypes


def operations(run: Callable[[], Any]) -> float:
    """Count the multiplications and additions of matrix products and convolutions, in billions.

    Other layers, such as normalisation and pooling, are not counted: they are a few thousandths.
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run()
    return float(counter.get_total_flops()) / 1e9


@cache
def forward(maker: ModelMaker, member: Member) -> tuple[float, int]:
    """Count the operations of one sample's way through an architecture, and its parameters; by shapes alone."""
    with torch.device("meta"):
        model = maker.build(member).eval()
        return operations(lambda: model(torch.zeros(1, *maker.shape))), sum(count_parameters(model).values())


def computed(preset: Preset, cell: str, row: str, measure: Measure) -> float:
    """Compute our counterpart of a number that follows from architectures alone."""
    experiment = preset.experiment(cell, row)
    maker = ModelMaker(experiment.models, preset.sample, preset.classes)
    each = [forward(maker, member) for member in maker.members]
    if measure == "forward":
        return each[0][0]
    own = sum(each[client % len(each)][0] for client in range(experiment.clients))
    smallest = min(each, key=lambda pair: pair[1])[0]
    return PASSES * (own + experiment.clients * beside(experiment.method, maker, smallest))


def beside(method: Method[Any, Any], maker: ModelMaker, smallest: float) -> float:
    """Count one forward pass of what a client of a method uses beside its own model."""
    if isinstance(method, FML | FedKD):
        name = method.meme if isinstance(method, FML) else method.mentee
        return smallest if name == "smallest" else forward(maker, Member.of(name))[0]
    if isinstance(method, FedGen):
        dim = maker.models.dim
        generator = Generator(maker.classes, method.noise, method.hidden or dim, dim).eval()
        return operations(lambda: generator(torch.zeros(1, dtype=torch.int64)))
    return 0.0


def pairs(preset: Preset, cells: list[str], measure: Measure) -> list[tuple[str, str, Number, float]]:
    """List cell, row, the paper's number and ours."""
    rows = preset.numbers[measure]
    return [(cell, row, rows[row][cell], computed(preset, cell, row, measure)) for cell in cells for row in rows]
