"""One pass over samples, for every rule at once: a client evaluates itself, a server its own model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from protea.config.words import PARTS
from protea.core import geometry
from protea.core.client import EVALUATION_BATCH, Client
from protea.core.errors import ClientError, PayloadError
from protea.core.method import Method
from protea.core.payload import Payload
from protea.core.prototypes import Prototypes
from protea.core.samples import Samples
from protea.core.server import Server
from protea.evaluation.blend import EVIDENCE, Blend
from protea.evaluation.counts import (
    MOST,
    Counts,
    Totals,
    answered_right,
    mistaken,
    packed_bits,
    probabilities,
    unpacked_bits,
)
from protea.evaluation.metrics import Metric, measured
from protea.evaluation.pull import pull_strength
from protea.evaluation.rules import NAMES, Answer, Rule, all_names, answering, of_client, of_server

SHOWN = 300  # samples of a client whose features are in a snapshot
FEW_CLASSES = 30  # with more, nobody could look at which class is taken for which, and records would be long
FEATURES = "features of the model"  # beside the rules, and no name that a rule can have


@dataclass(frozen=True)
class FeatureSpace(Payload):
    """How far apart a client's classes lie in the space of its features; on the CPU."""

    margins: Tensor  # (classes,) distance of a class's prototype to the nearest other; 0 where there is none
    inter: Tensor  # mean distance of two prototypes
    intra: Tensor  # mean distance of test samples to the prototype of their class

    def check(self, classes: int, dim: int) -> None:
        super().check(classes, dim)
        shapes = [tuple(tensor.shape) for tensor in (self.margins, self.inter, self.intra)]
        if shapes != [(classes,), (), ()] or any(t.dtype != torch.float32 for t in self.flat().values()):
            raise PayloadError(f"Margins and spreads of shapes {shapes} arrived, not of {classes} classes in float32.")


