"""All attacks on one subject, in order, and what they found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from protea.core.clusters import Clusters
from protea.core.devices import torch_threads
from protea.core.errors import PayloadError
from protea.core.message import Named, nbytes
from protea.core.payload import places_of
from protea.core.prototypes import Prototypes
from protea.studies.audit.inversion import Reconstruction, inversion, why_not_invert
from protea.studies.audit.labels import class_sizes, distribution, presence
from protea.studies.audit.linkage import (
    Attacker,
    linkage,
    membership,
    membership_finding,
    nearest_records,
    overall,
    own_model,
)
from protea.studies.audit.replies import single_samples
from protea.studies.audit.separation import separation
from protea.studies.audit.shadows import Told, shadow_scores
from protea.studies.audit.subject import DRAWS, Subject
from protea.studies.audit.vectors import POOR, Sent, VectorMap, find_link, nearness, sent_vectors, vectors_of
from protea.studies.audit.verdict import KNOWLEDGE, AuditFinding, Thresholds, Verdict, most_telling, worst

SHADOWS = 16
SHADOW_ROUNDS = 20  # of training at most, for shadows and for an attacker's own model


def silent(what: str, done: int, total: int) -> None:
    """Say nothing of how far an audit is."""


@dataclass(frozen=True)
class AuditResult:
    """What an audit found."""

    subject: Subject
    thresholds: Thresholds
    findings: list[AuditFinding]
    notes: list[str]  # what is attacked, and what could not be
    presence: dict[str, list[int]]  # rounds in which each class had a vector
    reconstructions: list[Reconstruction]
    retrieved: dict[int, int]  # by class, the record that is nearest to its vector for the attacker who knows most

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all findings."""
        return worst(self.findings)

    def of_class(self, name: str) -> list[AuditFinding]:
        """Return the findings on one class."""
        return [finding for finding in self.findings if finding.label == name]

    @property
    def classes(self) -> dict[str, Verdict]:
        """The verdict on each class that the client has, or whose vector left, by its name."""
        names = [name for name in self.subject.names if self.of_class(name)]
        return {name: worst(self.of_class(name)) for name in names}

    @property
    def reasons(self) -> list[AuditFinding]:
        """The worst finding on each class that is not safe, in the order of classes."""
        return [most_telling(self.of_class(name)) for name, verdict in self.classes.items() if verdict != "safe"]

    @property
    def without_model(self) -> dict[str, Verdict]:
        """The verdict on each class if nobody but the client has its trained model."""
        return {
            name: worst(each for each in self.of_class(name) if each.knowledge != "client's model")
            for name in self.classes
        }

    def _worst(self, name: str) -> dict[str, int]:
        """Return, for each attack on a class, the place of its worst finding."""
        found: dict[str, list[AuditFinding]] = {}
        for finding in self.of_class(name):
            found.setdefault(finding.attack, []).append(finding)
        return {attack: self.findings.index(most_telling(some)) for attack, some in found.items()}

    def plain(self) -> dict[str, Any]:
        """Return everything but the reconstructions as plain values, for JSON."""
        subject = self.subject
        counts, less = dict(zip(subject.names, subject.counts.tolist(), strict=True)), self.without_model
        return {
            "format": "protea-audit-1",
            "subject": subject.name,
            **subject.settings,
            "records": subject.members,
            "candidates": len(subject.records),
            "rounds": [each.round for each in subject.departures],
            "upload_bytes": nbytes(subject.departures[-1].up),
            "verdict": self.verdict,
            "classes": [
                {
                    "class": name,
                    "samples": counts[name],
                    "verdict": verdict,
                    "without_model": less[name],
                    "worst": self._worst(name),
                }
                for name, verdict in self.classes.items()
            ],
            "findings": [asdict(finding) for finding in self.findings],
            "presence": self.presence,
            "notes": self.notes,
            "knowledge": KNOWLEDGE,
            "thresholds": asdict(self.thresholds),
        }


def findings(subject: Subject, thresholds: Thresholds | None = None, *, shadows: int = SHADOWS) -> list[AuditFinding]:
    """Attack a subject, and return one row for each class and attack."""
    return attack(subject, thresholds, shadows=shadows).findings


def attack(
    subject: Subject,
    thresholds: Thresholds | None = None,
    *,
    shadows: int = SHADOWS,
    shadow_rounds: int = SHADOW_ROUNDS,
    told: Told = silent,
) -> AuditResult:
    """Attack a subject in every way there is, and judge what came out; ``told`` hears how far it is."""
    with torch_threads(subject.plan.threads):
        return _attack(subject, thresholds or Thresholds(), shadows, shadow_rounds, told)


