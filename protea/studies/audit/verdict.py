"""Findings of the audit, and the thresholds that make verdicts of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import NonNegativeInt

from protea.config.toml import override, settings_from_table
from protea.core.errors import ConfigError
from protea.core.ranges import Proportion

Verdict = Literal["safe", "watch", "leaks"]
ORDER: tuple[Verdict, ...] = ("safe", "watch", "leaks")
AttackKind = Literal["counts", "linkage", "membership", "shadows", "inversion", "labels", "replies"]
TELLING: tuple[AttackKind, ...] = ("linkage", "inversion", "shadows", "membership", "counts", "replies", "labels")
Knowledge = Literal["uploads", "first weights", "own model", "client's model", "replies"]

KNOWLEDGE: dict[Knowledge, str] = {
    "uploads": "The attacker sees what the client uploads, and nothing else.",
    "own model": "The attacker sees the uploads and broadcasts, and trains a model of its own on similar records.",
    "first weights": "The attacker also knows the seed, so it has the client's model as it was before its first round.",
    "client's model": "The attacker also has the client's trained model: stolen, or an insider.  It never leaves.",
    "replies": "The attacker sees the evaluation replies, and nothing else.",
}


@dataclass(frozen=True)
class Thresholds:
    """From which numbers on a class is watched, or leaks.  All can be set: ``--thresholds auc_leaks=0.7``."""

    samples: NonNegativeInt = 5  # behind a vector or a reply; with fewer, what is said is about single persons
    auc_watch: Proportion = (
        0.65  # chance that a member scores above another record, where that is surely above one half
    )
    auc_leaks: Proportion = 0.8
    auc_unsure: Proportion = 0.95  # watched where the interval reaches this: too few records to tell
    tpr_watch: Proportion = 0.1  # members found at 1 % false positives, where that is surely above 1 %
    tpr_leaks: Proportion = 0.25
    exact: Proportion = 0.01  # distance of the nearest record, relative to the median; below, the vector is that record
    likeness_watch: Proportion = 0.5  # correlation of a reconstruction with a record, both less the mean of their class
    likeness_leaks: Proportion = 0.7
    alone: Proportion = 0.25  # of test samples that are alone in their bin of certainty


def thresholds_from(changes: Sequence[str]) -> Thresholds:
    """Read ``name=value`` changes of the thresholds, as a user types them."""
    for change in changes:
        if not change.partition("=")[1]:
            raise ConfigError(f"--thresholds {change}: write name=value, such as auc_leaks=0.7.")
    found: Thresholds = settings_from_table(Thresholds, override({}, changes), "--thresholds")
    for name in ("auc", "tpr", "likeness"):
        watch, leaks = getattr(found, f"{name}_watch"), getattr(found, f"{name}_leaks")
        if watch > leaks:
            raise ConfigError(
                f"--thresholds: {name}_watch is {watch}, and {name}_leaks {leaks}: what leaks would not be watched.  "
                f"Set {name}_watch lower, or {name}_leaks higher."
            )
    return found


@dataclass(frozen=True)
class AuditFinding:
    """What one attack found about one class, or about the client as a whole."""

    label: str  # the name of the class; empty for the client as a whole
    samples: int  # that the client has of it for training
    attack: AttackKind
    knowledge: Knowledge  # what the attacker needs
    measure: str  # what the number is
    number: float | None  # None where nothing could be measured
    low: float | None  # of the 95 % interval, over all classes together
    high: float | None
    verdict: Verdict
    words: str


def worst(findings: Iterable[AuditFinding]) -> Verdict:
    """Give the worst verdict; safe where there are no findings."""
    return max((finding.verdict for finding in findings), key=ORDER.index, default="safe")


def graded(number: float, watch: float, leaks: float) -> Verdict:
    """Give the verdict on a number that is worse the larger it is.

    >>> graded(0.7, watch=0.6, leaks=0.8)
    'watch'
    """
    return "leaks" if number >= leaks else "watch" if number >= watch else "safe"


def most_telling(findings: Sequence[AuditFinding]) -> AuditFinding:
    """Return the worst finding; of several that are as bad, that of the most telling attack, with its worst number."""

    def key(finding: AuditFinding) -> tuple[int, int, float]:
        small = finding.attack in ("linkage", "replies", "counts")  # where a small number tells more
        value = -float("inf") if finding.number is None else -finding.number if small else finding.number
        return ORDER.index(finding.verdict), -TELLING.index(finding.attack), value

    return max(findings, key=key)
