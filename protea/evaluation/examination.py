"""What the evaluation of a client found, as it travels: counts by rule, distances, and what is drawn of a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from protea.config.words import PARTS
from protea.core.errors import PayloadError
from protea.core.payload import Payload
from protea.core.prototypes import Prototypes
from protea.evaluation.counts import MOST, Counts, Totals, unpacked_bits
from protea.evaluation.rules import NAMES

SHOWN = 300  # samples of a client whose features are in a snapshot


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
