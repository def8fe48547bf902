"""One pass over data, for every rule at once: what a client finds about itself, and a server about its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from protea import geometry
from protea.core.client import EVALUATION_BATCH, Client
from protea.core.errors import ClientError, PayloadError
from protea.core.method import Method
from protea.core.payload import Payload
from protea.core.prototypes import Prototypes
from protea.core.samples import Samples
from protea.core.server import Server
from protea.evaluation import rules
from protea.evaluation.counts import Tally, probabilities

SHOWN = 300  # of a client's features are in a snapshot


@dataclass(frozen=True)
class Space(Payload):
    """How a client's classes lie in the space of its features."""

    margins: Tensor  # (classes,) from a class's prototype to the nearest other; 0 where there is none
    inter: Tensor  # mean distance of two prototypes
    intra: Tensor  # mean distance of test samples to the prototype of their class

    def check(self, classes: int, dim: int) -> None:
        super().check(classes, dim)
        shapes = [tuple(tensor.shape) for tensor in (self.margins, self.inter, self.intra)]
        if shapes != [(classes,), (), ()] or any(t.dtype != torch.float32 for t in self.flat().values()):
            raise PayloadError(f"Margins and spreads of shapes {shapes} arrived, not of {classes} classes in float32.")


@dataclass(frozen=True)
class Snapshot(Payload):
    """What a report shows of a client: its prototypes, and some of its test samples."""

    prototypes: Prototypes
    features: Tensor  # (samples, dim)
    labels: Tensor

    def check(self, classes: int, dim: int) -> None:
        super().check(classes, dim)
        count = len(self.labels) if self.labels.ndim == 1 else -1
        if self.features.shape != (count, dim) or self.features.dtype != torch.float32 or count > SHOWN:
            raise PayloadError(f"Features of shape {tuple(self.features.shape)} arrived, for {count} labels.")
        if self.labels.dtype != torch.int64 or (
            count and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < classes
        ):
            raise PayloadError(f"Labels arrived that are not of {classes} classes.")


@dataclass(frozen=True)
class Examination(Payload):
    """What one evaluation of a client found."""

    rules: Tensor  # which there are: their places among all
    tallies: Mapping[str, Tally]  # by part, test or validation, of these rules
    space: Space | None = None

    def of(self, part: str) -> dict[str, Tally]:
        """The tally of each rule; nothing for a part without samples."""
        if part not in self.tallies:
            return {}
        return {rules.NAMES[rule]: self.tallies[part][place] for place, rule in enumerate(self.rules.tolist())}

    def check(self, classes: int, dim: int) -> None:
        super().check(classes, dim)
        if self.rules.dtype != torch.int64 or self.rules.ndim != 1 or len(self.rules) > len(rules.NAMES):
            raise PayloadError(f"{tuple(self.rules.shape)} rules of {self.rules.dtype} arrived, not a list of places.")
        found = self.rules.tolist()
        if sorted(set(found)) != found or not set(found) <= set(range(len(rules.NAMES))):
            raise PayloadError(f"rules {found} arrived; there are those from 0 to {len(rules.NAMES) - 1}, each once.")
        if self.tallies and found[:1] != [0]:
            raise PayloadError("what the method's own rule answers is missing.")
        for part, tally in self.tallies.items():
            if part not in ("test", "validation"):
                raise PayloadError(f"{part!r} arrived, which is neither test nor validation.")
            if tally.samples.ndim != 2 or len(tally.samples) != len(found):
                raise PayloadError(
                    f"tallies of {tuple(tally.samples.shape)} on {part} samples, for {len(found)} rules."
                )


