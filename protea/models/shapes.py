"""Shapes of samples that architectures need."""

from __future__ import annotations

from protea.core.errors import ConfigError


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return ``shape`` as (channels, height, width); raise :class:`ConfigError` unless it is that of an image."""
    if len(shape) != 3:
        raise ConfigError(
            f"it takes images (channels, height, width), but the data's samples have shape {tuple(shape)}.  "
            "For other data use mlp, or a member of the family tiny5."
        )
    return shape[0], shape[1], shape[2]
