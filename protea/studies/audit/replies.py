"""Attack 4: what evaluation replies say about single samples, above all of small classes."""

from __future__ import annotations

from protea.studies.audit.subject import Subject
from protea.studies.audit.verdict import AuditFinding, Thresholds, Verdict


def single_samples(subject: Subject, thresholds: Thresholds) -> list[AuditFinding]:
    """Say of each class whether its hits tell about single test samples; k of n right, with n small, does."""
    found: list[AuditFinding] = []
    if not subject.replies:
        words = "No evaluation reply left."
        return [AuditFinding("", subject.members, "replies", "replies", "replies", 0.0, None, None, "safe", words)]
    for part in ("test", "validation"):
        counts = subject.answered(part)
        if counts is None:
            continue  # nothing was told, or nothing by class
        for label, (samples, hits) in enumerate(zip(counts.samples.tolist(), counts.hits.tolist(), strict=True)):
            if not samples:
                continue
            verdict: Verdict = "leaks" if samples == 1 else "watch" if samples < thresholds.samples else "safe"
            words = f"{hits} of {samples} {part} samples answered right."
            if samples == 1:
                words = f"The one {part} sample was answered {'right' if hits else 'wrong'}: each reply says that."
            elif samples < thresholds.samples and hits in (0, samples):
                words = f"All {samples} {part} samples were answered {'right' if hits else 'wrong'}."
            found.append(
                AuditFinding(
                    subject.names[label], int(subject.counts[label]), "replies", "replies", f"{part} samples",
                    float(samples), None, None, verdict, words,
                )
            )  # fmt: skip
    return [*found, *alone_in_bins(subject, thresholds)]


def alone_in_bins(subject: Subject, thresholds: Thresholds) -> list[AuditFinding]:
    """Say how many test samples are alone in their bin of certainty: the sum of the bin is then their certainty."""
    counts = subject.answered("test")
    if counts is None:
        words = "Evaluation replies say nothing by class, and nothing about certainty."
        return [
            AuditFinding("", subject.members, "replies", "replies", "alone in bins", 0.0, None, None, "safe", words)
        ]
    bins = counts.certain[0]
    alone, samples = int((bins == 1).sum()), int(bins.sum())
    verdict: Verdict = "watch" if samples and alone / samples >= thresholds.alone else "safe"
    words = f"Of {alone} of {samples} test samples the exact certainty is told (alone in their bin), but not whose."
    share = alone / samples if samples else 0.0
    return [AuditFinding("", subject.members, "replies", "replies", "alone in bins", share, None, None, verdict, words)]