@torch.no_grad()
def examine(method: Method[Any, Any], client: Client, down: Any, local: bool = True) -> Examination:
    """What the client answers on its test and validation samples, and where their features lie."""
    client.set_evaluation()
    seen = client.cached_features() if local or client.fits_one_batch else {}
    prototypes = Prototypes.of(seen["train"], client.train.y, client.classes) if local else None
    ways = rules.of_client(method, client, down, prototypes)
    present = torch.tensor([place for place, rule in enumerate(rules.NAMES) if rule in ways])
    tallies: dict[str, Tally] = {}
    space = None
    for part, data in client.parts.items():
        if part == "train":
            continue
        said = answers(client, data, {**ways, "features": client.model.features}, seen.get(part))
        features = said.pop("features")
        tallies[part] = Tally.of(torch.stack([said[rule] for rule in rules.NAMES if rule in ways]), data.y)
        if part == "test" and prototypes is not None:
            space = around(prototypes, features, data.y)
    return Examination(present, tallies, space)


def around(prototypes: Prototypes, features: Tensor, labels: Tensor) -> Space | None:
    """How features lie around the prototypes of their classes; None where there are not two of these."""
    points = prototypes.vectors[prototypes.present]
    if len(points) < 2:
        return None
    known = prototypes.present[labels]
    away: Tensor = torch.linalg.vector_norm((features - prototypes.vectors[labels])[known], dim=1)
    margins = geometry.margins(prototypes.vectors, prototypes.present)
    return Space(
        margins=margins.masked_fill(margins.isinf(), 0.0),
        inter=F.pdist(points).mean(),
        intra=away.mean() if len(away) else away.sum(),
    )


@torch.no_grad()
def shared_answers(method: Method[Any, Any], client: Client, down: Any, local: bool = True) -> dict[str, Tensor]:
    """Every rule's class probabilities for the shared test set, ``(samples, classes)``; nothing where there is none."""
    if client.shared_test is None:
        return {}
    client.set_evaluation()
    ways = rules.of_client(method, client, down, client.prototypes() if local else None)
    return {rule: probabilities(scores) for rule, scores in answers(client, client.shared_test, ways).items()}


def answers(
    client: Client, data: Samples, ways: dict[str, rules.Rule], features: Tensor | None = None
) -> dict[str, Tensor]:
    """Scores of every rule, from one pass through the model, or none where its features are known."""
    found: dict[str, list[Tensor]] = {rule: [] for rule in ways}
    known = repeat(None) if features is None else (part.clone() for part in features.split(EVALUATION_BATCH))
    for (x, _), z in zip(client.batches(data), known, strict=False):
        with client.model.reuse_features(x, z):
            for rule, answer in ways.items():
                found[rule].append(answer(x))
    scores = {rule: torch.cat(parts) for rule, parts in found.items()}
    for rule, values in scores.items():
        if values.isnan().any() or values.isposinf().any():
            raise ClientError(
                f"client {client.id}, round {client.round}: its scores by {rule!r} are not finite, so its model or the "
                f"prototypes have diverged.  Try a smaller training.lr, or training.clip=10."
            )
    return scores


@torch.no_grad()
def snapshot(client: Client) -> Snapshot:
    data = client.train if client.test is None or not len(client.test) else client.test
    rows = torch.linspace(0, len(data) - 1, min(SHOWN, len(data))).long()  # the first ones may all be of one class
    z, y = client.outputs(client.model.features, data.only(rows))
    return Snapshot(client.prototypes(), z, y)


@torch.no_grad()
def serve(method: Method[Any, Any], server: Server, test: Samples) -> dict[str, float]:
    """Accuracy on the shared test set of the server's own model, if it has one, by rule."""
    model = method.server_model(server)
    if model is None:
        return {}
    model.eval()
    ways = rules.of_server(method, server, model)
    hits = dict.fromkeys(ways, 0)
    for rows in torch.arange(len(test)).split(EVALUATION_BATCH):
        x, y = test.batch(rows)
        with model.reuse_features():
            for rule, answer in ways.items():
                hits[rule] += int((answer(x).argmax(1) == y).sum())
    return {rule: count / len(test) for rule, count in hits.items()}
