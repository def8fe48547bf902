"""A site's policy where it takes effect: on what is about to leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import torch
from torch import Tensor

from protea.clients.release import Release
from protea.config.units import format_bytes, in_bytes
from protea.core.clusters import Clusters
from protea.core.errors import PolicyError
from protea.core.message import Named, nbytes
from protea.core.payload import Payload, places_of
from protea.core.prototypes import Prototypes
from protea.evaluation.counts import Counts, Totals
from protea.evaluation.examination import Examination, FeatureSpace
from protea.federation.jobs import SUM_STEPS, Job, Reply
from protea.federation.privacy import SAID
from protea.filters.base import Passage
from protea.network.site.policy import Counting, Policy, PolicyFile, Report
from protea.network.site.refusals import Refusal, listed, refusal

STEP = 10  # rounded counts are multiples of it
TOLD = {"none": (), "accuracy": ("rules", "totals."), "full": ("",)}  # beginnings of names in an evaluation
PERCENT = 100  # test samples that a site claims to have if nobody may know how many they are


class PolicyRelease(Release):
    """Lets go what a site's policy allows.

    ``counts`` gives the site's training samples by class; it is asked when the first upload is ready.
    """

    def __init__(self, file: PolicyFile, counts: Callable[[], Mapping[str, int]], report: Report) -> None:
        self.file, self._counts, self.report = file, counts, report
        self.refusals: list[Refusal] = []  # since somebody last took them away, for the audit log
        self.examined: Examination | None = None  # the whole of the last evaluation, for this site's own screen

    @property
    def policy(self) -> Policy:
        return self.file.policy

    @property
    def by_counts(self) -> bool:  # type: ignore[override]
        """Whether classes are kept back by their exact numbers of samples."""
        return self.policy.min_samples_per_class > 1

    @property
    def held(self) -> Tensor:
        """Which classes have training samples, and too few to be sent: a bool per class."""
        counts = torch.tensor(list(self._counts().values()))
        return (counts > 0) & (counts < self.policy.min_samples_per_class)

    @property
    def held_names(self) -> list[str]:
        """The names of these classes."""
        return [name for name, held in zip(self._counts(), self.held.tolist(), strict=True) if held]

    def withhold(self, up: Named, at: Passage) -> Named:
        """Make small classes, and small clusters, absent in an upload, so that filters and server never see them."""
        prefixes, clustered = class_vectors(up, at), class_vectors(up, at, Clusters)
        others = [name for name in up if not any(name.startswith(prefix) for prefix in (*prefixes, *clustered))]
        if others and self.held.any():
            self.refuse(
                "min_samples_per_class",
                at,
                f"{others[0]} was made with the samples of {listed(self.held_names)}, and cannot be sent without them",
            )
        found = dict(up)
        for prefix in prefixes:
            counts = up[f"{prefix}counts"]
            few = (counts > 1).any() & (counts < self.policy.min_samples_per_class)  # counts of 1 alone say nothing
            keep = (counts > 0) & ~self.held & ~few
            found[f"{prefix}vectors"] = up[f"{prefix}vectors"][keep[counts > 0]]
            found[f"{prefix}counts"] = counts * keep
        for prefix in clustered:
            rows = Clusters(*(up[f"{prefix}{name}"] for name in ("vectors", "classes", "counts")))
            left = rows.only(~self.held[rows.classes] & (rows.counts >= self.policy.min_samples_per_class))
            found |= {f"{prefix}{name}": tensor for name, tensor in left.flat().items()}
        return found

    def upload(self, up: Named, at: Passage) -> Named:
        """Round or hide the counts of an upload; refuse one that is too large, or that holds what may not leave."""
        found, exact = dict(up), torch.tensor(list(self._counts().values()))
        for prefix in class_vectors(up, at):
            counts = up.get(f"{prefix}counts")
            if counts is None or counts.shape != exact.shape or not counts.is_floating_point():
                continue  # a filter has made something unreadable of them
            if (counts[self.held] != 0).any():
                self.refuse("min_samples_per_class", at, f"a vector of {listed(self.held_names)} would leave")
            found[f"{prefix}counts"] = told(counts, self.policy.counts)
        for prefix in class_vectors(up, at, Clusters):
            classes, counts = up.get(f"{prefix}classes"), up.get(f"{prefix}counts")
            if classes is None or counts is None or not counts.is_floating_point():
                continue
            if self.held[classes].any():
                self.refuse("min_samples_per_class", at, f"a vector of {listed(self.held_names)} would leave")
            found[f"{prefix}counts"] = told(counts, self.policy.counts)
        for name, tensor in found.items():
            if self.policy.counts != "exact" and reveals(tensor, exact):
                self.refuse("counts", at, f"{name} tells exactly how many samples each class has")
        if nbytes(found) > in_bytes(self.policy.max_upload):
            self.refuse("max_upload", at, f"the upload has {format_bytes(nbytes(found))}")
        return found

    def evaluation(self, found: Examination) -> Examination:
        """Tell nothing, the right answers of all classes together, or the whole but for small classes."""
        self.examined = found
        if self.report == "none":
            return Examination(found.rules[:0], {})
        enough = {part: counts for part, counts in found.tallies.items() if self._enough(counts)}
        if self.report == "accuracy":
            totals = {part: totals_of(counts, self.policy.counts) for part, counts in enough.items()}
            return Examination(found.rules if totals else found.rules[:0], {}, totals=totals)
        tallies = {part: self._thinned(counts) for part, counts in enough.items()}
        metrics = {part: values for part, values in found.metrics.items() if part in tallies}
        return Examination(found.rules if tallies else found.rules[:0], tallies, self._space(found), metrics)

    def gain(self, points: float, samples: int) -> Named:
        """Give what leaves of a gain over training alone, to a tenth of a point: nothing unless the policy says so."""
        if not self.policy.gain or self.report == "none" or samples < self.policy.min_samples_per_class:
            return {}
        return {"gain": torch.tensor(round(points, 3), dtype=torch.float64)}

    def _enough(self, counts: Counts) -> bool:
        """Whether there are enough samples, of all classes or of one, to say anything about them."""
        samples = counts.samples[0]
        each = samples.sum() if self.report == "accuracy" else samples.max()
        return int(each) >= self.policy.min_samples_per_class

    def _thinned(self, counts: Counts) -> Counts:
        """Leave out classes, and bins of certainty, with too few samples."""
        least = self.policy.min_samples_per_class
        keep = (counts.samples == 0) | (counts.samples >= least)
        sure = counts.certain[..., :1, :] >= least
        return Counts(counts.samples * keep, counts.hits * keep, counts.answers * keep, counts.certain * sure)

    def _space(self, found: Examination) -> FeatureSpace | None:
        if found.space is None:
            return None
        return replace(found.space, margins=found.space.margins * ~self.held)

    def reply(self, reply: Reply) -> Reply:
        """Round or hide the number of training samples; the loss says how good a model is, as a report does.

        What noise guarantees, or that it does not, follows from settings and the number of rounds, and is always said.
        """
        samples = reply.samples and int(told(torch.tensor([float(reply.samples)]), self.policy.counts))
        metrics = {name: number for name, number in reply.metrics.items() if self.report != "none" or name in SAID}
        return replace(reply, samples=samples, metrics=metrics)

    def verify(self, job: Job, reply: Reply, at: Passage) -> None:
        """Raise :class:`PolicyError` unless an answer, read from the very bytes that would leave, is as allowed.

        It may have been kept from before the policy was changed.
        """
        if job.task == "train":
            again = self.reply(replace(reply, up=self.upload(reply.up, at)))
            if any(not torch.equal(tensor, again.up[name]) for name, tensor in reply.up.items()):
                self.refuse("counts", at, "the answer tells more exactly how many samples each class has")
            if reply.samples != again.samples:
                self.refuse("counts", at, "the answer tells more exactly how many samples there are")
            if reply.metrics != again.metrics:
                self.refuse("report", at, "the answer tells the loss")
        elif job.task in SUM_STEPS and nbytes(reply.up) > in_bytes(self.policy.max_upload):
            self.refuse(
                "max_upload", at, f"the message {job.task!r} of the secure sum has {format_bytes(nbytes(reply.up))}"
            )
        elif job.task == "evaluate":
            if "gain" in reply.up and not self.policy.gain:
                self.refuse("gain", at, "the answer tells how much better the site is than alone")
            others = [name for name in reply.up if name != "gain" and not name.startswith(TOLD[self.report])]
            if others:
                self.refuse("report", at, f"the answer has {min(others)}")

    def refuse(self, setting: str, at: Passage, why: str) -> NoReturn:
        """Raise :class:`PolicyError`, whose words may leave; the policy's line is kept for the audit log."""
        found = refusal(self.file, setting, f"{why}.")
        self.refusals.append(found)
        raise PolicyError(
            f"client {at.client}, round {at.round}: the site's policy has {found.said}, and does not allow it."
        )


