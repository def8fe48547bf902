"""Attack 2: the input whose vector is the one that left, by gradient steps on the input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protea.core.client import Client
from protea.studies.audit.linkage import Attacker
from protea.studies.audit.separation import FEWEST
from protea.studies.audit.subject import DRAWS, Subject
from protea.studies.audit.vectors import Map, Sent, maps
from protea.studies.audit.verdict import AuditFinding, Knowledge, Thresholds, graded

STEPS = 300
RATE = 0.1  # of Adam
PRIOR = 1e-3  # weight of how unlikely an input is, by what the attacker knows of such records
WAYS = 64  # principal components of the attacker's records, along which inputs are moved
KNOWN = 300  # of the attacker's records, about, from which these are found
MARGIN = 0.1  # by which a reconstruction must be liker to the client's records than to others
DRAWN = 200  # draws of other records, for what chance gives
BATCH = 256  # vectors that are inverted at once


@dataclass(frozen=True)
class Reconstruction:
    """An input made from a vector, beside the records it is like."""

    label: int
    knowledge: Knowledge
    made: Tensor  # the reconstruction
    record: int  # the client's own record of the class that it is most like
    likeness: float
    chance: float


def why_not_invert(subject: Subject) -> str:
    """Say why inputs cannot be reconstructed, if so; else nothing."""
    x, _ = subject.records.batch(torch.arange(1))
    if subject.text is not None or not x.is_floating_point():
        return "Inputs are texts or tokens, which gradients cannot move: inversion is by retrieval alone."
    if int(subject.reference.sum()) < FEWEST:
        return "There are too few other records to learn from what such inputs look like: inversion is by retrieval."
    return ""


def inversion(
    subject: Subject, attacker: Attacker, thresholds: Thresholds
) -> tuple[list[AuditFinding], list[Reconstruction]]:
    """Reconstruct an input from each vector, and compare it with the client's records and with others."""
    every = torch.arange(len(subject.records)).split(BATCH)
    records = torch.cat([subject.records.batch(rows)[0].cpu() for rows in every])
    prior = Likely.of(subject, records)
    made = invert(attacker.client, maps(subject.method, attacker.client)[attacker.link.map], attacker.sent, prior)
    best: dict[int, Reconstruction] = {}
    for sent, image in zip(attacker.sent, made, strict=True):
        if subject.counts[sent.label]:
            found = judged(subject, attacker.knowledge, sent, image, records)
            if sent.label not in best or found.likeness > best[sent.label].likeness:
                best[sent.label] = found
    return [finding(subject, each, thresholds) for each in best.values()], list(best.values())


@dataclass(frozen=True)
class Likely:
    """What the attacker knows of such records from its own: their means by class, and along which ways they differ."""

    means: Tensor  # (classes, ...) of all classes together where there are fewer than three of one
    ways: Tensor  # (ways, numbers) principal components, each as long as the standard deviation along it
    span: tuple[float, float]  # smallest and largest value

    @classmethod
    def of(cls, subject: Subject, records: Tensor) -> Likely:
        """Learn it from the records that an attacker has."""
        rows = subject.reference.nonzero().squeeze(1)
        known, labels = records[rows], subject.labels[rows]
        span = float(records.min()), float(records.max())
        groups = [known[labels == label] for label in range(subject.classes)]
        means = torch.stack([(group if len(group) >= FEWEST else known).mean(0) for group in groups])
        flat = known[:: max(1, len(known) // KNOWN)].flatten(1)
        flat = flat - flat.mean(0)
        _, lengths, ways = torch.linalg.svd(flat, full_matrices=False)
        return cls(means, (ways * lengths.unsqueeze(1) / len(flat) ** 0.5)[:WAYS], span)


def finding(subject: Subject, found: Reconstruction, thresholds: Thresholds) -> AuditFinding:
    """Make a finding of a reconstruction: it tells something if it is liker to a record than chance makes it."""
    verdict = graded(found.likeness, thresholds.likeness_watch, thresholds.likeness_leaks)
    above = found.likeness > found.chance + MARGIN
    words = f"Like a record behind the vector by {found.likeness:.2f}; like other records by chance {found.chance:.2f}."
    return AuditFinding(
        subject.names[found.label], int(subject.counts[found.label]), "inversion", found.knowledge, "likeness",
        found.likeness, None, None, verdict if above else "safe", words,
    )  # fmt: skip


def invert(client: Client, of: Map, sent: Sequence[Sent], prior: Likely) -> Tensor:
    """Move inputs by gradient steps, from the mean of their class, until their vectors are those that left."""
    client.set_evaluation()
    found = []
    for part in range(0, len(sent), BATCH):
        some = sent[part : part + BATCH]
        targets = torch.stack([each.vector for each in some]).to(client.device)
        start = prior.means[[each.label for each in some]].to(client.device)
        ways = prior.ways.to(client.device)
        steps = torch.zeros(len(some), len(ways), device=client.device, requires_grad=True)
        optimizer = torch.optim.Adam([steps], lr=RATE)
        scale = targets.square().sum(1).clamp(min=1e-12)
        with torch.enable_grad():
            for _ in range(STEPS):
                x = (start + (steps @ ways).view_as(start)).clamp(*prior.span)
                away = ((of(x) - targets).square().sum(1) / scale).sum()
                (steps.grad,) = torch.autograd.grad(away + PRIOR * steps.square().mean(1).sum(), steps)
                optimizer.step()
        with torch.no_grad():
            found.append((start + (steps @ ways).view_as(start)).clamp(*prior.span).cpu())
    return torch.cat(found)


def judged(subject: Subject, knowledge: Knowledge, sent: Sent, made: Tensor, records: Tensor) -> Reconstruction:
    """Compare a reconstruction with the records behind its vector, and with as many others as often drawn."""
    alike = subject.labels == sent.label
    others = subject.compared & alike
    if others.sum() < FEWEST:
        others = subject.compared
    base = records[others].mean(0) if others.any() else torch.zeros_like(made)
    own = (subject.inside & alike).nonzero().squeeze(1)
    like = likenesses(made - base, records[own] - base)
    rest = likenesses(made - base, records[others] - base) if others.any() else torch.zeros(1)
    draws = torch.randint(len(rest), (DRAWN, len(own)), generator=DRAWS.at("chance", sent.label).generator("others"))
    return Reconstruction(
        sent.label,
        knowledge,
        made,
        int(own[like.argmax()]),
        float(like.max()),
        float(rest[draws].amax(1).quantile(0.95)),
    )


def likenesses(made: Tensor, records: Tensor) -> Tensor:
    """Return the correlation of one input with each of several, ``(records,)``."""
    one, many = made.flatten().double(), records.flatten(1).double()
    one, many = one - one.mean(), many - many.mean(1, keepdim=True)
    found: Tensor = (many @ one) / (many.norm(dim=1) * one.norm()).clamp(min=1e-12)
    return found
