"""What rules answered, as counts: every measure follows from these, for one client or for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from protea.core.errors import PayloadError
from protea.core.payload import Payload

BINS = 15  # of certainty, for the calibration error
MOST = 10**12  # samples of a client; more cannot be, and sums of them would not be whole numbers


@dataclass(frozen=True)
class Tally(Payload):
    """Counts over some samples.  Tallies add up.  Those of several rules may be one, with an axis of rules in front."""

    samples: Tensor  # (classes,) how many there are of each class
    hits: Tensor  # (classes,) how many of these were answered right
    answers: Tensor  # (classes,) how often each class was the answer
    certain: Tensor  # (3, BINS) by certainty of the answer: answers, sum of certainties, hits

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor) -> Self:
        """Scores are ``(samples, classes)``; the answer is the largest, its certainty the softmax there.

        Where no class has a score (all are -inf) there is no answer, which is wrong.
        """
        *front, samples, classes = scores.shape
        labels, counts = labels.expand(*front, samples), labels.new_zeros(*front, classes)
        answers, given = scores.argmax(-1), ~scores.isneginf().all(-1)
        right = (answers == labels) & given
        certainty = probabilities(scores).gather(-1, answers.unsqueeze(-1)).squeeze(-1).double()
        place = (certainty * BINS).long().clamp(max=BINS - 1).unsqueeze(-2).expand(*front, 3, samples)
        values = torch.stack([torch.ones_like(certainty), certainty, right.double()], -2)
        return cls(
            counts.scatter_add(-1, labels, torch.ones_like(labels)).cpu(),
            counts.scatter_add(-1, labels, right.long()).cpu(),
            counts.scatter_add(-1, answers, given.long()).cpu(),
            certainty.new_zeros(*front, 3, BINS).scatter_add(-1, place, values).cpu(),
        )

    def __getitem__(self, place: int) -> Tally:
        """That of one rule of several."""
        return Tally(self.samples[place], self.hits[place], self.answers[place], self.certain[place])

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

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.samples + other.samples,
            self.hits + other.hits,
            self.answers + other.answers,
            self.certain + other.certain,
        )

    def __len__(self) -> int:
        return int(self.samples.sum())

    @property
    def accuracy(self) -> float:
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


def probabilities(scores: Tensor) -> Tensor:
    """Softmax of scores; where no class has a score at all, each is as likely."""
    return scores.masked_fill(scores.isneginf().all(-1, keepdim=True), 0.0).softmax(-1)
