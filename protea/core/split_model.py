"""A model of any architecture as three parts: body, adapter and head."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from protea.core.errors import ClientError


class View(Protocol):
    """How a model turns texts into numbers: tokens, or the outputs of its frozen layers.

    ``key`` names everything that the numbers depend on.  ``shape`` is that of one text's numbers.
    """

    key: str
    shape: tuple[int, ...]

    def __call__(self, texts: Sequence[str]) -> Tensor: ...


class PairedView:
    """Two views of the same texts side by side: that of a client's own model, and one that all clients share.

    Their numbers are one row of float32; tokens are whole numbers below 2^24, which stay exact.
    """

    def __init__(self, own: View, common: View) -> None:
        self.own, self.common = own, common
        self.key = f"pair/1/{own.key}/{common.key}"
        self.cut = math.prod(own.shape)
        self.shape: tuple[int, ...] = (self.cut + math.prod(common.shape),)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        return torch.cat([view(texts).flatten(1).float() for view in (self.own, self.common)], 1)

    def own_part(self, x: Tensor) -> Tensor:
        """Return what the own view says of a batch."""
        return x[:, : self.cut].reshape(x.shape[0], *self.own.shape)

    def common_part(self, x: Tensor) -> Tensor:
        """Return what the common view says of a batch."""
        return x[:, self.cut :].reshape(x.shape[0], *self.common.shape)


class PairedBody(nn.Module):
    """A body that reads texts by its own view, while the common one comes along for the method."""

    def __init__(self, body: nn.Module, own: View, common: View) -> None:
        super().__init__()
        self.body, self.view = body, PairedView(own, common)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.body(self.view.own_part(x))
        return found


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

    def common(self, x: Tensor) -> Tensor:
        """Return what all clients see of a batch alike: its inputs, or of texts the view that a method needs."""
        view = self.view
        if view is None:
            return x
        if not isinstance(view, PairedView):
            raise ClientError(
                f"{self.name} reads texts in a way of its own, and no other stands beside it.  Let the method say "
                f'which view all clients share: needs = Needs(common_view="words").'
            )
        return view.common_part(x)

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
