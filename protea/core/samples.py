"""Samples: the rows of a data set that one client has, as batches of floats."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch
from torch import Tensor

BUDGET = 64 * 2**20  # bytes of floats that are kept; larger sets are converted batch by batch


class Rows(Protocol):
    """What samples are taken from: a data set with one row of inputs ``x`` and one label ``y`` per sample."""

    @property
    def x(self) -> Any: ...

    @property
    def y(self) -> Tensor: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...


class Samples:
    """Some rows of a shared data set, normalised when a batch is taken.

    The data set holds images as bytes, once for all clients.  If all rows as floats fit the
    ``budget`` (bytes), they are kept from the first batch until ``release``; values are the same either way.
    """

    def __init__(
        self,
        dataset: Rows,
        index: Tensor | None = None,
        *,
        device: torch.device | str = "cpu",
        budget: int = BUDGET,
    ) -> None:
        assert isinstance(dataset.x, Tensor)  # texts become numbers through a view first: protea.data.views
        self.dataset = dataset
        self._x: Tensor = dataset.x
        self.index = torch.arange(len(dataset)) if index is None else index
        self.device = torch.device(device)
        self.y = dataset.y[self.index].to(self.device)
        floats = 4 if self._x.dtype == torch.uint8 else self._x.element_size()
        self._keeps = len(self) * self._x[0].numel() * floats <= budget
        self.floats: Tensor | None = None  # all inputs, normalised, once they were made

    def __len__(self) -> int:
        return len(self.index)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.dataset.shape

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and labels of some samples, given by their numbers from 0 to ``len(self) - 1``."""
        here = rows.to(self.device)
        y = self.y.index_select(0, here)  # on one core, three times as fast as self.y[here]
        if not self._keeps:
            return self._inputs(self.index.index_select(0, rows.to(self.index.device))), y
        if self.floats is None:
            self.floats = self._inputs(self.index)
        return self.floats.index_select(0, here), y

    def with_targets(self, targets: Tensor) -> Samples:
        """Return the same inputs with other targets, one row each, such as a teacher's scores."""
        other = copy.copy(self)
        other.y = targets.to(self.device)
        return other

    def only(self, rows: Tensor) -> Samples:
        """Return some of these samples: those of the given numbers, or those where a bool per sample is true."""
        other = copy.copy(self)
        here = rows.to(self.device)
        other.index, other.y = self.index[rows.to(self.index.device)], self.y[here]
        other.floats = None if self.floats is None else self.floats[here]
        return other

    def counts(self, classes: int) -> Tensor:
        """Return how many samples of each class there are, ``(classes,)``."""
        return self.y.bincount(minlength=classes)

    def release(self) -> None:
        """Free the floats; the next batch makes them again."""
        self.floats = None

    def _inputs(self, index: Tensor) -> Tensor:
        return normalise(self._x.index_select(0, index).to(self.device))


def normalise(x: Tensor) -> Tensor:
    """Convert bytes to floats from -1 to 1, as the reference codes do; leave floats as they are.

    >>> normalise(torch.tensor([0, 255], dtype=torch.uint8)).tolist()
    [-1.0, 1.0]
    """
    if x.dtype != torch.uint8:
        return x
    return x.to(torch.float32).div_(255).sub_(0.5).div_(0.5)
