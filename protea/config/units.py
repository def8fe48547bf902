"""Sizes, durations and percentages as people write and read them."""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import AfterValidator

LARGEST = 1e18  # bytes, about what 64 bits can count
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def in_bytes(text: str) -> int:
    """Return the number of bytes in ``4GB``, ``500 MB`` or ``64kB``; units are powers of 1000.

    >>> in_bytes("1.5GB")
    1500000000
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is no size; write a number and a unit, such as 500MB or 4GB")
    count = float(found[1]) * 10.0 ** (3 * _POWERS[found[2]])
    if count > LARGEST:
        raise ValueError(f"{text[:40]!r} is more than a machine has; write a number and a unit, such as 500MB or 4GB")
    return int(count)


def _checked(text: str) -> str:
    """Return the text; raise :class:`ValueError` unless it is a size."""
    in_bytes(text)
    return text


Size = Annotated[str, AfterValidator(_checked)]  # the type of a setting such as "4GB"


def percent(value: float | None) -> str:
    """Return a fraction in percent; a dash where there is none.

    >>> percent(0.831), percent(None)
    ('83.1', '-')
    """
    return "-" if value is None or math.isnan(value) else f"{100 * value:.1f}"


def format_bytes(count: float) -> str:
    """Return a number of bytes with its unit.

    >>> format_bytes(1_234_567)
    '1.2 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def format_duration(seconds: float) -> str:
    """Return a duration with its unit: seconds, minutes, hours or days.

    >>> format_duration(45), format_duration(9000)
    ('45 s', '2.5 h')
    """
    for unit, length, least in (("days", 86400, 2 * 86400), ("h", 3600, 6000), ("min", 60, 100)):
        if seconds >= least:
            return f"{seconds / length:.{0 if unit == 'min' else 1}f} {unit}"
    return f"{seconds:.0f} s"
