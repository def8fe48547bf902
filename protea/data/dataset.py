"""A data set as the sources give it: arrays, read once and shared by all clients."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from protea.core.errors import DataError
from protea.data.texts import Texts

PIECE = 1024  # samples that are checked at once


@dataclass(frozen=True)
class Dataset:
    """All samples of a source, checked.  Images are bytes here; clients get them normalised.

    The last ``tests`` rows are the part that the source itself calls its test set.
    """

    x: Tensor | Texts  # uint8 (samples, channels, height, width), float32 (samples, ...), or texts
    y: Tensor  # int64 (samples,)
    names: tuple[str, ...]  # of the classes, in the order of their labels
    tests: int = 0
    keys: Tensor | None = None  # int64 (samples,): the user, site or patient that a sample is of
    key_names: tuple[str, ...] | None = None  # what the keys 0, 1, ... are called
    judged: Tensor | None = None  # bool (samples,): with partition = "source" a client is tested on these of its own
    gaps: bool = False  # x has nan where a value is missing, which each client fills in
    mixed: bool = False  # a sample's numbers depend on other samples, as by one mean for all: no epsilon is claimed

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y) or (self.keys is not None and len(self.keys) != len(self.y)):
            raise DataError(f"{len(self.x)} inputs but {len(self.y)} labels: one label for each input is needed.")
        if not len(self.y):
            raise DataError("The data set is empty.")
        if odd := [name for name in self.names if not name.isprintable()]:
            raise DataError(f"The class name {odd[0]!r} holds characters that no screen can show.  Rename the class.")
        if not 0 <= self.tests < len(self.y):
            raise DataError(
                f"{self.tests} of {len(self.y)} samples are marked as test samples: none is left to train on."
            )
        low, high = int(self.y.min()), int(self.y.max())
        if low < 0 or high >= self.classes:
            raise DataError(
                f"Labels run from {low} to {high}; with {self.classes} classes they must be 0 to {self.classes - 1}."
            )
        if isinstance(self.x, Tensor) and self.x.is_floating_point():
            for start in range(0, len(self), PIECE):  # inputs may be mapped from disk, and larger than memory
                piece = self.x[start : start + PIECE]
                bad = (piece.isinf() if self.gaps else ~piece.isfinite()).flatten(1).any(1)
                if bad.any():
                    row = start + int(bad.nonzero()[0])
                    raise DataError(f"Input {row} holds a value that is not finite (nan or inf).  Remove or impute it.")

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.names)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample; empty for texts."""
        return tuple(self.x.shape[1:]) if isinstance(self.x, Tensor) else ()

    def __len__(self) -> int:
        return len(self.y)
