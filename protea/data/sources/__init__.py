"""Where data come from: one file per layout, each a dataclass of options that can ``load``."""

from __future__ import annotations

from typing import Protocol

from protea.data.dataset import Dataset


class Source(Protocol):
    def load(self) -> Dataset: ...
