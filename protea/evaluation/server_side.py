"""From what clients found to a round's scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from protea.config import registry
from protea.core import geometry
from protea.core.errors import PayloadError
from protea.core.message import Named
from protea.core.payload import unpack
from protea.core.prototypes import Prototypes
from protea.evaluation.counts import Counts, score_of
from protea.evaluation.examination import Examination
from protea.evaluation.metrics import Metric
from protea.evaluation.rules import Rule, all_names
from protea.evaluation.scores import (
    ClientScores,
    Geometry,
    MetricScore,
    PartRecord,
    Score,
    Shared,
    finite,
    mean_or_none,
)


class Judged:
    """What one evaluation found, gathered client by client.

    ``rules`` and ``metrics`` are those of the user's own, as the clients have them.  Which single samples a client
    answered right is refused unless ``single``.
    """

    def __init__(
        self,
        classes: int,
        dim: int,
        rules: Sequence[Rule] = (),
        metrics: Sequence[Metric] = (),
        single: bool = False,
    ) -> None:
        self.classes, self.dim, self.single = classes, dim, single
        self.rules, self.metric_names = all_names(rules), registry.plugin_names("metrics", metrics)
        self.examined: dict[int, Examination] = {}
        self.together: Together | None = None
        self.server: dict[str, float] = {}
        self.known: Prototypes | None = None  # the global ones

    def read(self, named: Named) -> Examination:
        """A client's examination from the tensors of its reply; :class:`PayloadError` for what is none."""
        found = unpack(Examination, named) or Examination(torch.zeros(0, dtype=torch.int64), {})
        found.check(self.classes, self.dim, self.rules, len(self.metric_names), self.single)
        return found

    def take(self, client: int, found: Examination) -> None:
        """Add a client's examination."""
        self.examined[client] = found

    def scores(self, part: str) -> dict[str, Score]:
        """The score of every rule that all clients have; none for a part that no client has samples of."""
        found = [counts for each in self.examined.values() if (counts := each.of(part, self.rules))]
        shared = [rule for rule in self.rules if found and all(rule in counts for counts in found)]
        return {rule: score_of([counts[rule] for counts in found]) for rule in shared}

    def train(self) -> float | None:
        """The accuracy by the method's own rule on the clients' training samples; None where nobody asked for it."""
        found = [each.train for each in self.examined.values() if each.train is not None]
        right, samples = (sum(int(each[place]) for each in found) for place in (0, 1))
        return right / samples if samples else None

    def metrics(self, part: str) -> dict[str, MetricScore]:
        """Each of the user's own metrics over the clients that have samples of the part."""
        rows = [
            (each.metrics[part].tolist(), len(each.tallies[part][0]))
            for each in self.examined.values()
            if part in each.metrics
        ]
        found: dict[str, MetricScore] = {}
        for place, name in enumerate(self.metric_names if rows else ()):
            values, samples = [row[place] for row, _ in rows], [count for _, count in rows]
            weighted = sum(value * count for value, count in zip(values, samples, strict=True)) / sum(samples)
            found[name] = MetricScore(weighted, sum(values) / len(values))
        return found

    def by_class(self, part: str = "test", rule: str = "method") -> dict[str, list[int]]:
        """The samples, hits and answers by class, of all clients that tell them."""
        found = [one.of(part, self.rules).get(rule) for one in self.examined.values()]
        each = [counts for counts in found if isinstance(counts, Counts)]
        if not each:
            return {}
        everything = sum(each[1:], start=each[0])
        return {
            "samples": everything.samples.tolist(),
            "hits": everything.hits.tolist(),
            "answers": everything.answers.tolist(),
        }

    def mistakes(self) -> list[list[int]]:
        """Which class was taken for which, and how often, over all clients; nothing where they do not tell that."""
        told = [each.mistakes for each in self.examined.values() if each.mistakes is not None]
        if not told or len(told) < sum("test" in each.tallies for each in self.examined.values()):
            return []
        everything = torch.stack(told).sum(0)
        return [[*pair, int(everything[tuple(pair)])] for pair in everything.nonzero().tolist()]

    def geometry(self) -> Geometry | None:
        """Where the global prototypes lie, and those of the clients; None where there are neither."""
        spaces = [each.space for each in self.examined.values() if each.space is not None]
        if self.known is None and not spaces:
            return None
        margins, apart = torch.full((self.classes,), torch.inf), None
        if self.known is not None:
            known = self.known.to("cpu")
            margins = geometry.margins(known.vectors, known.present)
            points = known.vectors[known.present]
            apart = finite(float(torch.cdist(points, points[:1]).max())) if len(points) > 1 else None
        widest = torch.stack([space.margins for space in spaces]).amax(0) if spaces else torch.zeros(0)
        both = margins.isfinite() & (widest > 0) if spaces else torch.zeros_like(margins, dtype=torch.bool)
        return Geometry(
            margins=margins.nan_to_num(0.0, 0.0, 0.0).tolist() if self.known is not None else [],
            widest=widest.tolist(),
            shrinkage=float((margins[both] / widest[both]).mean()) if both.any() else None,
            apart=apart,
            inter=mean_or_none([float(space.inter) for space in spaces]),
            intra=mean_or_none([float(space.intra) for space in spaces]),
        )

    def shared(self) -> dict[str, Shared]:
        """The scores on the shared test set, by rule; nothing in rounds without it."""
        return self.together.scores() if self.together else {}

    def clients(self) -> dict[int, ClientScores]:
        """Each client's own numbers, for those that were evaluated or answered the shared test set."""
        alone = self.together.alone if self.together else {}
        return {
            client: self._client(self.examined.get(client), alone.get(client, {}))
            for client in dict.fromkeys((*self.examined, *alone))
        }

    def _client(self, found: Examination | None, shared: Mapping[str, float]) -> ClientScores:
        if found is None:
            return ClientScores(shared=dict(shared))
        parts = {part: self._part(found, part) for part in sorted({**found.tallies, **found.totals})}
        inter, intra = (None, None) if found.space is None else (float(found.space.inter), float(found.space.intra))
        gain, pull = (None if value is None else float(value) for value in (found.gain, found.pull))
        return ClientScores(parts, dict(shared), inter, intra, gain, pull)

    def _part(self, found: Examination, part: str) -> PartRecord:
        by_rule = found.of(part, self.rules)
        own = by_rule["method"]
        both = zip(own.hits.tolist(), own.samples.tolist(), strict=True) if isinstance(own, Counts) else ()
        values = found.metrics[part].tolist() if part in found.metrics else []
        return PartRecord(
            samples=len(own),
            classes={label: (hits, samples) for label, (hits, samples) in enumerate(both) if samples},
            hits={rule: int(counts.hits.sum()) for rule, counts in sorted(by_rule.items())},
            metrics=dict(zip(self.metric_names, values, strict=True)) if values else {},
            right=bytes(found.right.tolist()).hex() if part == "test" and found.right is not None else None,
        )


