"""Where an experiment differs from a run of the reference code whose variant it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protea.config import registry
from protea.config.experiment import Experiment
from protea.config.toml import to_table
from protea.methods.fedkd import FedKD
from protea.methods.fml import FML
from protea.runs.settings_diff import flat, shown

# What HtFLlib and its forks do whatever their flags say; see section "What will still differ" of docs/from-htfllib.md.
HTFLLIB: Mapping[str, Any] = {
    "training.order": "fixed",
    "training.last": "drop",
    "training.optimizer": "sgd",
    "training.momentum": 0.0,
    "training.weight_decay": 0.0,
    "training.schedule": "constant",
    "training.clip": 0.0,
    "models.adapter": "pool",
    "data.pool": "all",
    "data.split.test": 0.25,
    "data.split.validation": 0.0,
    "data.split.stratify": False,
    "data.seed": 1,
    "evaluation.protocol": "best",
}
CLIPPED = (FML, FedKD)  # whose two models are clipped at a gradient of length 10
VARIANTS = ("htfllib", "code")


def follows_reference(experiment: Experiment) -> str | None:
    """Return the variant of the reference code whose fields an experiment's method has; ``None`` for others.

    Some methods are that by default; of these one is meant to replay a run if its batches have a fixed order.
    """
    method = experiment.method
    for variant, fields in type(method).variants.items():
        meant = bool(fields) or experiment.training.order != "shuffled"
        if variant in VARIANTS and meant and method == type(method)(**fields):
            return f"{registry.name_of('methods', type(method))}@{variant}"
    return None


def differences(experiment: Experiment) -> list[str]:
    """Say for each setting that the reference code fixes, and that is another one here, what it is on both sides."""
    there = {**HTFLLIB, **({"training.clip": 10.0} if isinstance(experiment.method, CLIPPED) else {})}
    here = flat(to_table(experiment))
    order = experiment.training.order
    theirs = here.get("data.partition.kind") == "source"  # samples as their files have them
    if order == "once" and not theirs:
        there.pop("training.order")  # their generator shuffles a client's samples once, before it writes them
    lines = [
        f"{name} is {shown(here.get(name))} here, {shown(value)} there"
        for name, value in there.items()
        if here.get(name) != value
    ]
    if order == "fixed" and not theirs:
        lines.append(
            "training.order is fixed, in the order of the partition; there samples were shuffled once: "
            "training.order=once, or bring their data with data.partition=source"
        )
    if experiment.models.start is None:
        lines.append("models.start is not set: first weights are drawn by seed and client, there by seed 0 for all")
    return lines
