"""What is said of a client's privacy, in records and in words; nothing here needs torch.

A formal (epsilon, delta) is said only where it holds.  Everything else is "noise, no guarantee", with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NO_GUARANTEE = "noise, no guarantee"
REASONS = (
    "",  # there is none: the guarantee holds
    "the method does not declare how training samples enter its uploads",
    "class vectors leave without the filter noise",
    "class vectors are means of features that train on other samples; freeze them, or set training.dp",
    "weights or answers of the model leave, and training.dp is not set",
    "another filter changes uploads before the filter noise does",
    "a site's policy holds back classes by their exact numbers of samples, which depend on single records; "
    "min_samples_per_class = 1 and noise protect small classes too",
    "records were prepared together, as by standardise = true, so that one changes others",
    "the site does not state that data() prepares each record by itself; if it does, set prepared_alone = true in "
    "policy.toml",
)
TOGETHER, UNSTATED = REASONS[7:]
SAID = ("epsilon", "delta", "spent", "no guarantee")  # names of the numbers that are sent beside an upload
UNCOVERED = "evaluation replies, the number of training samples, and times"


@dataclass(frozen=True)
class Privacy:
    """What a client's uploads up to a round reveal at most of one of its training records."""

    epsilon: float | None = None  # None: no guarantee
    delta: float | None = None
    spent: bool = False  # one more round would cost more than the budget
    why: str = ""  # there is no guarantee

    @property
    def formal(self) -> bool:
        """Whether there is a guarantee at all."""
        return self.epsilon is not None

    @classmethod
    def read(cls, metrics: Mapping[str, float]) -> Privacy | None:
        """Read what a client says beside its upload; None if that is nothing of privacy.

        Numbers that mean nothing, such as nan, are no guarantee.
        """
        if not any(name in metrics for name in SAID):
            return None
        told = [metrics.get(name, 0.0) for name in SAID]
        if "no guarantee" in metrics or not all(math.isfinite(value) and value >= 0 for value in told):
            place = metrics.get("no guarantee", 0.0)
            return cls(why=REASONS[int(place)] if 1 <= place < len(REASONS) else REASONS[1])
        if "epsilon" not in metrics:
            return None
        return cls(metrics["epsilon"], metrics.get("delta"), bool(metrics.get("spent")))

    def metrics(self) -> dict[str, float]:
        """Return it as numbers to send beside an upload."""
        if self.epsilon is None or self.delta is None:
            return {"no guarantee": float(REASONS.index(self.why))}
        return {"epsilon": self.epsilon, "delta": self.delta, "spent": float(self.spent)}

    def line(self) -> dict[str, Any]:
        """Return it as it stands in a client's line of ``metrics.jsonl``."""
        if self.formal:
            return {"epsilon": self.epsilon, "delta": self.delta, "spent": self.spent}
        return {"epsilon": None, "why": self.why}


def worst(parts: Iterable[Privacy | None]) -> Privacy | None:
    """Return what holds for every client of several: no guarantee if one has none, else the largest epsilon.

    >>> worst([Privacy(1.0, 1e-5), Privacy(2.0, 1e-5), None]).epsilon
    2.0
    """
    known = [part for part in parts if part is not None]
    if not known:
        return None
    for part in known:
        if part.epsilon is None:
            return part
    return max(known, key=lambda part: part.epsilon or 0.0)


def in_words(privacy: Privacy) -> str:
    """Return the statement for people, with what it does not cover.

    >>> in_words(Privacy(why=REASONS[1]))
    'noise, no guarantee: the method does not declare how training samples enter its uploads'
    """
    if privacy.epsilon is None:
        return f"{NO_GUARANTEE}: {privacy.why}"
    return (
        f"epsilon {privacy.epsilon:.3g} at delta {privacy.delta:g} for one training record, of a client's uploads in "
        f"all rounds; not covered: {UNCOVERED}"
    )
