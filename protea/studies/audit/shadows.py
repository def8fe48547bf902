"""Attack 1, calibrated: shadow models with and without each record say how near it is to a vector in either case.

Carlini, Chien, Nasr, Song, Terzis, Tramer: Membership inference attacks from first principles.  S&P 2022,
https://arxiv.org/abs/2112.03570.  A record's score is the log-likelihood ratio of two normal distributions, whose
means are the record's own and whose variances are those of its class: with few shadows that is steadier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protea.clients.builder import Builder
from protea.clients.worker import Worker
from protea.core.client import Client
from protea.core.errors import ClientError
from protea.core.message import Named
from protea.core.rng import Streams
from protea.federation.jobs import Job
from protea.studies.audit.separation import FEWEST
from protea.studies.audit.subject import DRAWS, Subject
from protea.studies.audit.vectors import VectorMap, nearness, sent_vectors, vectors_of

Told = Callable[[str, int, int], None]  # what is done, steps done, steps in all


@dataclass(frozen=True)
class TrainedShadow:
    """A client that an attacker has trained, and what it would have sent."""

    client: Client
    uploads: list[tuple[int, Named]]  # by round
    before: Named  # its model's weights before the last round's training


@dataclass(frozen=True)
class ShadowBuilder(Builder):
    """Builds the audited client with other records, and with its own first weights or those of another seed."""

    subject: Subject
    rows: Tensor  # which records it trains on: a bool each
    seed: int | None

    def __call__(self, id: int, streams: Streams) -> Client:
        client = self.subject.fresh(self.seed)
        client.train = self.subject.records.only(self.rows.nonzero().squeeze(1))
        return client


def train(subject: Subject, rows: Tensor, name: str, rounds: int, seed: int | None = None) -> TrainedShadow:
    """Train a client on other records, by the broadcasts that the audited one got; all filters apply."""
    builder = ShadowBuilder(subject, rows, seed)
    worker = Worker(replace(subject.plan, method=subject.method, builder=builder, seed=DRAWS.seed(name)))
    client, uploads, before = worker.client(subject.client), list[tuple[int, Named]](), dict[str, Tensor]()
    for step in range(rounds):
        # The last broadcasts, and before these the oldest known one.
        departure = subject.departures[max(0, len(subject.departures) - rounds + step)]
        if step == rounds - 1:
            before = {key: t.detach().clone() for key, t in client.model.state_dict().items()}
        round = subject.rounds - rounds + step + 1
        reply = worker.run(Job("train", round, subject.client, {k: t.clone() for k, t in departure.down.items()}))
        if reply.error is not None:
            raise ClientError(f"A model of the attacker's, trained as {subject.name} was, failed: {reply.error}")
        uploads.append((round, reply.up))
    client.set_evaluation()
    return TrainedShadow(client, uploads, before)


@dataclass(frozen=True)
class ShadowScores:
    """Calibrated scores of the records that were in and out of shadows; higher for members."""

    rows: Tensor
    scores: Tensor


def shadow_scores(
    subject: Subject, target: Tensor, link: VectorMap, shadows: int, rounds: int, told: Told
) -> ShadowScores:
    """Train pairs of shadows, each on one half of a pool of members and others, and compare the target with them.

    ``target`` are the scores of :func:`nearness` by the vectors that really left, through the client's own model.
    """
    rows = pool(subject)
    inside = torch.zeros(shadows, len(rows), dtype=torch.bool)
    near = torch.full((2, shadows, len(rows)), torch.nan, dtype=torch.float64)
    for shadow in range(shadows):
        told("shadow models", shadow, shadows)
        inside[shadow] = half(subject.labels[rows], shadow)
        chosen = torch.zeros(len(subject.records), dtype=torch.bool)
        chosen[rows[inside[shadow]]] = True
        made = train(subject, chosen, f"shadow/{shadow}", rounds)
        if link.stage == "before":
            made.client.model.load_state_dict(made.before)
        sent = sent_vectors(subject, made.uploads if link.constant else made.uploads[-1:], link)
        near[:, shadow] = nearness(vectors_of(subject, made.client, link), subject.labels, sent)[:, rows]
    told("shadow models", shadows, shadows)
    labels = subject.labels[rows]
    ratios = [
        likelihood_ratio(levelled(one[None], labels)[0], levelled(many, labels), inside, labels)
        for one, many in zip(target[:, rows], near, strict=True)
    ]
    return ShadowScores(rows, ratios[0] + ratios[1])  # as if the two scores were independent


def pool(subject: Subject) -> Tensor:
    """Return the rows of all members, and of as many others of each class as there are members; of three at least."""
    found = [subject.inside.nonzero().squeeze(1)]
    for label in range(subject.classes):
        others = (subject.compared & (subject.labels == label)).nonzero().squeeze(1)
        found.append(others[: max(FEWEST, int(subject.counts[label]))] if subject.counts[label] else others[:0])
    return torch.cat(found)


def half(labels: Tensor, shadow: int) -> Tensor:
    """Choose half of the records of each class; shadows 1, 3, ... get the half that the one before did not."""
    order = torch.rand(len(labels), generator=DRAWS.at("pair", shadow // 2).generator("half"))
    found = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        rows = (labels == label).nonzero().squeeze(1)
        rows = rows[order[rows].argsort()]
        first = rows[: (len(rows) + (shadow // 2) % 2) // 2]
        found[first] = True
        if shadow % 2:
            found[rows] = ~found[rows]
    return found


def levelled(near: Tensor, labels: Tensor) -> Tensor:
    """Take from each model's scores the median of their class: models differ in how far all records are."""
    found = near.clone()
    for label in labels.unique():
        of = labels == label
        found[:, of] = near[:, of] - near[:, of].nanmedian(1, keepdim=True).values
    return found


def likelihood_ratio(target: Tensor, near: Tensor, inside: Tensor, labels: Tensor) -> Tensor:
    """Return the log-likelihood ratio of each record's score as a member's and as another's; nan where unknown."""
    means, spreads = [], []
    for chosen in (inside, ~inside):
        known = chosen & near.isfinite()
        count = known.sum(0)
        mean = torch.where(known, near, 0.0).sum(0) / count
        rest = torch.where(known, near - mean, 0.0).square()
        spread = torch.ones_like(mean)
        for label in labels.unique():
            of = labels == label
            freedom = (count[of] - 1).clamp(min=0).sum().clamp(min=1)
            spread[of] = (rest[:, of].sum() / freedom).sqrt().clamp(min=1e-3)
        means.append(mean)
        spreads.append(spread)
    logs = [-((target - m) / s).square() / 2 - s.log() for m, s in zip(means, spreads, strict=True)]
    return logs[0] - logs[1]
