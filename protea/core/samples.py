"""The rows of a data set as one client sees them."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch
from torch import Tensor

BUDGET = 64 * 2**20  # bytes of floats that a client may keep; larger ones are made batch by batch


class Rows(Protocol):
    """What samples are taken from: a data set whose inputs and labels are tensors, a row for each sample."""

    @property
    def x(self) -> Any: ...

    @property
    def y(self) -> Tensor: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...


class Samples:
    """Some rows of a shared data set, normalised when they are asked for.

    The data set keeps images as bytes, once for all clients.  A client whose floats fit the
    budget keeps them from its first batch until ``release``; the values are the same either way.
    """

    def __init__(
        self,
        dataset: Rows,
        index: Tensor | None = None,
        *,
        device: torch.device | str = "cpu",
        budget: int = BUDGET,
    ) -> None:
        assert isinstance(dataset.x, Tensor)  # texts are looked at through a view first: protea.data.views
        self.dataset = dataset
        self._x: Tensor = dataset.x
        self.index = torch.arange(len(dataset)) if index is None else index
        self.device = torch.device(device)
        self.y = dataset.y[self.index].to(self.device)
        floats = 4 if self._x.dtype == torch.uint8 else self._x.element_size()
        self._keeps = len(self) * self._x[0].numel() * floats <= budget
        self.floats: Tensor | None = None  # all inputs as floats

    def __len__(self) -> int:
        return len(self.index)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return self.dataset.shape

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the rows numbered so, from 0 to ``len(self) - 1``."""
        here = rows.to(self.device)
        y = self.y.index_select(0, here)  # on one core, three times as fast as self.y[here]
        if not self._keeps:
            return self._inputs(self.index.index_select(0, rows.to(self.index.device))), y
        if self.floats is None:
            self.floats = self._inputs(self.index)
        return self.floats.index_select(0, here), y

    def with_targets(self, targets: Tensor) -> Samples:
        """The same inputs with other targets, one row each: what a teacher says of them, for example."""
        other = copy.copy(self)
        other.y = targets.to(self.device)
        return other

    def only(self, rows: Tensor) -> Samples:
        """Some of these samples: those of the given numbers, or those where a bool per sample is true."""
        other = copy.copy(self)
        here = rows.to(self.device)
        other.index, other.y = self.index[rows.to(self.index.device)], self.y[here]
        other.floats = None if self.floats is None else self.floats[here]
        return other

    def counts(self, classes: int) -> Tensor:
        """How many samples of each class there are."""
        return self.y.bincount(minlength=classes)

    def release(self) -> None:
        """Forget the floats; the next batch makes them again."""
        self.floats = None

    def _inputs(self, index: Tensor) -> Tensor:
        return normalise(self._x.index_select(0, index).to(self.device))


def normalise(x: Tensor) -> Tensor:
    """Bytes to floats from -1 to 1, as the reference codes do; floats are left as they are."""
    if x.dtype != torch.uint8:
        return x
    return x.to(torch.float32).div_(255).sub_(0.5).div_(0.5)
