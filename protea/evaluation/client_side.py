"""One pass over samples, for every rule at once: a client evaluates itself, a server its own model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from protea.config.words import PARTS
from protea.core import geometry
from protea.core.client import EVALUATION_BATCH, Client
from protea.core.errors import ClientError
from protea.core.method import Method
from protea.core.prototypes import Prototypes
from protea.core.samples import Samples
from protea.core.server import Server
from protea.evaluation.blend import EVIDENCE, Blend
from protea.evaluation.counts import Counts, answered_right, mistaken, packed_bits, probabilities
from protea.evaluation.examination import SHOWN, Examination, FeatureSpace, Snapshot
from protea.evaluation.metrics import Metric, measured
from protea.evaluation.pull import pull_strength
from protea.evaluation.rules import Answer, Rule, all_names, answering, of_client, of_server

FEW_CLASSES = 30  # with more, nobody could look at which class is taken for which, and records would be long
FEATURES = "features of the model"  # beside the rules, and no name that a rule can have


@torch.no_grad()
def examine(
    method: Method[Any, Any],
    client: Client,
    down: Any,
    local: bool = True,
    rules: Sequence[Rule] = (),
    metrics: Sequence[Metric] = (),
    answer: str = "method",
    single: bool = False,
    train: bool = False,
) -> Examination:
    """Evaluate a client on its test and validation samples: by every rule, and by the metrics of the user's own.

    With ``local``, also by the prototypes of its own training samples; how these and the test samples lie to each
    other is told too.  The rule ``answer`` counts as the method's own.  With ``single``, also which test samples that
    rule answers right, which class it takes for which, and how hard features are pulled; with ``train``, how many of
    the training samples.
    """
    client.set_evaluation()
    seen = client.cached_features() if local or client.fits_one_batch else {}
    prototypes = Prototypes.of(seen["train"], client.train.y, client.classes) if local else None
    ways = of_client(method, client, down, prototypes, rules)
    present = [place for place, rule in enumerate(all_names(rules)) if rule in ways or rule == "blend"]
    names = [all_names(rules)[place] for place in present]
    tallies: dict[str, Counts] = {}
    numbers: dict[str, Tensor] = {}
    space, right, mistakes, pull = None, None, None, None
    parts = {part: data for part, data in client.parts.items() if part != "train"}
    answered = {
        part: answers(client, data, {**ways, FEATURES: client.model.features}, seen.get(part))
        for part, data in parts.items()
    }
    blend = Blend.of(client, answered.get("validation"))
    for part, data in parts.items():
        said = answered[part]
        features = said.pop(FEATURES)
        held_out = blend.held_out if part == "validation" else None  # never by weights that have seen the labels
        said["blend"] = blend.scores(said) if held_out is None else held_out
        said["method"] = said[answering(answer, said, client, down)]
        tallies[part] = Counts.of(torch.stack([said[rule] for rule in names]), data.y)
        if metrics:
            where = f"client {client.id}, round {client.round}, {PARTS[part]}"
            numbers[part] = measured(metrics, said["method"], data.y, where)
        if part == "test" and single:
            right = packed_bits(answered_right(said["method"].cpu(), data.y.cpu())[0])
            mistakes = mistaken(said["method"].cpu(), data.y.cpu()) if client.classes <= FEW_CLASSES else None
            pull = pull_strength(method, client, down, features, data.y)
        if part == "test" and prototypes is not None:
            space = around(prototypes, features, data.y)
    fitted = None
    if train:
        said = answers(client, client.train, ways, seen.get("train"))
        said["blend"] = blend.scores(said)
        own = said[answering(answer, said, client, down)]
        fitted = torch.tensor([int(answered_right(own.cpu(), client.train.y.cpu())[0].sum()), len(client.train)])
    return Examination(
        torch.tensor(present), tallies, space, numbers, right, mistakes=mistakes, train=fitted, pull=pull
    )


def around(prototypes: Prototypes, features: Tensor, labels: Tensor) -> FeatureSpace | None:
    """How features lie around the prototypes of their classes; None where there are not two of these.

    The distances are computed on the CPU: not every accelerator has an operator for those between all pairs.
    """
    prototypes, features, labels = prototypes.to("cpu"), features.cpu(), labels.cpu()
    points = prototypes.vectors[prototypes.present]
    if len(points) < 2:
        return None
    known = prototypes.present[labels]
    away: Tensor = torch.linalg.vector_norm((features - prototypes.vectors[labels])[known], dim=1)
    margins = geometry.margins(prototypes.vectors, prototypes.present)
    return FeatureSpace(
        margins=margins.masked_fill(margins.isinf(), 0.0),
        inter=F.pdist(points).mean(),
        intra=away.mean() if len(away) else away.sum(),
    )


@torch.no_grad()
def shared_answers(
    method: Method[Any, Any],
    client: Client,
    down: Any,
    local: bool = True,
    rules: Sequence[Rule] = (),
    answer: str = "method",
) -> dict[str, Tensor]:
    """Every rule's class probabilities for the shared test set, ``(samples, classes)`` on the CPU.

    Nothing where there is no shared test set.  The blend leaves the client's own class frequencies out, which are not
    those of this set.
    """
    if client.shared_test is None:
        return {}
    client.set_evaluation()
    ways = of_client(method, client, down, client.prototypes() if local else None, rules)
    said = answers(client, client.shared_test, ways)
    said["blend"] = fitted_blend(client, ways).scores(said, prior=False)
    said["method"] = said[answering(answer, said, client, down)]
    return {rule: probabilities(scores).cpu() for rule, scores in said.items()}


def fitted_blend(client: Client, ways: Mapping[str, Answer]) -> Blend:
    """How a client blends its rules, by what they answer for its validation samples."""
    data = client.parts.get("validation")
    if data is None:
        return Blend()
    seen = client.cached_features() if client.fits_one_batch else {}
    evidence = {rule: answer for rule, answer in ways.items() if rule in EVIDENCE}
    return Blend.of(client, answers(client, data, evidence, seen.get("validation")))


def blended_answer(client: Client, ways: Mapping[str, Answer]) -> Answer:
    """Answer by the blend of a client's rules."""
    blend = fitted_blend(client, ways)

    def answer(x: Tensor) -> Tensor:
        with client.model.reuse_features():
            return blend.scores({rule: way(x) for rule, way in ways.items() if rule in EVIDENCE})

    return answer


