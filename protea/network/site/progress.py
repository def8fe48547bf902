"""How far a site is, and how accurate: kept in its directory for its own screen, whatever its policy lets others know.

progress.json    the last round that was evaluated, and accuracies on this site's own test samples
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from protea.core.files import write_json

NAME = "progress.json"


@dataclass(frozen=True)
class SiteProgress:
    """What a site's own screen shows after an evaluation; None for what is not known here."""

    round: int
    rounds: int  # that the task has
    accuracy: float | None = None  # on this site's test samples, by the task's rule
    alone: float | None = None  # the same of a model that this site trains alone, beside the one that takes part

    def words(self) -> str:
        """Tell the round and the accuracies in one line.

        >>> SiteProgress(3, 50, 0.875, 0.75).words()
        'Round 3 of 50: accuracy here 87.5 %; trained alone 75.0 %.'
        """
        parts = [] if self.accuracy is None else [f"accuracy here {100 * self.accuracy:.1f} %"]
        parts += [] if self.alone is None else [f"trained alone {100 * self.alone:.1f} %"]
        return f"Round {self.round} of {self.rounds}: {'; '.join(parts) or 'not evaluated here'}."


def keep_progress(folder: Path, progress: SiteProgress) -> None:
    """Write how far a site is."""
    write_json(folder / NAME, asdict(progress))


def read_progress(folder: Path) -> SiteProgress | None:
    """Read how far a site is; None if it has not been evaluated, or that cannot be read."""
    try:
        found = json.loads((folder / NAME).read_bytes())
        accuracies = (found.get(name) for name in ("accuracy", "alone"))
        known = [None if each is None else float(each) for each in accuracies]
        return SiteProgress(int(found["round"]), int(found["rounds"]), *known)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
