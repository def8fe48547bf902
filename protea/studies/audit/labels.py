"""Attack 3: class sizes and label distribution, from counts, replies, and which classes are present over rounds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from protea.studies.audit.subject import Subject
from protea.studies.audit.vectors import Sent
from protea.studies.audit.verdict import AuditFinding, Knowledge, Thresholds, Verdict


def class_sizes(
    subject: Subject, sent: Sequence[Sent], thresholds: Thresholds, unattacked: str = ""
) -> list[AuditFinding]:
    """Say of each class what its vector and its count tell about how many samples are behind it.

    ``unattacked`` says why nothing that leaves could be attacked, if that is so: such classes are to be watched.
    """
    found = []
    for label in range(subject.classes):
        own, counts = int(subject.counts[label]), [each.count for each in sent if each.label == label]
        name, few = subject.names[label], min(counts, default=0)
        exact = bool(counts) and sum(counts) == own
        verdict: Verdict = "safe"
        if not counts:
            if not own:
                continue
            words = "No vector left: held back, or not sent in these rounds."
            if unattacked and name not in subject.plan.release.held_names:
                verdict, words = "watch", f"Not attacked: {unattacked}."
        elif exact:
            verdict = "leaks" if few < thresholds.samples else "safe"
            words = f"The count says it: {_samples(own)} behind {_vectors(len(counts))}."
        else:
            verdict = "watch" if own < thresholds.samples else "safe"
            words = f"That the class is there; its size ({own}) does not leave, the count says {few:g}."
        number = float(sum(counts)) if counts else None
        found.append(AuditFinding(name, own, "counts", "uploads", "samples told", number, None, None, verdict, words))
    return found


def _samples(count: int) -> str:
    return f"{count} sample{'s' if count != 1 else ''}"


def _vectors(count: int) -> str:
    return "one vector" if count == 1 else f"{count} vectors"


def distribution(subject: Subject, sent: Sequence[Sent], thresholds: Thresholds) -> list[AuditFinding]:
    """Estimate the client's label distribution from what left, and say how far the estimate is from the truth.

    The distance is half the sum of absolute differences, from 0 (known exactly) to 1.
    """
    guesses: dict[str, Tensor] = {}
    told = torch.zeros(subject.classes, dtype=torch.float64)
    for each in sent:
        told[each.label] += each.count
    if told.sum():
        guesses["counts in uploads"] = told
        guesses["classes that are present"] = (told > 0).double()
    if (counts := subject.answered("test")) is not None:
        guesses["test samples in replies"] = counts.samples.double()
    truth = subject.counts.double() / subject.counts.sum()
    small = bool(((subject.counts > 0) & (subject.counts < thresholds.samples)).any())
    found = [whole_size(subject)]
    for source, guess in guesses.items():
        away = float((guess / guess.sum() - truth).abs().sum() / 2)
        knowledge: Knowledge = "replies" if source.endswith("replies") else "uploads"
        verdict: Verdict = "watch" if small and away < 0.1 else "safe"
        words = f"Label distribution by {source}: off by {100 * away:.0f} % of the samples."
        found.append(
            AuditFinding("", subject.members, "labels", knowledge, "distance", away, None, None, verdict, words)
        )
    return found


def whole_size(subject: Subject) -> AuditFinding:
    """Say whether the number that goes with every upload is that of the client's training samples."""
    told = subject.departures[-1].samples
    exact = "exactly" if told == subject.members else "not exactly"
    words = f"With an upload goes the number of training samples, {exact}: {told}."
    if not told:
        words = "No number of training samples that can be read goes with an upload."
    return AuditFinding(
        "", subject.members, "labels", "uploads", "samples told", float(told), None, None, "safe", words
    )


def presence(subject: Subject) -> dict[str, list[int]]:
    """Return in which of the rounds looked at each class had a vector, by its name."""
    found: dict[str, list[int]] = {}
    for departure in subject.departures:
        sent = subject.sent(departure.up, departure.round)
        if sent is not None:
            for label in sent.present.nonzero().squeeze(1).tolist():
                found.setdefault(subject.names[label], []).append(departure.round)
    return found