def _attack(subject: Subject, limits: Thresholds, shadows: int, shadow_rounds: int, told: Told) -> AuditResult:
    last = subject.departures[-1]
    uploads = [(each.round, each.up) for each in subject.departures]
    newest, unread = readable_vectors(subject, uploads)
    notes, found, images = list(subject.attacked), list[AuditFinding](), list[Reconstruction]()
    everything: Sequence[Sent] = []
    retrieved: dict[int, int] = {}
    unattacked = ""
    if unread:
        unattacked = "what leaves of it cannot be read by itself"
        notes.append(
            f"Who receives one upload alone cannot read it ({unread})  Linkage, membership and inversion have nothing "
            f"to attack then; what sums over several clients tell is not audited."
        )
    elif subject.sent(last.up, last.round) is None:
        unattacked = "what leaves is no class vector" if last.up else ""
        notes.append(
            f"{type(subject.method).__name__} sends no class vectors but {_names(last.up)}, which linkage, membership "
            f"and inversion do not attack.  That is no sign of safety: weights tell more than class vectors do.  "
            f"Audited are the evaluation replies."
        )
    elif not newest:
        notes.append("No class vector left: all classes are held back.  Audited are the evaluation replies.")
    else:
        notes += about_others(subject, last.up)
        link = find_link(subject, last, newest)
        notes += about_link(link)
        everything = sent_vectors(subject, uploads, link)
        rounds = min(subject.rounds, shadow_rounds)
        if rounds < subject.rounds:
            notes.append(f"Shadow models trained {rounds} rounds; the client trained {subject.rounds}.")
        reason = why_not_invert(subject)
        everybody = attackers(subject, link, everything, rounds, told)
        for attacker in everybody:
            found += linkage(subject, attacker, limits) + membership(subject, attacker, limits)
            retrieved = nearest_records(subject, attacker)
            if not reason:
                told(f"inversion, {attacker.knowledge}", 0, 1)
                some, made = inversion(subject, attacker, limits)
                found, images = found + some, images + made
        if shadows:
            found += calibrated(subject, everybody[-1], shadows, rounds, limits, told)
        notes += [reason] if reason else []
        if not subject.seed_known:
            notes.append("The client's first weights come from a secret seed, so nobody can rebuild its first model.")
    found = [*class_sizes(subject, everything, limits, unattacked), *found, *distribution(subject, everything, limits)]
    found += single_samples(subject, limits)
    return AuditResult(subject, limits, found, notes, {} if unread else presence(subject), images, retrieved)


def readable_vectors(subject: Subject, uploads: Sequence[tuple[int, Named]]) -> tuple[list[Sent], str]:
    """Return the newest vector of each class that left, or why who receives an upload cannot read it."""
    try:
        return sent_vectors(subject, uploads), ""
    except PayloadError as error:
        return [], str(error)


def _names(up: Named) -> str:
    return f"{len(up)} tensors ({', '.join(sorted(up)[:2])}, ...)" if up else "nothing"


def about_others(subject: Subject, up: Named) -> list[str]:
    """Say what leaves beside class vectors."""
    clusters = places_of(Clusters, subject.method.up, up)
    places = tuple(place or "vectors" for place in (*places_of(Prototypes, subject.method.up, up), *clusters))
    own = ("vectors", "counts", "classes") if clusters else ("vectors", "counts")
    others = sorted(name for name in up if places and not name.startswith((*places, *own)))
    said = (
        ["Classes leave as several clusters.  What follows looks at the mean of each class, and says less than leaves."]
        if clusters
        else []
    )
    if not others:
        return said
    return [
        *said,
        f"Beside class vectors {len(others)} other tensors leave ({', '.join(others[:2])}, ...).  If these are "
        f"weights, who receives them has the client's model.",
    ]


def about_link(link: VectorMap) -> list[str]:
    """Say what the vectors are, as far as the client's own records show it."""
    if link.error > POOR:
        return [
            f"The vectors that left are no class means by any map known here (nearest: {link.map}, off by "
            f"{100 * link.error:.0f} %): noise, or a method of its own.  Attacks through a map are weak then."
        ]
    taken = "" if link.constant else f", by the model {link.stage} the round's training"
    return [f"The vectors are class means of the {link.map}{taken} (off by {100 * link.error:.1f} %)."]


def attackers(subject: Subject, link: VectorMap, sent: Sequence[Sent], rounds: int, told: Told) -> list[Attacker]:
    """Return attackers, the one that knows least first."""
    first, last = subject.departures[0], subject.departures[-1]
    newest = sent if link.constant else sent_vectors(subject, [(last.round, last.up)], link)
    if link.constant:
        return [Attacker("uploads", subject.with_weights(last.after), link, sent)]
    told("an attacker's own model", 0, 1)
    found = [Attacker("own model", own_model(subject, rounds), link, newest)]
    if first.round == 1 and subject.seed_known:
        found.append(
            Attacker("first weights", subject.fresh(), link, sent_vectors(subject, [(first.round, first.up)], link))
        )
    return [*found, Attacker("client's model", subject.with_weights(link.weights(last)), link, newest)]


def calibrated(
    subject: Subject, attacker: Attacker, shadows: int, rounds: int, thresholds: Thresholds, told: Told
) -> list[AuditFinding]:
    """Test membership by shadow models: one finding for each class, and two for all of them together."""
    near = nearness(vectors_of(subject, attacker.client, attacker.link), subject.labels, attacker.sent)
    scored = shadow_scores(subject, near, attacker.link, shadows, rounds, told)
    labels, inside, scores = subject.labels[scored.rows], subject.inside[scored.rows], scored.scores
    present = sorted(set(labels[inside & scores.isfinite()].tolist()))
    found = []
    for label in present:
        of, rng = labels == label, DRAWS.at("shadows", label).numpy("bootstrap")
        measured = separation(scores[of & inside].numpy(), scores[of & ~inside].numpy(), rng, groups=len(present))
        name, count = subject.names[label], int(subject.counts[label])
        found.append(membership_finding(name, count, "shadows", attacker.knowledge, measured, thresholds))
    return [
        *found,
        *overall(subject, scores[inside].numpy(), scores[~inside].numpy(), attacker.knowledge, thresholds),
    ]
