"""The file in which a site keeps what the federation gives it beside training alone, and how it is told.

Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

WORDS = {"better": "the federation helps here", "worse": "the federation harms here", "neither": "no sure difference"}


def gains_of(site: Path) -> Path:
    """Name the file of a site's gains."""
    return site / "state" / "alone" / "gain.jsonl"


def gain_words(line: Mapping[str, Any]) -> str:
    """Tell what a line of the file of gains says.

    >>> gain_words({"round": 3, "accuracy": 0.9, "alone": 0.85, "low": 0.01, "high": 0.09, "verdict": "better"})
    'Round 3: 90.0 % here, 85.0 % trained alone: +5.0 points (+1.0 to +9.0), the federation helps here.'
    """
    low, high, mean = (100 * number for number in (line["low"], line["high"], line["accuracy"] - line["alone"]))
    return (
        f"Round {line['round']}: {100 * line['accuracy']:.1f} % here, {100 * line['alone']:.1f} % trained alone: "
        f"{mean:+.1f} points ({low:+.1f} to {high:+.1f}), {WORDS[line['verdict']]}."
    )
