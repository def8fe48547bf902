"""How a site standardises its samples: fitted to its training samples once, kept with its state, applied to new ones.

state/scaling.json    mean and deviation of each feature; they never leave
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from protea.core.errors import ConfigError, DataError
from protea.core.files import read_sealed, write_sealed
from protea.data import Dataset
from protea.data.scaling import Scaling

NAME = "scaling.json"


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


def keep_scaling(scaling: Scaling, state: Path) -> None:
    """Write the scaling beside the model that is trained with it."""
    write_sealed(state / NAME, scaling.to_table())
