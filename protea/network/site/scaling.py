"""How a site fills in and standardises samples: fitted to its training samples once, kept, applied to new ones.

state/scaling.json    mean and deviation of each feature; they never leave
state/filling.json    the medians that stand for missing numbers of a table; they never leave
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from protea.core.errors import ConfigError, DataError
from protea.core.files import read_sealed, write_sealed
from protea.data import Dataset
from protea.data.gaps import medians
from protea.data.scaling import Scaling

NAME = "scaling.json"
FILLING = "filling.json"


def scaling_of(raw: Dataset, train: Tensor, wanted: bool, state: Path, trained: bool) -> Scaling | None:
    """Return the scaling that was kept when the site began to train, or that of its training rows ``train``.

    ``None`` where none is wanted.  :class:`ConfigError` where the model was trained otherwise than ``site.toml`` says.
    """
    path = state / NAME
    if path.exists() != wanted and trained:
        was, now = ("true", "false") if path.exists() else ("false", "true")
        raise ConfigError(
            f"site.toml has standardise = {now}, and the model in {state} was trained with standardise = {was}.  "
            f"Set it back; or begin anew: move {state} away."
        )
    if not wanted:
        return None
    if not isinstance(raw.x, Tensor):
        raise DataError("site.toml has standardise = true, and data() gives texts.  Remove that line.")
    if not path.exists() or not trained:
        try:
            return Scaling.of(raw.x[train])
        except DataError as error:
            raise DataError(f"site.toml has standardise = true.  {error}") from error
    found = Scaling.from_table(read_sealed(path))
    if found.mean.shape != raw.shape:
        raise DataError(
            f"{path} is of samples of shape {tuple(found.mean.shape)}; data() gives samples of shape {raw.shape}.  "
            f"Give the same features as before; or begin anew: move {state} away."
        )
    return found


def filling_of(raw: Dataset, train: Tensor, state: Path, trained: bool) -> Tensor | None:
    """Return what stands for missing numbers: what was kept when the site began to train, or medians of ``train``."""
    path = state / FILLING
    if trained and path.exists():
        fill = torch.tensor(read_sealed(path)["fill"], dtype=torch.float32)
        if tuple(fill.shape) != raw.shape:
            raise DataError(
                f"{path} is of samples of shape {tuple(fill.shape)}; data() gives samples of shape {raw.shape}.  "
                f"Give the same features as before; or begin anew: move {state} away."
            )
        return fill
    return medians(raw.x[train]) if raw.gaps and isinstance(raw.x, Tensor) else None


def keep_filling(fill: Tensor, state: Path) -> None:
    """Write what stands for missing numbers beside the model that is trained with it."""
    write_sealed(state / FILLING, {"fill": fill.tolist()})


def keep_scaling(scaling: Scaling, state: Path) -> None:
    """Write the scaling beside the model that is trained with it."""
    write_sealed(state / NAME, scaling.to_table())