def class_vectors(up: Named, at: Passage, kind: type[Payload] = Prototypes) -> Sequence[str]:
    """Give the beginnings of the names of all prototypes, or clusters, in an upload, each with its dot."""
    return [f"{place}." if place else "" for place in places_of(kind, at.kind, up)]


def told(counts: Tensor, how: Counting) -> Tensor:
    """Give counts as they are told; absent classes stay 0, and the 1 of a method that hides its counts stays 1.

    >>> [told(torch.tensor([0.0, 7.0, 128.0]), how).tolist() for how in ("rounded", "hidden")]
    [[0.0, 10.0, 130.0], [0.0, 1.0, 1.0]]
    """
    there = (counts > 0).to(counts.dtype)
    if how == "exact" or not (counts > 1).any():
        return counts
    return there if how == "hidden" else there * (counts / STEP).round().clamp(min=1) * STEP


def reveals(tensor: Tensor, exact: Tensor) -> bool:
    """Tell whether a tensor holds the exact number of samples of each class, where these are no round numbers."""
    if tensor.shape != exact.shape or torch.equal(told(exact.double(), "rounded"), exact.double()):
        return False
    return torch.equal(tensor.double(), exact.double())


def totals_of(counts: Counts, how: Counting) -> Totals:
    """Give the right answers of each rule, of all samples: exactly, of a rounded number, or in percent."""
    samples, hits = counts.samples.sum(-1), counts.hits.sum(-1)
    claimed = torch.full_like(samples, PERCENT) if how == "hidden" else told(samples.double(), how).long()
    return Totals(claimed, (hits.double() / samples * claimed).round().long())
