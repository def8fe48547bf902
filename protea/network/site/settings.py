"""A site's own settings: ``site.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import PositiveInt

from protea.config.sections import Split
from protea.config.toml import refuse_huge, settings_from_table
from protea.core.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """The settings of a site, in ``site.toml``."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: PositiveInt = 1  # of torch
    report: bool = True  # false: tell nothing of how accurate this site's model is; true: what policy.toml allows
    seed: Literal["secret", "task"] = "secret"  # task: draw as everybody can who knows the task
    standardise: bool = False  # bring each feature to mean 0 and deviation 1, by this site's training samples
    beside: bool = False  # also train a model alone, here, and say what the federation gives beside it
    split: Split = field(default_factory=Split)  # of this site's samples, unless data() gives a test part
    training: dict[str, Any] = field(default_factory=dict)  # overrides of the task's training settings


def read_settings(path: Path) -> Settings:
    """Read and check the settings in a file."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # no text, no TOML, or nested too deep
        raise ConfigError(f"{path} cannot be read: {error}") from error
    refuse_huge(table, str(path))
    settings: Settings = settings_from_table(Settings, table, str(path))
    return settings
