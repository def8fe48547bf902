"""What rules answered, as counts: every measure follows from these, for one client or for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from protea.core.errors import PayloadError
from protea.core.payload import Payload
from protea.evaluation.scores import Score

BINS = 15  # of certainty, for the calibration error
MOST = 10**12  # samples of a client; with more, float64 sums of them would not be whole numbers


@dataclass(frozen=True)
class Counts(Payload):
    """Counts over some samples; they add up over clients.  Those of several rules have an axis of rules in front."""

    samples: Tensor  # (classes,) how many samples there are of each class
    hits: Tensor  # (classes,) how many of these were answered right
    answers: Tensor  # (classes,) how often each class was the answer
    certain: Tensor  # (3, BINS) by certainty of the answer: answers, sum of certainties, hits

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor) -> Self:
        """Count the answers of scores ``(samples, classes)``: the largest one, as certain as the softmax there.

        Where no class has a score (all are -inf) there is no answer, which is wrong.  Everything is counted on the
        CPU: sums of certainties need float64, which some accelerators lack.
        """
        scores, labels = scores.cpu(), labels.cpu()
        *front, samples, classes = scores.shape
        right, given = answered_right(scores, labels)
        labels, counts = labels.expand(*front, samples), labels.new_zeros(*front, classes)
        answers = scores.argmax(-1)
        certainty = probabilities(scores).gather(-1, answers.unsqueeze(-1)).squeeze(-1).double()
        place = (certainty * BINS).long().clamp(max=BINS - 1).unsqueeze(-2).expand(*front, 3, samples)
        values = torch.stack([torch.ones_like(certainty), certainty, right.double()], -2)
        return cls(
            counts.scatter_add(-1, labels, torch.ones_like(labels)),
            counts.scatter_add(-1, labels, right.long()),
            counts.scatter_add(-1, answers, given.long()),
            certainty.new_zeros(*front, 3, BINS).scatter_add(-1, place, values),
        )

    def __getitem__(self, place: int) -> Counts:
        """The counts of one rule of several."""
        return Counts(self.samples[place], self.hits[place], self.answers[place], self.certain[place])

    def check(self, classes: int, dim: int) -> None:
        super().check(classes, dim)
        counts, front = (self.samples, self.hits, self.answers), self.samples.shape[:-1]
        if any(t.shape != (*front, classes) or t.dtype != torch.int64 for t in counts):
            raise PayloadError(f"A tally arrived that is not one of {classes} classes.")
        if self.certain.shape != (*front, 3, BINS) or self.certain.dtype != torch.float64:
            raise PayloadError(f"A tally arrived whose certainties are not (3, {BINS}) numbers of float64.")
        totals = self.samples.double().sum(-1)  # which do not overflow
        if not ((totals > 0) & (totals <= MOST)).all() or (self.answers > MOST).any() or (self.certain > MOST).any():
            raise PayloadError(f"A tally arrived of no samples, or of more than {MOST:,}.")
        if any((t < 0).any() for t in (*counts, self.certain)) or (self.hits > torch.minimum(*counts[::2])).any():
            raise PayloadError("A tally arrived with counts below zero, or with more hits than samples or answers.")

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.samples + other.samples,
            self.hits + other.hits,
            self.answers + other.answers,
            self.certain + other.certain,
        )

    def __len__(self) -> int:
        """The number of samples."""
        return int(self.samples.sum())

    @property
    def accuracy(self) -> float:
        """The share of samples that were answered right."""
        return int(self.hits.sum()) / len(self)

    @property
    def by_class(self) -> list[float | None]:
        """The accuracy on each class; None where there are no samples of it."""
        return [hit / n if n else None for hit, n in zip(self.hits.tolist(), self.samples.tolist(), strict=True)]

    @property
    def balanced(self) -> float:
        """Mean of the accuracies on each class that there are samples of."""
        there = [value for value in self.by_class if value is not None]
        return sum(there) / len(there)

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the classes that there are samples of, or that were an answer."""
        both = self.samples + self.answers
        f1 = 2 * self.hits.double() / both.clamp(min=1)
        return float(f1[both > 0].mean())

    @property
    def calibration(self) -> float:
        """Expected calibration error: how far certainty is from accuracy, over equal bins of certainty."""
        _, certainty, right = self.certain
        return float((right - certainty).abs().sum()) / len(self)


