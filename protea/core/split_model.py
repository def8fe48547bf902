"""A model of any architecture as three parts: body, adapter and head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor, nn


class View(Protocol):
    """How a model turns texts into numbers: tokens, or the outputs of its frozen layers.

    ``key`` names everything that the numbers depend on.  ``shape`` is that of one text's numbers.
    """

    key: str
    shape: tuple[int, ...]

    def __call__(self, texts: Sequence[str]) -> Tensor: ...


class SplitModel(nn.Module):
    """A classifier ``head(adapter(body(x)))``.

    The body gives the architecture's own features, the adapter maps these to the ``dim``
    numbers that all clients share, the head maps them to classes.  ``name`` is for messages.

    >>> import torch
    >>> model = SplitModel(nn.Flatten(), nn.Linear(4, 3), nn.Linear(3, 2))
    >>> x = torch.zeros(5, 2, 2)
    >>> model.features(x).shape, model(x).shape
    (torch.Size([5, 3]), torch.Size([5, 2]))
    """

    def __init__(self, body: nn.Module, adapter: nn.Module, head: nn.Module, name: str = "own model") -> None:
        super().__init__()
        self.body, self.adapter, self.head, self.name = body, adapter, head, name
        self._reuses = False
        self._last: tuple[Tensor, Tensor] | None = None

    @property
    def view(self) -> View | None:
        """How the model turns texts into numbers; ``None`` for a model whose inputs are numbers."""
        return getattr(self.body, "view", None)

    def features(self, x: Tensor) -> Tensor:
        """Return the features of a batch, ``(batch, dim)``: what prototypes are the means of."""
        if self._last is not None and self._last[0] is x:
            return self._last[1]
        z: Tensor = self.adapter(self.body(x))
        if self._reuses:
            self._last = x, z
        return z

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores, ``(batch, classes)``."""
        scores: Tensor = self.head(self.features(x))
        return scores

    @contextmanager
    def reuse_features(self, x: Tensor | None = None, z: Tensor | None = None) -> Iterator[None]:
        """Compute the features of a batch once within the block, however often they are asked for.

        With ``x`` and ``z`` the features of ``x`` are known to be ``z``, and not computed at all.
        """
        self._reuses = True
        self._last = None if x is None or z is None else (x, z)
        try:
            yield
        finally:
            self._reuses, self._last = False, None
