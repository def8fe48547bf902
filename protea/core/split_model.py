"""A model of any architecture, seen as body, adapter and head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor, nn


class View(Protocol):
    """Numbers for texts: tokens, or what the frozen layers of a model make of them.

    ``key`` names all that these depend on.  ``shape`` is that of one text's numbers.
    """

    key: str
    shape: tuple[int, ...]

    def __call__(self, texts: Sequence[str]) -> Tensor: ...


class SplitModel(nn.Module):
    """``head(adapter(body(x)))``.

    The body gives the architecture's own features, the adapter maps these to the ``dim``
    numbers that all clients share, the head maps them to classes.  ``name`` is for messages.
    """

    def __init__(self, body: nn.Module, adapter: nn.Module, head: nn.Module, name: str = "own model") -> None:
        super().__init__()
        self.body, self.adapter, self.head, self.name = body, adapter, head, name
        self._reuses = False
        self._last: tuple[Tensor, Tensor] | None = None

    @property
    def view(self) -> View | None:
        """How the model wants to see a text; ``None`` for models of numbers."""
        return getattr(self.body, "view", None)

    def features(self, x: Tensor) -> Tensor:
        """What prototypes are made of: ``(batch, dim)``."""
        if self._last is not None and self._last[0] is x:
            return self._last[1]
        z: Tensor = self.adapter(self.body(x))
        if self._reuses:
            self._last = x, z
        return z

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(x))
        return scores

    @contextmanager
    def reuse_features(self, x: Tensor | None = None, z: Tensor | None = None) -> Iterator[None]:
        """Within, features of one batch are computed once, however many rules ask; if ``z``, those of ``x``, never."""
        self._reuses = True
        self._last = None if x is None or z is None else (x, z)
        try:
            yield
        finally:
            self._reuses, self._last = False, None