@dataclass(frozen=True)
class Totals(Payload):
    """Counts over some samples of a client that tells nothing by class.  Of several rules, one number for each."""

    samples: Tensor  # () how many samples there are
    hits: Tensor  # () how many of these were answered right

    def __getitem__(self, place: int) -> Totals:
        """The counts of one rule of several."""
        return Totals(self.samples[place], self.hits[place])

    def check(self, classes: int, dim: int) -> None:
        super().check(classes, dim)
        if self.samples.shape != self.hits.shape or any(t.dtype != torch.int64 for t in self.flat().values()):
            raise PayloadError("Totals arrived that are not as many samples as hits, in whole numbers.")
        if not ((self.samples > 0) & (self.samples <= MOST) & (self.hits >= 0) & (self.hits <= self.samples)).all():
            raise PayloadError(f"Totals arrived of no samples, of more than {MOST:,}, or with more hits than samples.")

    def __len__(self) -> int:
        """The number of samples."""
        return int(self.samples)

    @property
    def accuracy(self) -> float:
        """The share of samples that were answered right."""
        return int(self.hits) / len(self)


def score_of(clients: Sequence[Counts | Totals]) -> Score:
    """The scores of one rule over the samples of all clients; None for what nobody tells by class."""
    told = [counts for counts in clients if isinstance(counts, Counts)]
    everything = sum(told[1:], start=told[0]) if told else None
    hits = sum(int(counts.hits.sum()) for counts in clients)
    return Score(
        hits / sum(len(counts) for counts in clients),
        sum(counts.accuracy for counts in clients) / len(clients),
        None if everything is None else everything.balanced,
        None if everything is None else everything.macro_f1,
        None if everything is None else everything.calibration,
    )


def answered_right(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Which samples were answered right, and which at all: truth values in the shape of scores without classes."""
    given = ~scores.isneginf().all(-1)
    return (scores.argmax(-1) == labels) & given, given


def mistaken(scores: Tensor, labels: Tensor) -> Tensor:
    """How often each class (row) was taken for each other one (column), int64 ``(classes, classes)``.

    >>> mistaken(torch.tensor([[2.0, 1.0], [2.0, 1.0], [1.0, 2.0]]), torch.tensor([0, 1, 1]))
    tensor([[0, 0],
            [1, 0]])
    """
    right, given = answered_right(scores, labels)
    wrong, classes = given & ~right, scores.shape[-1]
    pairs = labels[wrong] * classes + scores[wrong].argmax(-1)
    return pairs.bincount(minlength=classes * classes).view(classes, classes)


def packed_bits(bits: Tensor) -> Tensor:
    """Pack truth values ``(samples,)`` into bytes of eight, the first in the highest bit; the last is filled with 0."""
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -len(bits) % 8)).view(-1, 8)
    return (padded << torch.arange(7, -1, -1, dtype=torch.uint8)).sum(1).to(torch.uint8)


def unpacked_bits(packed: Tensor) -> Tensor:
    """Read the truth values of :func:`packed_bits`, with those that fill the last byte.

    >>> unpacked_bits(packed_bits(torch.tensor([True, False, True])))[:3].tolist()
    [True, False, True]
    """
    return ((packed.unsqueeze(-1) >> torch.arange(7, -1, -1, dtype=torch.uint8)) & 1).bool().flatten()


def probabilities(scores: Tensor) -> Tensor:
    """Softmax of scores along the last axis; where no class has a score at all, each is as likely."""
    return scores.masked_fill(scores.isneginf().all(-1, keepdim=True), 0.0).softmax(-1)
