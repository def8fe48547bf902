"""Attack 1: is this record behind this vector, and which record is nearest to it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from protea.core.client import Client
from protea.studies.audit.separation import FEWEST, Floats, Separation, separation
from protea.studies.audit.shadows import train
from protea.studies.audit.subject import DRAWS, Subject
from protea.studies.audit.vectors import Sent, VectorMap, nearness, vectors_of
from protea.studies.audit.verdict import AttackKind, AuditFinding, Knowledge, Thresholds, Verdict, graded

RARE = 20  # others of its class among which a single record that ranks first is no chance


@dataclass(frozen=True)
class Attacker:
    """Somebody with a model to look at vectors through, and the vectors that it looks at."""

    knowledge: Knowledge
    client: Client  # whose model the attacker has
    link: VectorMap
    sent: Sequence[Sent]


def own_model(subject: Subject, rounds: int) -> Client:
    """Train an attacker's own model: other first weights, none of the client's records, the client's broadcasts."""
    return train(subject, subject.reference, "attacker", rounds, seed=DRAWS.seed("first weights")).client


def linkage(subject: Subject, attacker: Attacker, thresholds: Thresholds) -> list[AuditFinding]:
    """Find, for each vector, the rank of the nearest record that is behind it, among all records."""
    vectors = vectors_of(subject, attacker.client, attacker.link)
    candidates = (subject.inside | subject.compared).nonzero().squeeze(1)
    found = [_linked(subject, attacker, sent, vectors, candidates, thresholds) for sent in attacker.sent]
    worst = {each.label: each for each in sorted(found, key=lambda each: -(each.number or 0))}
    return [worst[name] for name in dict.fromkeys(each.label for each in found)]


def _linked(
    subject: Subject, attacker: Attacker, sent: Sent, vectors: Tensor, candidates: Tensor, thresholds: Thresholds
) -> AuditFinding:
    away = (vectors[candidates].double() - sent.vector.double()).norm(dim=1)
    ours = subject.inside[candidates] & (subject.labels[candidates] == sent.label)
    alike = subject.compared[candidates] & (subject.labels[candidates] == sent.label)
    name, behind = subject.names[sent.label], int(subject.counts[sent.label])
    if not ours.any():
        words = "A vector of a class left that the client has no record of."
        return AuditFinding(name, 0, "linkage", attacker.knowledge, "rank", None, None, None, "safe", words)
    rank = 1 + int((away < away[ours].min()).sum())
    share = float(away[ours].min() / away.median().clamp(min=1e-12))
    words = (
        f"Of {len(candidates):,} records by nearness to the vector, the client's first of the class is number {rank}"
    )
    verdict: Verdict = "safe"
    if share <= thresholds.exact:
        verdict, words = "leaks", f"The vector is that of one record, found exactly among {len(candidates):,}"
    elif behind == 1 and int((away[alike] < away[ours].min()).sum()) == 0:
        verdict = "leaks" if int(alike.sum()) >= RARE else "watch"
        words += ", its only one"
    return AuditFinding(name, behind, "linkage", attacker.knowledge, "rank", rank, None, None, verdict, f"{words}.")


def nearest_records(subject: Subject, attacker: Attacker) -> dict[int, int]:
    """Return, for each class whose vector left, the record that is nearest to it: retrieval."""
    vectors = vectors_of(subject, attacker.client, attacker.link)
    candidates = (subject.inside | subject.compared).nonzero().squeeze(1)
    return {
        each.label: int(candidates[(vectors[candidates] - each.vector).norm(dim=1).argmin()]) for each in attacker.sent
    }


def membership(subject: Subject, attacker: Attacker, thresholds: Thresholds) -> list[AuditFinding]:
    """Tell, by its distance to the vectors that left, whether a record is behind that of its class."""
    near = nearness(vectors_of(subject, attacker.client, attacker.link), subject.labels, attacker.sent)
    return told(subject, near, attacker.knowledge, thresholds)


def told(subject: Subject, scores: Tensor, knowledge: Knowledge, thresholds: Thresholds) -> list[AuditFinding]:
    """Give the findings on each class whose vectors left, by whichever of the scores ``(2, records)`` tells more."""
    present = sorted({int(label) for label in subject.labels[subject.inside & scores[0].isfinite()]})
    found = []
    for label in present:
        of, rng = subject.labels == label, DRAWS.at(knowledge, label).numpy("bootstrap")
        both = [
            separation(
                score[of & subject.inside].numpy(), score[of & subject.compared].numpy(), rng, groups=2 * len(present)
            )
            for score in scores
        ]
        best = max((each for each in both if each is not None), key=lambda each: each.auc, default=None)
        name, count = subject.names[label], int(subject.counts[label])
        found.append(membership_finding(name, count, "membership", knowledge, best, thresholds))
    return found


def membership_finding(
    name: str, count: int, attack: AttackKind, knowledge: Knowledge, found: Separation | None, thresholds: Thresholds
) -> AuditFinding:
    """Make a finding, with its verdict, of how far members lie above others."""
    if found is None:
        words = f"Fewer than {FEWEST} other records of this class to compare with: nobody can tell here."
        return AuditFinding(name, count, attack, knowledge, "AUC", None, None, None, "watch", words)
    verdict: Verdict = "safe"
    many = "" if found.members == 1 else "s"
    words = (
        f"{found.members} member{many}, {found.others} others; {100 * found.tpr:.0f} % found at 1 % false positives."
    )
    if found.low > 0.5:
        verdict = graded(found.auc, thresholds.auc_watch, thresholds.auc_leaks)
    if verdict == "safe" and found.high >= thresholds.auc_unsure:
        verdict, words = "watch", f"Too few to tell: {words}"
    return AuditFinding(name, count, attack, knowledge, "AUC", found.auc, found.low, found.high, verdict, words)


def overall(
    subject: Subject, members: Floats, others: Floats, knowledge: Knowledge, thresholds: Thresholds
) -> list[AuditFinding]:
    """Give the findings on all classes together, by calibrated scores: AUC, and true positives at 1 %."""
    found = separation(members, others, DRAWS.numpy("overall"))
    if found is None:
        return []
    verdict: Verdict = "safe"
    if found.tpr_low > 0.01:
        verdict = graded(found.tpr, thresholds.tpr_watch, thresholds.tpr_leaks)
    words = f"Of {found.members} members, where 1 % of {found.others} others are taken for members."
    low, high = found.tpr_low, found.tpr_high
    return [
        membership_finding("", subject.members, "shadows", knowledge, found, thresholds),
        AuditFinding("", subject.members, "shadows", knowledge, "true positives", found.tpr, low, high, verdict, words),
    ]
