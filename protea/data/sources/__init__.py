"""Sources of data: one file per format, with a frozen dataclass of settings that can ``load``."""

from __future__ import annotations

from typing import Protocol

from protea.data.dataset import Dataset


class Source(Protocol):
    """Settings of a data source."""

    def load(self) -> Dataset:
        """Read all samples."""
        ...
