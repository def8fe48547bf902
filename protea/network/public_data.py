"""Public samples of a federation: unlabelled inputs that all parties have."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from protea.core.errors import ConfigError
from protea.core.samples import Samples
from protea.data import Dataset
from protea.network.task import Task


def public_samples(path: Path, task: Task, device: str = "cpu") -> Samples:
    """Read the public inputs of a bundle as samples; all have label 0, as nobody has labelled them."""
    try:
        named = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if named.keys() != {"x"}:
        raise ConfigError(f"{path} holds {', '.join(sorted(named)) or 'nothing'}; expected is x alone.")
    x = named["x"]
    if tuple(x.shape[1:]) != task.shape:
        raise ConfigError(f"{path} has samples of shape {tuple(x.shape[1:])}; the task's are {task.shape}.")
    return Samples(Dataset(x, torch.zeros(len(x), dtype=torch.int64), task.classes), device=device)