class Together:
    """Adds up what clients answer on the shared test set, one after another.

    ``labels`` are those of the test set, on the CPU; ``rules`` are those of the user's own.
    """

    def __init__(self, labels: Tensor, classes: int, rules: Sequence[Rule] = ()) -> None:
        self.labels, self.classes, self.rules = labels, classes, all_names(rules)
        self.chances: dict[str, Tensor] = {}  # by rule, the sum of all clients' probabilities
        self.alone: dict[int, dict[str, float]] = {}  # accuracy by client and rule

    def read(self, named: Named) -> Named:
        """A client's probabilities by rule, from its reply; :class:`PayloadError` for what are none."""
        expected = (len(self.labels), self.classes)
        for rule, chances in named.items():
            if rule not in self.rules or chances.dtype != torch.float32:
                raise PayloadError(f"answers on the shared test set by {rule!r} in {chances.dtype} were not expected.")
            if tuple(chances.shape) != expected:
                raise PayloadError(
                    f"{tuple(chances.shape)} answers on the shared test set by {rule!r}, expected are {expected} "
                    f"probabilities."
                )
            if not ((chances >= 0) & (chances <= 1 + 1e-4)).all():  # nor is nan
                raise PayloadError(f"answers on the shared test set by {rule!r} are not probabilities.")
        return named

    def take(self, client: int, found: Named) -> None:
        """Add a client's probabilities."""
        for rule, chances in found.items():
            self.chances[rule] = self.chances[rule] + chances if rule in self.chances else chances
        self.alone[client] = {rule: self._accuracy(chances) for rule, chances in sorted(found.items())}

    def scores(self) -> dict[str, Shared]:
        """The scores of every rule that all clients have."""
        found = {}
        for rule in self.rules:
            alone = [of[rule] for of in self.alone.values() if rule in of]
            if alone and len(alone) == len(self.alone):
                found[rule] = Shared(self._accuracy(self.chances[rule]), sum(alone) / len(alone))
        return found

    def _accuracy(self, chances: Tensor) -> float:
        undecided = chances.amax(1) == chances.amin(1)  # all classes equally likely is no answer
        return int(((chances.argmax(1) == self.labels) & ~undecided).sum()) / len(self.labels)
