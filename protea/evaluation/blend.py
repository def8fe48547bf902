"""The rule ``blend``: everything that a client knows about a sample, weighed by what it told of held-out samples.

    scores = w_m log p(method's own rule) + w_h log p(head) + w_g log p(global prototypes)
             + w_l log p(local prototypes) + w_p log p(class among the client's training samples),   every w >= 0

The weights are those of the smallest log-loss on the client's validation samples, which it did not train on, with a
ridge towards the method's own rule alone.  Where cross-validation on these samples does not show the blend to be
better than that rule (at its own best temperature) by more than a standard error, the answer is that rule's, to the
bit.  Nothing is kept or sent: the weights are computed when a client is evaluated or predicts, in float64 on the CPU,
so the same on every engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protea.core.client import Client

FOLDS = 5  # of cross-validation
LEAST = 8  # held-out samples; with fewer, the method's own rule answers
RIDGE = 1.0  # times the squared distance of the weights to 1 for the method's own rule and 0 for all others
STEPS = 20  # of Newton's method at most; it takes about five
HALVINGS = 20  # of a step at most
CLOSE = 1e-2  # a fall of the loss, summed over samples, that is not worth another step
PRIOR = "prior"
NEAREST = ("global_prototypes", "local_prototypes")  # rules whose scores are minus distances
EVIDENCE = ("method", "head", *NEAREST)  # rules that are blended, where the client has them and they differ

Scores = Mapping[str, Tensor]  # (samples, classes), by rule
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Blend:
    """How a client blends its rules; without weights it answers by the method's own rule alone."""

    weights: Mapping[str, float] = field(default_factory=dict)  # by rule, and of the prior
    spreads: Mapping[str, float] = field(default_factory=dict)  # of squared distances, by rule of prototypes
    prior: Floats | None = None  # (classes,) log of the client's class frequencies
    held_out: Tensor | None = None  # (samples, classes) scores of the validation samples, by weights of other folds

    @classmethod
    def of(cls, client: Client, said: Scores | None) -> Self:
        """Fit a client's weights to the scores of its validation samples; ``None`` if it has none."""
        if said is None or client.validation is None:
            return cls()
        return cls.fit(said, client.validation.y, client.train.counts(client.classes))

    @classmethod
    def fit(cls, said: Scores, labels: Tensor, counts: Tensor) -> Self:
        """Fit weights to scores and labels of held-out samples; ``counts`` are the training samples of each class."""
        own, y = said["method"], labels.cpu().numpy()
        if len(y) < LEAST or (own.argmax(1).cpu().numpy() == y).all():  # too few to tell, or nothing to gain
            return cls(held_out=own)
        smoothed = counts.cpu().numpy().astype(np.float64) + 0.5
        prior = np.log(smoothed / smoothed.sum())
        names = different(said)
        spreads = {name: spread(said[name]) for name in names if name in NEAREST}
        evidence = log_probabilities(said, names, spreads, prior)
        fold = np.empty_like(y)
        fold[y.argsort(kind="stable")] = np.arange(len(y)) % FOLDS  # by position within its class
        kept = (fold != np.arange(FOLDS + 1)[:, None]).astype(np.float64)  # all samples in the last row
        weights, alone = fit_weights(evidence, y, kept)
        blended = (weights[fold].T[:, :, None] * evidence).sum(0)
        surely = surely_positive(losses(alone[fold, :1] * evidence[0], y) - losses(blended, y), kept)
        chosen = torch.from_numpy(surely[fold])[:, None].to(own.device)  # by what the other folds say
        held_out = torch.where(chosen, torch.from_numpy(blended).to(own.dtype).to(own.device), own)
        if not surely[-1]:
            return cls(held_out=held_out)
        return cls(dict(zip((*names, PRIOR), weights[-1].tolist(), strict=True)), spreads, prior, held_out)

    def scores(self, said: Scores, *, prior: bool = True) -> Tensor:
        """Blend the scores of some samples, ``(samples, classes)``.

        Without ``prior`` for samples that are not drawn as the client's are: the other weights then add up to 1, since
        how certain to be was learned on the client's own classes.
        """
        own = said["method"]
        if self.prior is None:
            return own
        names = [name for name in self.weights if name != PRIOR]
        weights = np.array([self.weights[name] for name in names] + [self.weights[PRIOR] if prior else 0.0])
        if not prior:
            weights /= weights.sum() or 1.0
        evidence = log_probabilities(said, names, self.spreads, self.prior)
        return torch.from_numpy((weights[:, None, None] * evidence).sum(0)).to(own.dtype).to(own.device)


def different(said: Scores) -> list[str]:
    """The rules to blend, without those that say the same as an earlier one: the head, where it is the own rule."""
    names: list[str] = []
    for name in EVIDENCE:
        if name in said and not any(torch.equal(said[name], said[other]) for other in names):
            names.append(name)
    return names