def answers(
    client: Client, data: Samples, ways: Mapping[str, Answer], features: Tensor | None = None
) -> dict[str, Tensor]:
    """Scores ``(samples, classes)`` of every rule, from one pass through the model; none where features are known."""
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
    """The client's prototypes and some of its test samples' features; training samples if it has no test samples."""
    data = client.train if client.test is None or not len(client.test) else client.test
    rows = torch.linspace(0, len(data) - 1, min(SHOWN, len(data))).long()  # the first ones may all be of one class
    z, y = client.outputs(client.model.features, data.only(rows))
    return Snapshot(client.prototypes(), z, y)


@torch.no_grad()
def serve(method: Method[Any, Any], server: Server, test: Samples) -> dict[str, float]:
    """Accuracy on the shared test set of the server's own model, by rule; nothing if the method has no such model."""
    model = method.server_model(server)
    if model is None:
        return {}
    model.eval()
    ways = of_server(method, server, model)
    hits = dict.fromkeys(ways, 0)
    for rows in torch.arange(len(test)).split(EVALUATION_BATCH):
        x, y = test.batch(rows)
        with model.reuse_features():
            for rule, answer in ways.items():
                hits[rule] += int((answer(x).argmax(1) == y).sum())
    return {rule: count / len(test) for rule, count in hits.items()}
