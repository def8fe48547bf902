"""From a record to the vector that a method would send of it: what links the two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from protea.core.client import Client
from protea.core.common_map import common_map
from protea.core.message import Named
from protea.core.method import Method
from protea.core.prototypes import Prototypes
from protea.methods.fedloo import FedLOO
from protea.studies.audit.recorder import Departure
from protea.studies.audit.subject import Subject

Map = Callable[[Tensor], Tensor]

COMMON = "common map"  # which needs no model: every party computes it alike
POOR = 0.5  # relative error above which vectors are no means by any map that is known here


@dataclass(frozen=True)
class Sent:
    """One class vector that left, of a class present in an upload."""

    label: int
    vector: Tensor  # (dim,)
    count: float
    round: int


@dataclass(frozen=True)
class VectorMap:
    """The map whose class means are what left, and whether of the model before a round's training or after it."""

    map: str
    stage: str  # "before" or "after"
    error: float  # relative distance of the client's own class means by this map to what left

    @property
    def constant(self) -> bool:
        """Whether vectors of different rounds lie in one space."""
        return self.map == COMMON

    def weights(self, departure: Departure) -> Named:
        """Return the weights of the model whose features left."""
        return departure.before if self.stage == "before" else departure.after


def maps(method: Method[Any, Any], client: Client) -> dict[str, Map]:
    """Return the maps from a batch of records to vectors, by name, through a client's model."""
    if isinstance(method, FedLOO):
        return {COMMON: lambda x: common_vectors(client, x, method.map_seed)}
    model = client.model
    return {
        "features": model.features,
        "features of length 1": lambda x: F.normalize(model.features(x), dim=1),
        "class scores": model,
        "class probabilities": lambda x: model(x).softmax(1),
    }


def common_vectors(client: Client, x: Tensor, seed: int) -> Tensor:
    """Return the common map of a batch, with gradients, which :class:`CommonMap` itself leaves out."""
    seen = client.model.common(x)
    made = common_map(tuple(seen.shape[1:]), client.dim, seed, x.device)
    answers = made.images(seen) if made.pixels else made.vectors(seen)
    return F.pad(answers @ made.projection, (0, 1), value=1.0)


@torch.no_grad()
def vectors_of(subject: Subject, client: Client, link: VectorMap) -> Tensor:
    """Return the vectors of all records through a client's model, ``(records, dim)``, on the CPU."""
    found, _ = client.outputs(maps(subject.method, client)[link.map], subject.records)
    return found.cpu()


def find_link(subject: Subject, departure: Departure, sent: Sequence[Sent]) -> VectorMap:
    """Find the map by which the client's own records give what left: the auditor has them, so it can look."""
    tried, labels, told = [], [each.label for each in sent], torch.stack([each.vector for each in sent])
    for stage, weights in (("after", departure.after), ("before", departure.before)):
        client = subject.with_weights(weights)
        for name in maps(subject.method, client):
            link = VectorMap(name, stage, 0.0)
            found = vectors_of(subject, client, link)
            if found.shape[1] == told.shape[1]:
                own = Prototypes.of(found[subject.inside], subject.labels[subject.inside], subject.classes)
                away = (own.vectors[labels] - told).norm() / told.norm().clamp(min=1e-12)
                tried.append(VectorMap(name, stage, float(away)))
    return min(tried, key=lambda link: link.error)


def sent_vectors(subject: Subject, uploads: Sequence[tuple[int, Named]], link: VectorMap | None = None) -> list[Sent]:
    """Return the class vectors of uploads, each with its round: of each class the newest, or all that differ.

    Vectors of different rounds can be compared only where all are made by the same map.
    """
    found: dict[object, Sent] = {}
    for round, up in uploads:
        sent = subject.sent(up, round)
        if sent is None:
            continue
        for label in sent.present.nonzero().squeeze(1).tolist():
            vector = sent.vectors[label].float().cpu()
            key = (label, vector.numpy().tobytes()) if link is not None and link.constant else label
            found[key] = Sent(label, vector, float(sent.counts[label]), round)
    return sorted(found.values(), key=lambda each: (each.label, each.round))


def nearness(vectors: Tensor, labels: Tensor, sent: Sequence[Sent]) -> Tensor:
    """Return two scores of each record, ``(2, records)``, that are high for records behind the vector of their class.

    The first is minus the log of the distance to that vector; the second adds the log of the distance to the nearest
    vector of another class, which tells more of a model that has learned its samples by heart.  Logs make the scores
    of different models alike, up to a constant.  A class of which no vector left has nan.
    """
    found = torch.full((2, len(vectors)), torch.nan, dtype=torch.float64)
    present = sorted({each.label for each in sent})
    away = torch.full((len(vectors), max(present, default=0) + 1), torch.inf, dtype=torch.float64)
    for label in present:
        targets = torch.stack([each.vector for each in sent if each.label == label]).double()
        away[:, label] = torch.cdist(vectors.double(), targets, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
    scale = torch.stack([each.vector for each in sent]).double().norm(dim=1).mean().clamp(min=1e-12) if sent else 1.0
    logs = (away / scale + 1e-6).log()
    for label in present:
        rows = labels == label
        own, others = logs[rows, label], logs[rows][:, [other for other in present if other != label]]
        found[0, rows] = -own
        found[1, rows] = others.amin(1) - own if len(present) > 1 else -own
    return found