def spread(scores: Tensor) -> float:
    """How far squared distances to prototypes are from their mean over classes: the root mean square, never 0.

    Divided by it, they do not depend on the scale of the features.
    """
    squares = np.square(scores.cpu().numpy().astype(np.float64))
    known = np.isfinite(squares)
    squares = np.where(known, squares, 0.0)
    mean = squares.sum(1, keepdims=True) / np.maximum(known.sum(1, keepdims=True), 1)
    found = float(np.sqrt(np.square((squares - mean) * known).sum() / max(known.sum(), 1)))
    return found or 1.0


def log_probabilities(said: Scores, names: Sequence[str], spreads: Mapping[str, float], prior: Floats) -> Floats:
    """What each rule says, and last the prior: ``(rules + 1, samples, classes)``, all finite.

    A class that a rule has nothing for is, by that rule, as likely as the mean of the others.
    """
    every = np.empty((len(names) + 1, *said["method"].shape))
    for place, name in enumerate(names):
        scores = said[name].cpu().numpy().astype(np.float64)
        every[place] = -np.square(scores) / spreads[name] if name in NEAREST else scores
    every[-1] = prior
    known = every != -np.inf
    others = known.sum(2, keepdims=True)
    every = np.where(others > 0, every, 0.0)
    every -= every.max(2, keepdims=True)
    every -= np.log(np.exp(every).sum(2, keepdims=True))
    return np.where(known, every, -np.log(np.maximum(others, 1)))


def losses(scores: Floats, labels: Ints) -> Floats:
    """The log-loss of each sample, of scores ``(samples, classes)``."""
    shifted = scores - scores.max(1, keepdims=True)
    found: Floats = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]
    return found


def fit_weights(evidence: Floats, labels: Ints, kept: Floats) -> tuple[Floats, Floats]:
    """Minimise the log-loss of ``kept`` samples plus the ridge over weights that are not negative.

    ``kept`` is 0 or 1, ``(problems, samples)``.  Gives the weights ``(problems, rules)`` of all rules together, and
    those of the first one alone.  The loss is convex: Newton's method goes along the weights that are not held at 0,
    with steps that are halved until the loss falls; all problems at once, since most of the time goes into calls.
    """
    rules, samples, _ = evidence.shape
    start, eye = np.eye(1, rules), np.eye(rules)
    may = np.ones((2 * len(kept), rules), bool)
    may[len(kept) :, 1:] = False
    kept = np.concatenate([kept, kept])
    right = np.einsum("pn,kn->pk", kept, evidence[:, np.arange(samples), labels])

    def loss(weights: Floats) -> tuple[Floats, Floats]:
        """The value for each problem, and the probabilities of the kept samples."""
        scores = np.einsum("pk,knc->pnc", weights, evidence)
        top = scores.max(2, keepdims=True)
        chances = np.exp(scores - top)
        total = chances.sum(2, keepdims=True)
        value = (kept * (np.log(total) + top)[:, :, 0]).sum(1) - (weights * right).sum(1)
        return value + RIDGE * np.square(weights - start).sum(1), chances * (kept[:, :, None] / total)

    weights = start.repeat(len(kept), 0)
    value, chances = loss(weights)
    for _ in range(STEPS):
        weighed = chances[:, None] * evidence  # (problems, rules, samples, classes)
        mean = weighed.sum(3)
        slope = mean.sum(2) - right + 2 * RIDGE * (weights - start)
        curve = np.einsum("pknc,lnc->pkl", weighed, evidence) - np.einsum("pkn,pln->pkl", mean, mean) + 2 * RIDGE * eye
        free = may & ((weights > 0) | (slope < 0))
        curve = np.where(free[:, None] & free[:, :, None], curve, eye)
        step = np.linalg.solve(curve, (slope * free)[:, :, None])[:, :, 0]
        step *= (slope * step).sum(1, keepdims=True) > CLOSE  # else the problem is solved, whatever others need
        if not step.any():
            break
        size = np.ones((len(kept), 1))
        for _ in range(HALVINGS):
            trial = np.maximum(weights - size * step, 0.0)
            reached, chances = loss(trial)
            worse = reached > value
            if not worse.any():
                break
            size = np.where(worse[:, None], size / 2, size)
        weights, value = trial, reached
    return weights[: len(kept) // 2], weights[len(kept) // 2 :]


def surely_positive(gains: Floats, kept: Floats) -> npt.NDArray[np.bool_]:
    """Whether the mean of the kept gains is above its standard error, for each row of ``kept``."""
    count = kept.sum(1)
    mean = (kept * gains).sum(1) / count
    variance = (kept * np.square(gains - mean[:, None])).sum(1) / (count - 1)
    found: npt.NDArray[np.bool_] = mean > np.sqrt(variance / count)
    return found
