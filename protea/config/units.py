"""Sizes as people write them."""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import AfterValidator

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def in_bytes(text: str) -> int:
    """The number of bytes in ``4GB``, ``500 MB`` or ``64kB``; thousands, not 1024s.

    >>> in_bytes("1.5GB")
    1500000000
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is no size; write a number and a unit, such as 500MB or 4GB")
    return int(float(found[1]) * 10.0 ** (3 * _POWERS[found[2]]))


def _checked(text: str) -> str:
    in_bytes(text)
    return text


Size = Annotated[str, AfterValidator(_checked)]  # of a setting


def percent(value: float | None) -> str:
    """``83.1`` of 0.831; a dash where there is nothing."""
    return "-" if value is None or math.isnan(value) else f"{100 * value:.1f}"


def format_bytes(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