@dataclass(frozen=True)
class Snapshot(Payload):
    """What a report draws of a client: its prototypes, and the features of some of its test samples."""

    prototypes: Prototypes
    features: Tensor  # (samples, dim)
    labels: Tensor  # (samples,)

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

    rules: Tensor  # the rules that it has: their places among the names of all
    tallies: Mapping[str, Counts]  # by part, test or validation, with an axis of these rules in front
    space: FeatureSpace | None = None
    metrics: Mapping[str, Tensor] = field(default_factory=dict)  # by part, (metrics,) in the order of the settings
    right: Tensor | None = None  # packed bits: which test samples the method's own rule answers right; never of a site
    totals: Mapping[str, Totals] = field(default_factory=dict)  # by part, of a client that tells them and no tallies
    gain: Tensor | None = None  # accuracy on test samples minus that of training alone; of a site that tells it
    mistakes: Tensor | None = None  # (classes, classes) which class was taken for which, as ``right``; of few classes
    train: Tensor | None = None  # (2,) training samples that its own rule answers right, and all; never of a site
    pull: Tensor | None = None  # gradient of the method's pull at test samples, beside cross entropy's; never of a site

    def of(self, part: str, names: Sequence[str] = NAMES) -> dict[str, Counts | Totals]:
        """The counts of each rule by its name; nothing for a part without samples."""
        found: Counts | Totals | None = self.tallies.get(part, self.totals.get(part))
        if found is None:
            return {}
        return {names[rule]: found[place] for place, rule in enumerate(self.rules.tolist())}

    def check(
        self, classes: int, dim: int, names: Sequence[str] = NAMES, metrics: int = 0, single: bool = False
    ) -> None:
        """Refuse what does not fit the rules of these names and so many metrics; ``single`` answers unless wanted."""
        super().check(classes, dim)
        if self.rules.dtype != torch.int64 or self.rules.ndim != 1 or len(self.rules) > len(names):
            raise PayloadError(f"{tuple(self.rules.shape)} rules of {self.rules.dtype} arrived, not a list of places.")
        found = self.rules.tolist()
        if sorted(set(found)) != found or not set(found) <= set(range(len(names))):
            raise PayloadError(f"rules {found} arrived; there are those from 0 to {len(names) - 1}, each once.")
        if (self.tallies or self.totals) and found[:1] != [0]:
            raise PayloadError("what the method's own rule answers is missing.")
        for part, totals in self.totals.items():
            if part not in PARTS or part in self.tallies or totals.samples.shape != (len(found),):
                raise PayloadError(f"totals of {part!r} arrived that are not one for each of {len(found)} rules.")
        for part, counts in self.tallies.items():
            if part not in PARTS:
                raise PayloadError(f"{part!r} arrived, which is neither test nor validation.")
            if counts.samples.ndim != 2 or len(counts.samples) != len(found):
                raise PayloadError(
                    f"tallies of {tuple(counts.samples.shape)} on {part} samples, for {len(found)} rules."
                )
        if self.metrics.keys() != (self.tallies.keys() if metrics else set()):
            raise PayloadError(
                f"metrics of {' and '.join(sorted(self.metrics)) or 'no'} samples arrived, answers of "
                f"{' and '.join(sorted(self.tallies)) or 'no'} ones; there are {metrics} metrics."
            )
        for part, values in self.metrics.items():
            if values.shape != (metrics,) or values.dtype != torch.float64:
                raise PayloadError(
                    f"{tuple(values.shape)} metrics of {values.dtype} on {part} samples arrived, not {metrics} of "
                    f"float64."
                )
        if self.gain is not None and (
            self.gain.shape != () or self.gain.dtype != torch.float64 or not -1 <= float(self.gain) <= 1
        ):
            raise PayloadError("a gain over training alone arrived that is no difference of two accuracies.")
        if self.right is not None:
            self._check_right(self.right, single)
        if self.train is not None:
            self._check_train(self.train, single)
        if self.mistakes is not None:
            self._check_mistakes(self.mistakes, single)
        if self.pull is not None:
            self._check_pull(self.pull, single)

    def _check_train(self, train: Tensor, wanted: bool) -> None:
        """Refuse answers to training samples where nobody may know them, or that are no counts."""
        if not wanted:
            raise PayloadError("how many training samples were answered right arrived; a site does not tell that.")
        if train.dtype != torch.int64 or train.shape != (2,) or not 0 <= int(train[0]) <= int(train[1]):
            raise PayloadError(f"{train.tolist()} arrived, not how many training samples were answered right, and all.")

    def _check_right(self, right: Tensor, wanted: bool) -> None:
        """Refuse answers to single samples where nobody may know them, or that are not those of the counts."""
        if not wanted:
            raise PayloadError("which single samples were answered right arrived; a site does not tell that.")
        if "test" not in self.tallies:
            raise PayloadError("which samples were answered right arrived, without any test samples.")
        own = self.tallies["test"][0]
        if right.dtype != torch.uint8 or right.shape != (-(-len(own) // 8),):
            raise PayloadError(f"{tuple(right.shape)} bytes of {right.dtype} arrived, for {len(own)} test samples.")
        bits = unpacked_bits(right)
        if bits[len(own) :].any() or int(bits.sum()) != int(own.hits.sum()):
            raise PayloadError("which samples were answered right does not fit how many were.")

    def _check_pull(self, pull: Tensor, wanted: bool) -> None:
        """Refuse the strength of a pull where nobody may know it, or that is no length."""
        if not wanted:
            raise PayloadError("how hard features are pulled arrived; a site does not tell that.")
        if pull.dtype != torch.float32 or pull.shape != () or not 0 <= float(pull) < torch.inf:
            raise PayloadError(f"{pull.tolist()} in {pull.dtype} arrived, not how hard features are pulled.")

    def _check_mistakes(self, mistakes: Tensor, wanted: bool) -> None:
        """Refuse mistakes where nobody may know them, or that are not those of the counts."""
        if not wanted or "test" not in self.tallies:
            raise PayloadError("which class was taken for which arrived; a site does not tell that.")
        own = self.tallies["test"][0]
        if mistakes.shape != (len(own.samples), len(own.samples)) or mistakes.dtype != torch.int64:
            raise PayloadError(f"{tuple(mistakes.shape)} mistakes of {mistakes.dtype} arrived, not one for each pair.")
        if (mistakes < 0).any() or (mistakes > MOST).any() or mistakes.diagonal().any():
            raise PayloadError("mistakes arrived that are below zero, too many, or none.")
        if (mistakes.sum(1) > own.samples - own.hits).any() or (mistakes.sum(0) != own.answers - own.hits).any():
            raise PayloadError("which class was taken for which does not fit how many answers were wrong.")


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
